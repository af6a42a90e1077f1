"""Processes that are forked from a run, as a loader's workers: each is told, as it has the run's modes and no run."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

_ACTIVE: weakref.WeakSet[Forks] = weakref.WeakSet()


class Forks:
    """While it stands, `told` is called in each process that is forked from this one."""

    def __init__(self, report: Callable[[], None]) -> None:
        self.report = report

    def __enter__(self) -> None:
        _ACTIVE.add(self)

    def __exit__(self, *error: object) -> None:
        _ACTIVE.discard(self)


def _forked() -> None:
    for one in [*_ACTIVE]:
        _ACTIVE.discard(one)
        one.report()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)  # once a process: there is no way to take it back
