"""The running half of the CUDA backend: streams, events, graphs.

An event is recorded only after an op that another stream waits for, and waited for only where `hazards`
says so. A running iteration allocates nothing, and the host waits for nothing before the end of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cuda.core import EventOptions

from gpumem.columns import UNKNOWN
from gpumem.execute.backend import Token, Work
from gpumem.execute.cuda.memory import CudaMemory, DeviceArray, for_numba
from gpumem.execute.layout import Block, Layout
from gpumem.timeline import Span

READY = 4096  # timing events that exist before a run, at most: a longer run makes more where it needs them


@dataclass(slots=True)
class _Token:
    """An op that was issued: the stream it is on, its events where it has some, whether it went into a graph.

    `span` is there once the host has waited for it: its timing events serve others from then on.
    """

    op: int
    stream: Any
    start: Any = None
    end: Any = None
    captured: bool = False
    span: Span | None = None


class Cuda(CudaMemory):
    """Runs programs on a GPU.

    Parameters
    ----------
    device : int
        Ordinal of the device.
    timing : bool
        Record two timing events around every op, so that the timeline shows each; else only when iterations end.
    graph : bool
        Run the first iteration op by op (it compiles and loads), capture the second into a CUDA graph, and
        replay that from then on. Replays follow one another, so what would overlap the boundary does not.
    array : callable
        What a `DeviceArray` is turned into for the launches, once for each view; by default a Numba array.
    pinned : MemoryResource, optional
        Where the host slab comes from; page-locked memory only.

    Raises
    ------
    MemoryError
        A slab does not fit; nothing stays allocated.
    ValueError
        Host memory that is pageable: copies from and to it would not be asynchronous.

    Notes
    -----
    A context manager. `close` waits for what is under way, then gives everything back, after failures too.

    One thread at a time may submit, while others wait. A thread that did not make the backend needs the device as its
    current one first: `cuda.core.Device(0).set_current()`, called in that thread.
    """

    def __init__(
        self,
        device: int = 0,
        *,
        timing: bool = False,
        graph: bool = False,
        array: Callable[[DeviceArray], Any] = for_numba,
        pinned: Any = None,
    ) -> None:
        if timing and graph:
            raise ValueError("Cuda: the ops of a graph cannot be timed one by one; choose timing or graph")
        self.timing, self.graph = timing, graph
        super().__init__(device, array, pinned)

    def open(self, layout: Layout) -> None:
        """Create the streams and take both slabs; what an earlier program had is given back first."""
        super().open(layout)
        self.ops = len(layout.trace.ops)
        self.executable: Any = None
        self.warm = self.capturing = False
        self.signals: dict[int, Any] = {}
        self.clocks: list[Any] = []  # timing events, used again as soon as the host has waited for them
        self.free: list[Any] = []

    def begin(self, works: Sequence[Work], iterations: int) -> None:
        """Let an earlier run end, and create the events that this one needs."""
        self._drain()
        if not self.signals:
            self.signals = {work.op: self._event() for work in works if work.signals}
        self.free = self.clocks.copy()
        self.timed = {work.op for work in works} if self.timing else set({w.stream: w.op for w in works}.values())
        needs = 1 + iterations + len(self.timed) if self.graph else 1 + iterations * len(self.timed) * (1 + self.timing)
        for _ in range(min(needs, READY) - len(self.clocks)):
            self.free.append(self._new_clock())
        self.origin = self._clock()
        self.streams[0].record(self.origin)

    def _event(self, *, timed: bool = False) -> Any:
        return self._keep(self.device.create_event(EventOptions(timing_enabled=timed)))

    def _new_clock(self) -> Any:
        self.clocks.append(self._event(timed=True))
        return self.clocks[-1]

    def _clock(self) -> Any:
        """A timing event that nobody uses."""
        return self.free.pop() if self.free else self._new_clock()

    def iteration(self, issue: Callable[[], list[Token]]) -> list[Token]:
        """Issue an iteration, or replay the graph of one."""
        if not self.graph or not self.warm:
            self.warm = True
            return issue()
        if self.executable is None:
            self._join()
            self.executable = self._keep(self._capture(issue))
        self.executable.launch(self.streams[0])
        end = self._clock()
        self.streams[0].record(end)
        return [_Token(UNKNOWN, self.streams[0], end=end)] * self.ops

    def part(self, issue: Callable[[], list[Token]]) -> list[Token]:
        """Issue ops; where there is a graph, which is on the first stream, behind it and before its next launch."""
        if not self.graph:
            return issue()
        self._fork()
        tokens = issue()
        self._join()
        return tokens

    def _fork(self) -> None:
        """Let all other streams wait for the first."""
        for stream in self.streams[1:]:
            stream.wait(self.streams[0])

    def _join(self) -> None:
        """Let the first stream wait for all others."""
        for stream in self.streams[1:]:
            self.streams[0].wait(stream)

    def _capture(self, issue: Callable[[], list[Token]]) -> Any:
        """Record one iteration as a graph: all streams fork from the first and join it again."""
        builder = self.streams[0].create_graph_builder()
        self.capturing = True
        try:
            builder.begin_building()
            self._fork()
            issue()
            self._join()
            builder.end_building()
            return builder.complete()
        except BaseException:
            with suppress(Exception):
                builder.end_building()
            raise
        finally:
            self.capturing = False
            builder.close()

    def submit(self, work: Work, reads: Sequence[Block], writes: Sequence[Block], after: Sequence[Token]) -> Token:
        """Put the waits, the op and its event on the op's stream."""
        stream = self.streams[work.stream]
        for token in after:
            if token.span is None and token.captured == self.capturing:  # a graph comes after all before it anyway
                stream.wait(token.end)
        start, end = None, self.signals.get(work.op)
        if work.op in self.timed and not self.capturing:
            end = self._clock()
            if self.timing:
                start = self._clock()
                stream.record(start)
        if work.call is not None:
            work.call(stream)
        if end is not None:
            stream.record(end)
        return _Token(work.op, stream, start, end, self.capturing)

    def wait(self, token: Token) -> Span:
        """Wait on the host for an op; its times are -1 where no timing event was recorded."""
        if token.span is None:
            (token.stream if token.end is None else token.end).sync()
            token.span = self._span(token)
            self.free += [e for e in (token.start, token.end) if e is not None and e.is_timing_enabled]
        span: Span = token.span
        return span

    def _span(self, token: Token) -> Span:
        """When it ran, in ns since the run began.

        The driver's differences are single precision, so that of a start and its end is asked for as well: since the
        beginning of a run of minutes would be exact to microseconds only.
        """
        if token.end is None or not token.end.is_timing_enabled:
            return Span(token.op, UNKNOWN, UNKNOWN)
        self.origin.sync()  # it may be on another stream, with nothing to order the two
        if token.start is None:
            return Span(token.op, UNKNOWN, _ns(token.end, self.origin))
        start = _ns(token.start, self.origin)
        return Span(token.op, start, start + _ns(token.end, token.start))


def _ns(event: Any, since: Any) -> int:
    return round(float(event - since) * 1e6)
