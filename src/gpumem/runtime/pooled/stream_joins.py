"""Joins: whatever any stream was given so far comes before what each of them is given next, as memory changes hands.

Streams are the driver's handles, integers. Two of them are one for each thread: 2 always, and 0 where CUDA Python was
told so. `known` gives those a number below 0 that no other thread ever has.

A handle says nothing of whether its stream is still there, and CUDA leaves it undefined what a call on a destroyed one
does. So a joiner is told of an owner with each handle, and calls the driver only while that is alive.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

PER_THREAD = 2  # CU_STREAM_PER_THREAD
OF_A_THREAD = frozenset(
    {PER_THREAD, *([0] if os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0") != "0" else [])}
)
LEGACY = frozenset({0, 1}) - OF_A_THREAD  # the default stream of all threads, which is there for good
ANY_THREADS = -(2**62)  # a thread's own default stream, nobody knows whose: no thread has this number
_numbers = count(-1, -1)


class _Thread(threading.local):
    """What is a thread's own: the number of its default stream. Idents of threads come again, numbers do not."""

    def __init__(self) -> None:
        self.number = next(_numbers)


_thread = _Thread()


def known(stream: int) -> int:
    """Return a stream's number: its handle, or one that is this thread's own.

    >>> known(1), known(2) < 0, known(2) == known(2)
    (1, True, True)
    """
    return _thread.number if stream in OF_A_THREAD else stream


class Joiner(Protocol):
    """Owns what is known of streams, and puts them in order; their numbers are those that `known` returns."""

    def seen(self, stream: int, owner: object = None) -> None:
        """Have joins be with a stream; its `owner` is kept until the next one."""
        ...

    def keep(self, stream: int, owner: object) -> None:
        """Take an owner in the place of one that was seen and may go; at any moment, in a finalizer too."""
        ...

    def admit(self, stream: int, owner: object = None) -> None:
        """Let a stream have memory: see it, and have it come after the last join. `RuntimeError`: it is captured."""
        ...

    def join(self) -> None:
        """Have each stream that was seen wait for what the others were given."""
        ...

    def wait(self) -> None:
        """Return when the device is done with all it was given."""
        ...

    def close(self) -> None:
        """Give back what joins took."""
        ...


@dataclass(slots=True)
class _Stream:
    """What is known of a stream: who keeps its handle valid, and whether joins may use that."""

    owners: list[weakref.ref[Any]] = field(default_factory=list)
    borrowed: bool = False  # it may be destroyed while its owners live, or has none: only the host can wait for it
    is_behind: bool = False  # the last join


