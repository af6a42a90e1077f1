"""Joins: whatever any stream was given so far comes before what each of them is given next, as memory changes hands.

Streams are the driver's handles, integers. Two of them are one for each thread: 2 always, and 0 where CUDA Python was
told so. `known` gives those a number below 0 that no other thread ever has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

PER_THREAD = 2  # CU_STREAM_PER_THREAD
OF_A_THREAD = frozenset(
    {PER_THREAD, *([0] if os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0") != "0" else [])}
)
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
    """Puts streams in order; the numbers are those that `known` returns."""

    def join(self, streams: Collection[int]) -> Collection[int]:
        """Have each of these wait for what the others were given; return those that are done and can be forgotten."""
        ...

    def born(self, stream: int) -> int:
        """Return what no other stream ever has, unlike its handle, which may come again."""
        ...

    def wait(self) -> None:
        """Return when the device is done with all it was given."""
        ...

    def close(self) -> None:
        """Give back what joins took."""
        ...


class Events:
    """Streams of one device, joined by an event of each, on the device: the host does not wait.

    It does wait where a stream was destroyed, where it belongs to another thread alone, and where the driver refuses.

    Parameters
    ----------
    device : int
        Which; its primary context is used, whatever is current.

    Raises
    ------
    RuntimeError
        From `join`: a stream is being captured into a graph, so that it cannot wait for others; or the driver says
        that what was under way has failed.
    """

    def __init__(self, device: int = 0) -> None:
        from cuda.bindings import driver

        self._api, self.device = driver, device
        self._event: dict[int, Any] = {}
        self._context: Any = None

    def join(self, streams: Collection[int]) -> list[int]:
        """Record an event on each, and have all others wait for it; wait on the host where that does not do."""
        mine = known(PER_THREAD)
        handles = {s: PER_THREAD if s == mine else s for s in streams if s >= 0 or s == mine}
        with self.current():
            self._refuse_captured(handles)
            gone, done = self._recorded(handles)
            left = [s for s in handles if s not in gone]
            done = done and len(handles) == len(streams)
            if not (done and all(self._waits(handles[a], b) for a in left for b in left if a != b)):
                self._synchronise()
        for stream in gone:
            self._drop(stream)
        return [*gone, *(s for s in streams if s not in handles)]

    def wait(self) -> None:
        """Wait for all of the device's context."""
        with self.current():
            self._synchronise()

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

    def born(self, stream: int) -> int:
        """Return the driver's number of a stream; 0 where it does not tell."""
        status, number = self._api.cuStreamGetId(stream)
        return 0 if status else int(number)

    def close(self) -> None:
        """Give the events and the hold on the context back."""
        for stream in [*self._event]:
            self._drop(stream)
        if self._context is not None:
            self._context = None
            self._api.cuDevicePrimaryCtxRelease(self.device)

    def _recorded(self, handles: dict[int, int]) -> tuple[list[int], bool]:
        """Record an event on each; return which streams are gone, and whether all others have one now."""
        api, done = self._api, True
        ended = (api.CUresult.CUDA_ERROR_INVALID_HANDLE, api.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED)
        gone = []
        for stream, handle in handles.items():
            event = self._event.get(stream)
            if event is None:
                status, event = api.cuEventCreate(api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
                if status:
                    done = False
                    continue
                self._event[stream] = event
            (status,) = api.cuEventRecord(event, handle)
            if status in ended:
                gone.append(stream)
            done = done and not status
        return gone, done

    def _waits(self, handle: int, other: int) -> bool:
        """Have a stream wait for another one's event; return whether it will."""
        return not self._api.cuStreamWaitEvent(handle, self._event[other], 0)[0]

    def _refuse_captured(self, handles: dict[int, int]) -> None:
        idle = self._api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        implicit = self._api.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        for handle in handles.values():
            status, found = self._api.cuStreamIsCapturing(handle)
            if status == implicit or (not status and found != idle):
                told = f"stream {handle:#x} is being captured into a graph, and memory changes hands between streams"
                raise RuntimeError(f"{told}: ask for what a graph needs before, or on that stream alone")

    def _synchronise(self) -> None:
        (status,) = self._api.cuCtxSynchronize()
        if status:
            raise RuntimeError(f"device {self.device}: what was under way has failed: {status.name}")

    def _drop(self, stream: int) -> None:
        if (event := self._event.pop(stream, None)) is not None:
            self._api.cuEventDestroy(event)
