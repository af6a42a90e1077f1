"""The one place that imports Numba: `jit` compiles a plain Python loop and keeps the result on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile `function` at its first call; with `NUMBA_DISABLE_JIT=1` it stays as it is."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


class _OnCompile(event.Listener):
    tell: Callable[[], None] | None = None

    def on_start(self, event: object) -> None:
        if self.tell:
            self.tell()
            self.tell = None  # once is enough

    def on_end(self, event: object) -> None:
        pass


_listener = _OnCompile()
event.register("numba:compile", _listener)  # type: ignore[no-untyped-call]


def on_first_compile(tell: Callable[[], None]) -> None:
    """Call `tell` once, when the first loop that is not in the cache is about to be compiled."""
    _listener.tell = tell
