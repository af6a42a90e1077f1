"""Processes that are forked from a run, as a loader's workers: they inherit its modes, and must leave them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

_ACTIVE: weakref.WeakSet[Forks] = weakref.WeakSet()


class Forks:
    """While it is entered, `on_fork` is called in each process that is forked from this one."""

    def __init__(self, on_fork: Callable[[], None]) -> None:
        self.on_fork = on_fork

    def __enter__(self) -> None:
        _ACTIVE.add(self)

    def __exit__(self, *error: object) -> None:
        _ACTIVE.discard(self)


def _forked() -> None:
    for one in [*_ACTIVE]:
        _ACTIVE.discard(one)
        one.on_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)  # once a process, as a hook cannot be removed
