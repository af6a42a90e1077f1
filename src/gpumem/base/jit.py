"""The one place that imports Numba: `jit` and `inner` compile a plain Python loop and keep the result on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event, types
from numba.core.caching import FunctionCache

from gpumem.base.fingerprint import fingerprint
from gpumem.base.work import start_clock, stop_clock

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile `function` at its first call; with `NUMBA_DISABLE_JIT=1` it stays as it is."""
    return _compiled(function, no_cfunc_wrapper=True)


def inner(function: F) -> F:
    """Compile a function that only compiled loops call: without the way in from Python that takes half the time."""
    return _compiled(function, no_cfunc_wrapper=True, no_cpython_wrapper=True)


class _LoopCache(FunctionCache):
    """Numba's cache of a loop, which is out of date when anything has changed that is compiled into the loop."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # Read before anything else, and so before records that may have other names by now. Only now: a loop may
        # call one that stands below it.
        version = f"{numba.__version__} {fingerprint(self._py_func)}"
        self._cache_file._version = version  # noqa: SLF001  Numba has no other way in
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except (AttributeError, ImportError):  # of arguments whose record is no more, which the loop does not name
            self.flush()  # type: ignore[no-untyped-call]
            return None


def _compiled(function: F, **options: Any) -> F:
    dispatcher: Any = numba.njit(nogil=True, **options)(function)
    if dispatcher is not function:
        try:
            dispatcher._cache = _LoopCache(function)  # type: ignore[no-untyped-call] # noqa: SLF001  as `enable_caching` does
        except RuntimeError as error:  # neither the package nor the home is a place that one may write to
            if "no locator" not in str(error):
                raise
            _listener.kept = False

        def ask(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
            """What Numba asks of a callee; constants count as integers, or it compiles it anew for each of them."""
            return template([_wide(a) for a in args], {name: _wide(a) for name, a in kws.items()})

        template, dispatcher.get_call_template = dispatcher.get_call_template, ask
    return cast(F, dispatcher)


def _wide(kind: Any) -> Any:
    return types.unliteral(kind)  # type: ignore[no-untyped-call]


class _OnCompile(event.Listener):
    tell: Callable[[bool], None] | None = None
    kept = True

    def on_start(self, event: object) -> None:
        if self.tell:
            self.tell(self.kept)
            self.tell = None  # once is enough

    def on_end(self, event: object) -> None:
        pass


class _OnWait(event.Listener):
    """Numba's lock is held, or waited for by another thread, while a loop is compiled or comes from the cache."""

    def on_start(self, event: object) -> None:
        stop_clock()

    def on_end(self, event: object) -> None:
        start_clock()


_listener = _OnCompile()
event.register("numba:compile", _listener)  # type: ignore[no-untyped-call]
event.register("numba:compiler_lock", _OnWait())  # type: ignore[no-untyped-call]


def on_first_compile(tell: Callable[[bool], None]) -> None:
    """Call `tell` once, when the first loop that is not in the cache is about to be compiled; is the result kept?"""
    _listener.tell = tell


def inlined(function: F) -> F:
    """Compile a large function as a part of the one loop that calls it: it is optimized once, not by itself as well.

    For what is large and called in one place: the depth-first search compiles in 9.6 s so, in 11.2 with `inner`. With
    small functions nothing is gained (10.9 s), as Numba copies and types what surrounds them once more.
    """
    return _compiled(function, inline="always")


@inner
def assign(to: Any, source: Any) -> None:
    """Do `to[:] = source`, front to back. Numba's own has a text about shapes, which takes two seconds to compile."""
    for k in range(len(source)):
        to[k] = source[k]
