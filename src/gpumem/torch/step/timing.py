"""How long ops take: on a GPU by events around each, read when the iteration has ended; on the host by its clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns, thread_time_ns
from typing import Any, Protocol

from gpumem.torch.internals import torch


class _Event(Protocol):
    """A point of a stream, as `torch.cuda.Event`."""

    def record(self) -> None:
        """Stand behind all work that was enqueued on the current stream so far."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from here to another event, once the device has passed both."""


class Timed(Protocol):
    """Runs ops, and may know how long they took."""

    def __call__(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op; return what it returns."""

    def read(self) -> list[int]:
        """Return the nanoseconds of each op since the last time, or nothing."""


class Stopwatch:
    """Runs ops between two events of the current stream, and waits for the device only when it is read.

    The time of an op is from the moment when its stream comes to it to the moment when it is done. What lies between
    two ops is in neither: not the recorder's own time, nor the script's. While the device is ahead of the host, an op
    begins when it is launched, so one that is shorter than its launch (some microseconds) is measured as that long.
    """

    def __init__(self, event: Callable[[], _Event], wait: Callable[[], object]) -> None:
        self.event, self.wait = event, wait
        self._pairs: list[tuple[_Event, _Event]] = []
        self._spare: list[tuple[_Event, _Event]] = []

    def __call__(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op; return what it returns."""
        begin, end = self._spare.pop() if self._spare else (self.event(), self.event())
        begin.record()
        result = func(*args, **kwargs)
        end.record()
        self._pairs.append((begin, end))
        return result

    def read(self) -> list[int]:
        """Wait for the device; return the nanoseconds of each op since the last time."""
        self.wait()
        ns = [round(begin.elapsed_time(end) * 1e6) for begin, end in self._pairs]
        self._spare += self._pairs
        self._pairs = []
        return ns


class HostStopwatch:
    """Runs ops of the host, which are done when they return; `clock` tells the time in ns.

    Of one thread its own time counts, which nobody else on the machine has a part in.
    """

    def __init__(self) -> None:
        self.clock = thread_time_ns if torch.get_num_threads() == 1 else perf_counter_ns
        self._ns: list[int] = []

    def __call__(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op; return what it returns."""
        clock = self.clock
        begin = clock()
        result = func(*args, **kwargs)
        self._ns.append(clock() - begin)
        return result

    def read(self) -> list[int]:
        """Return the nanoseconds of each op since the last time."""
        ns, self._ns = self._ns, []
        return ns


def stopwatch(device: str, *, host: bool = False) -> Timed | None:
    """A stopwatch for a GPU, or for the `host` where asked for: mostly the host's times are of no use to a plan."""
    if device == "cpu" and host:
        return HostStopwatch()
    if device != "cuda":
        return None
    return Stopwatch(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)
