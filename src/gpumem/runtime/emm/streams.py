"""The streams that Numba knows, all of which may use any of a program's device arrays.

Numba hands memory out without a stream, so a join is one of all streams there are: 0 always; each `Stream` of Numba's
from when it is made until it goes; each of `cuda.core`'s from when Numba first hears of it. What is known here is right
for streams that others make, as long as Numba is told of them: `numba.cuda.external_stream(handle)`.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection
from functools import wraps
from importlib.metadata import version
from typing import Any

from numba.cuda.cudadrv import devices, driver as numba_driver

from gpumem.runtime.pooled.stream_joins import OF_A_THREAD, Events

LEGACY = 1  # CU_STREAM_LEGACY: the default stream by another name
ANY_THREADS = -(2**62)  # a thread's own default stream, we cannot know whose: no thread has this number
_handed: weakref.WeakSet[Any] = weakref.WeakSet()  # streams of cuda.core that were met


class AllStreams:
    """Joins all streams that are known, whichever are asked for.

    Attributes
    ----------
    several : bool
        Whether there may be work on more than one, so that somebody has to wait.
    joins : int
        How many there were.
    """

    def __init__(self, events: Events) -> None:
        self._events, self._lock = events, threading.RLock()
        self._known = Counter({_number(0): 1})  # how many objects each stream has
        self._gone: deque[int] = deque()  # of objects that went: noted by finalizers, which may come at any moment
        self.several, self.joins = 0 in OF_A_THREAD, 0

    def join(self, streams: Collection[int] = ()) -> list[int]:
        """Have all streams wait for one another; the host waits where one has gone, as it may have left work."""
        with self._lock:
            self.joins += 1
            if self._forget():
                self._events.wait()
            else:
                for stream in self._events.join({*self._known}):
                    del self._known[stream]
            self.several = set(self._known) != {0}
        return []

    def born(self, stream: int) -> int:
        """Return the driver's number of a stream."""
        return self._events.born(stream)

    def wait(self) -> None:
        """Return when the device is done with all it was given."""
        self._events.wait()

    def close(self) -> None:
        """Give the driver's events back; the next join has others."""
        with self._lock:
            self._events.close()

    def meet(self, handle: int, stream: object) -> None:
        """Take this to be a new stream, known until `stream` goes: it waits for whatever the others were given."""
        number = _number(handle)
        if number in (0, ANY_THREADS) and number in self._known:
            return
        with self._lock:
            self.several = True
            gone = self._forget()  # the driver gives handles again
            self._known[number] += 1
            if gone:
                self._events.wait()
            else:
                self._events.join({*self._known})
        if number >= 0:
            weakref.finalize(stream, self._gone.append, number).atexit = False

    def _forget(self) -> bool:
        """Strike out streams of which no object is left; return whether there are any."""
        before = len(self._known)
        while self._gone:
            number = self._gone.popleft()
            self._known[number] -= 1
            if self._known[number] <= 0:
                del self._known[number]
        return len(self._known) < before


def _number(handle: int) -> int:
    handle = 0 if handle == LEGACY else handle
    return ANY_THREADS if handle in OF_A_THREAD else handle


def watch(streams_of: Callable[[Any], AllStreams | None]) -> None:
    """Have Numba tell of streams: of each that it makes, and of each of `cuda.core`'s that it is handed.

    `streams_of(context)` says who wants to know, None where nobody does. `RuntimeError` where Numba has not got what is
    watched.
    """
    places = [(numba_driver.Stream, "__init__"), (numba_driver, "_to_core_stream"), (numba_driver, "_stream_handle")]
    for owner, name in places:
        original = getattr(owner, name, None)
        if original is None:
            told = (
                f"numba-cuda {version('numba-cuda')} has no {owner.__name__}.{name}, by which gpumem learns of streams"
            )
            raise RuntimeError(f"{told}: use numba-cuda 0.30")
        if not hasattr(original, "watched"):
            setattr(owner, name, _watching(original, owner is numba_driver.Stream, streams_of))


def _watching(original: Any, makes: bool, streams_of: Callable[[Any], AllStreams | None]) -> Any:
    """Wrap a function whose first argument is a stream that was made, or one that is about to be used."""

    @wraps(original)
    def made(stream: Any, *arguments: Any, **options: Any) -> None:
        original(stream, *arguments, **options)
        tell(stream)

    @wraps(original)
    def used(stream: Any) -> Any:
        if stream and not isinstance(stream, numba_driver.Stream):
            stream_of = getattr(stream, "stream", stream)  # a graph builder has one
            if hasattr(stream_of, "handle") and stream_of not in _handed:  # what is no stream Numba refuses
                tell(stream_of)
                _handed.add(stream_of)
        return original(stream)

    def tell(stream: Any) -> None:
        if (known := streams_of(devices.get_context())) is not None:
            known.meet(int(stream.handle or 0), stream)

    found: Any = made if makes else used
    found.watched = True
    return found