class Events:
    """Streams of one device, joined on the device by an event: the host does not wait.

    ::

        join: a --record--> b waits; c --record--> b waits; ...; b --record--> a, c, ... wait; later ones when they come

    The host does wait where a stream is gone and may have left work, where it belongs to another thread alone, where
    nobody keeps its handle valid, and where the driver refuses.

    Parameters
    ----------
    device : int
        Which; its primary context is used, whatever is current.

    Attributes
    ----------
    joins : int
        How many there were.

    Raises
    ------
    RuntimeError
        From `admit` and `join`: a stream is being captured into a graph, so that it cannot wait for others; or the
        driver says that what was under way has failed.

    Notes
    -----
    An owner has the handle as `handle` or `ptr`, and the handle is valid while it is alive and has that: a stream of
    `cuda.core`, Numba or CuPy. Any thread may call.
    """

    def __init__(self, device: int = 0) -> None:
        from cuda.bindings import driver

        self._api, self.device, self.joins = driver, device, 0
        self._idle = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        self._implicit = driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        self._lock = threading.RLock()
        self._streams: dict[int, _Stream] = {}
        self._kept: dict[int, Any] = {}  # owners of streams that were given memory or freed some since the last join
        self._event: Any = None
        self._marks = False  # the event is behind the last join; else the host has waited, or there was none
        self._lost = False  # a stream is gone, and another one has its handle
        self._context: Any = None

    @property
    def several(self) -> bool:
        """Whether there may be work on more streams than the default one."""
        return len(self._streams) > 1 or 0 not in self._streams

    def seen(self, stream: int, owner: object = None) -> None:
        """Have joins be with a stream; its `owner` is kept until the next one, so that the handle is valid then."""
        kept = self._kept.get(stream)
        if stream in self._streams and (stream in LEGACY or (kept is not None and _handle_of(kept) == stream)):
            return
        with self._lock:
            entry = self._entry(stream)
            if owner is not None:
                self._kept[stream], entry.borrowed = owner, False
            elif stream > 1 and self._owner(stream) is None:
                entry.borrowed = True

    def keep(self, stream: int, owner: object) -> None:
        """Take an owner in the place of one that was seen and may go.

        The one that `cuda.core` frees with keeps the stream's handle valid even where the program closes its own.
        """
        kept = self._kept
        before = kept.get(stream)
        if before is not None and before is not owner and _handle_of(before) == stream:
            kept[stream] = owner

    def admit(self, stream: int, owner: object = None) -> None:
        """Let a stream have memory: see it, and have it come after the last join."""
        entry = self._streams.get(stream)
        if entry is not None and entry.is_behind and stream in LEGACY:
            return
        with self._lock:
            handle = PER_THREAD if stream < 0 else stream
            if handle not in LEGACY and self.captures(handle):
                raise RuntimeError(
                    f"stream {handle:#x} is being captured into a graph, which uses its memory at every launch: "
                    "allocate before, and keep it as long as the graph"
                )
            self.seen(stream, owner)
            self._follow(stream, handle)

    def meet(self, stream: int, owner: object, *, borrowed: bool = False) -> None:
        """Know a stream while one of its owners lives, whoever gets memory; it comes after what others were given.

        One that is being captured is passed over: it cannot wait, and it gets no memory before it comes again.
        """
        with self._lock:
            handle = PER_THREAD if stream == ANY_THREADS else stream
            if stream in self._streams and self._owner(stream) is not None:
                _add(self._streams[stream], owner)
                return
            if handle not in LEGACY and self.captures(handle):
                return
            first, entry = not self.several, self._entry(stream)
            entry.borrowed = borrowed or stream == ANY_THREADS
            _add(entry, owner)
            try:
                if first:  # what a single stream frees is handed out in its order, without joins
                    self.join()
                else:
                    self._follow(stream, handle)
            except BaseException:
                del self._streams[stream]
                raise

    def join(self) -> None:
        """Have each stream wait for what the others were given; wait on the host where that does not do."""
        with self._lock:
            handles, owners, unsure = self._reachable()
            marks = False
            if unsure or len(handles) > 1:
                with self.current():
                    for handle in handles.values():
                        if self.captures(handle):
                            reason = f"stream {handle:#x} is being captured into a graph"
                            raise RuntimeError(f"{reason}, and memory changes hands between streams: ask for it before")
                    marks = not unsure and self._ordered([*handles.values()])
                    if not marks:
                        self._synchronise()
            self._marks, self._lost, self.joins = marks, False, self.joins + 1
            del owners
            self._let_go()
            self._forget(handles)

    def wait(self) -> None:
        """Wait for all of the device's context."""
        with self.current():
            self._synchronise()

    def captures(self, handle: int) -> bool:
        """Whether a stream is being captured, or may not be used since another one is."""
        status, state = self._api.cuStreamIsCapturing(handle)
        return bool(status == self._implicit if status else state is not self._idle)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device's context current, whatever the thread's is."""
        api = self._api
        if self._context is None:
            status, context = api.cuDevicePrimaryCtxRetain(self.device)
            if status:
                raise RuntimeError(f"device {self.device}: no context: {status.name}")
            self._context = context
        (status,) = api.cuCtxPushCurrent(self._context)
        if status:
            raise RuntimeError(f"device {self.device}: its context cannot be used: {status.name}")
        try:
            yield
        finally:
            api.cuCtxPopCurrent()

    def close(self) -> None:
        """Give the event and the hold on the context back; the next join has others."""
        with self._lock:
            self._marks = False
            self._kept.clear()
            if self._event is not None:
                self._api.cuEventDestroy(self._event)
                self._event = None
            if self._context is not None:
                self._context = None
                self._api.cuDevicePrimaryCtxRelease(self.device)

    def _entry(self, stream: int) -> _Stream:
        """Return what is known of a stream; one whose owners are gone may be another one by now."""
        if (entry := self._streams.get(stream)) is None:
            entry = self._streams[stream] = _Stream()
        elif stream > 1 and not entry.borrowed and self._owner(stream) is None:
            entry.is_behind, self._lost = False, True
        return entry

    def _owner(self, stream: int) -> Any:
        """Return who keeps a stream's handle valid, None where nobody does."""
        if (kept := self._kept.get(stream)) is not None and _handle_of(kept) == stream:
            return kept
        owners = (ref() for ref in self._streams[stream].owners)
        return next((owner for owner in owners if owner is not None and _handle_of(owner) == stream), None)

    def _follow(self, stream: int, handle: int) -> None:
        """Have a stream come after the last join."""
        entry = self._streams[stream]
        if entry.is_behind and not entry.borrowed:  # a borrowed handle may be another stream's by now
            return
        if self._marks:
            with self.current():
                if self._api.cuStreamWaitEvent(handle, self._event, 0)[0]:
                    self._synchronise()
        entry.is_behind = True

    def _reachable(self) -> tuple[dict[int, int], list[Any], bool]:
        """Return streams that can be joined, who owns them, and whether there are others."""
        handles, owners, own = {}, [], known(PER_THREAD)
        for stream, entry in [*self._streams.items()]:
            if stream in LEGACY or stream == own:
                handles[stream] = PER_THREAD if stream == own else stream
            elif stream >= 0 and not entry.borrowed and (owner := self._owner(stream)) is not None:
                handles[stream] = stream
                owners.append(owner)
        return handles, owners, self._lost or len(handles) < len(self._streams)

    def _ordered(self, handles: list[int]) -> bool:
        """Have one stream wait for all others, and these for that one; return whether they will."""
        api = self._api
        if self._event is None:
            status, event = api.cuEventCreate(api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            if status:
                return False
            self._event = event
        one, *others = handles

        def record(stream: int) -> bool:
            return not api.cuEventRecord(self._event, stream)[0]

        def waits(stream: int) -> bool:
            return not api.cuStreamWaitEvent(stream, self._event, 0)[0]  # for the latest record

        return all(record(x) and waits(one) for x in others) and record(one) and all(map(waits, others))

    def _let_go(self) -> None:
        """Keep owners no longer, whose streams go if nobody else has them."""
        kept, self._kept = self._kept, {}
        for stream, owner in kept.items():
            _add(self._streams[stream], owner)

    def _forget(self, handles: dict[int, int]) -> None:
        """All are behind the join; strike out those that are gone."""
        for stream, entry in [*self._streams.items()]:
            entry.is_behind = True
            for_good = stream in LEGACY or stream == ANY_THREADS or (entry.borrowed and not entry.owners)
            here = stream in handles if stream < 0 else self._owner(stream) is not None
            if not (for_good or here):
                del self._streams[stream]

    def _synchronise(self) -> None:
        (status,) = self._api.cuCtxSynchronize()
        if status:
            raise RuntimeError(f"device {self.device}: what was under way has failed: {status.name}")


def _handle_of(owner: Any) -> int:
    """Return the handle that a stream of cuda.core, Numba or CuPy has now: 0 once it is closed."""
    return int(getattr(owner, "handle", None) or getattr(owner, "ptr", None) or 0)


def _add(entry: _Stream, owner: object) -> None:
    """Add an owner, and strike out those that are gone."""
    alive = [ref for ref in entry.owners if (it := ref()) is not None and it is not owner]
    entry.owners = [*alive, weakref.ref(owner)]
