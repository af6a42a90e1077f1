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


@dataclass(slots=True)
class _Token:
    """An op that was issued: the stream it is on, its events where it has some, whether it went into a graph."""

    op: int
    stream: Any
    start: Any = None
    end: Any = None
    captured: bool = False


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
        self.clocks: list[Any] = []  # timing events, used again in every run

    def begin(self, works: Sequence[Work], iterations: int) -> None:
        """Let an earlier run end, and create the events that this one needs."""
        self._drain()
        if not self.signals:
            self.signals = {work.op: self._event() for work in works if work.signals}
        self.taken = 0
        last = set({work.stream: work.op for work in works}.values())
        timed = [work.op for work in works] if self.timing else sorted(last)
        eager = min(iterations, 1) if self.graph else iterations
        self.ends = [{op: self._clock() for op in timed} for _ in range(eager)]
        self.starts = [{op: self._clock() for op in timed if self.timing} for _ in range(eager)]
        self.replays = [self._clock() for _ in range(iterations if self.graph else 0)]
        self.k = -1
        self.origin = self._clock()
        self.streams[0].record(self.origin)

    def _event(self, *, timed: bool = False) -> Any:
        return self._keep(self.device.create_event(EventOptions(timing_enabled=timed)))

    def _clock(self) -> Any:
        """The next timing event that this run has not taken yet."""
        if self.taken == len(self.clocks):
            self.clocks.append(self._event(timed=True))
        self.taken += 1
        return self.clocks[self.taken - 1]

    def iteration(self, issue: Callable[[], list[Token]]) -> list[Token]:
        """Issue an iteration, or replay the graph of one."""
        self.k += 1
        if not self.graph or not self.warm:
            self.warm = True
            return issue()
        if self.executable is None:
            self._join()
            self.executable = self._keep(self._capture(issue))
        self.executable.launch(self.streams[0])
        self.streams[0].record(self.replays[self.k])
        return [_Token(UNKNOWN, self.streams[0], end=self.replays[self.k])] * self.ops

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
            for stream in self.streams[1:]:
                stream.wait(self.streams[0])
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
            if token.captured == self.capturing:  # a graph comes after everything before it anyway
                stream.wait(token.end)
        start = end = None
        if not self.capturing:
            start, end = self.starts[self.k].get(work.op), self.ends[self.k].get(work.op)
        if start is not None:
            stream.record(start)
        if work.call is not None:
            work.call(stream)
        end = self.signals.get(work.op) if end is None else end
        if end is not None:
            stream.record(end)
        return _Token(work.op, stream, start, end, self.capturing)

    def wait(self, token: Token) -> Span:
        """Wait on the host for an op; its times are -1 where no timing event was recorded."""
        (token.stream if token.end is None else token.end).sync()
        return Span(token.op, self._ns(token.start), self._ns(token.end))

    def _ns(self, event: Any) -> int:
        """When a timing event was reached, in ns since the run began."""
        return round((event - self.origin) * 1e6) if event is not None and event.is_timing_enabled else UNKNOWN
