"""The streams that Numba knows, all of which may use any of a program's device arrays.

Numba hands memory out without a stream, so a join is one of all streams there are: the default one always; each
`Stream` of Numba's from when it is made until it goes; each of `cuda.core`'s from when Numba first uses it; and each
that Numba was told of by `numba.cuda.external_stream`, from its first use. Nobody says when one of those is destroyed,
so the host waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpumem.runtime.emm import numba_internals
from gpumem.runtime.pooled.stream_joins import ANY_THREADS, OF_A_THREAD, Events

LEGACY = 1  # CU_STREAM_LEGACY: the default stream by another name


def all_streams(device: int) -> Events:
    """Return a joiner for all streams of a device that Numba uses, which knows the default one."""
    streams = Events(device)
    streams.seen(_number(0))
    return streams


def watch(streams_of: Callable[[Any], Events | None]) -> None:
    """Have Numba tell of streams; `streams_of(context)` says who wants to know, None where nobody does.

    `RuntimeError` where Numba has not got what is watched.
    """

    def made(stream: Any, external: bool) -> None:
        if not external:
            _meet(streams_of, stream)

    numba_internals.watch_streams(made, lambda stream: _meet(streams_of, stream))


def _meet(streams_of: Callable[[Any], Events | None], stream: Any) -> None:
    number = _number(int(stream.handle or 0))
    if number and (streams := streams_of(numba_internals.current_context())) is not None:
        streams.meet(number, stream, borrowed=getattr(stream, "external", False))


def _number(handle: int) -> int:
    handle = 0 if handle == LEGACY else handle
    return ANY_THREADS if handle in OF_A_THREAD else handle
