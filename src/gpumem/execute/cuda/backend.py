"""The running half of the CUDA backend: streams, events, graphs.

An event is recorded only after an op that another stream waits for, and waited for only where `hazards` says so. Inside
an iteration nothing is allocated and the host waits for nothing; between two it does where it is far ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from cuda.core import EventOptions

from gpumem.base.errors import ExecutionError
from gpumem.execute.backend import Token, Work
from gpumem.execute.cuda.memory import CudaMemory, DeviceArray, for_numba
from gpumem.execute.cuda.nvtx import ranged
from gpumem.execute.cuda.timing import Clocks, Gate
from gpumem.execute.layout import Block, Layout
from gpumem.simulator.timeline import Span
from gpumem.trace import UNKNOWN

TURNS = 64  # iterations whose ends are timed and that may be under way at once. Not tuned
TIMED_TURNS = 2  # the same where every op is timed: two events an op and iteration


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
        Where the host slab comes from, by default the driver itself; page-locked memory only.
    ranges : bool
        Put NVTX ranges around what is issued, for a profiler: each op's name, each copy's bytes. Needs `nvtx`. Of a
        graph there are those of its capture.

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
        ranges: bool = False,
    ) -> None:
        if timing and graph:
            raise ValueError("Cuda: the ops of a graph cannot be timed one by one; choose timing or graph")
        self.timing, self.graph = timing, graph
        self.timing_lock = Lock()
        if ranges:
            self.submit = ranged(self.submit)  # type: ignore[assignment, method-assign]  # others pay nothing for it
        super().__init__(device, array, pinned)

    def open(self, layout: Layout) -> None:
        """Create the streams and take both slabs; what an earlier program had and this one cannot use goes first."""
        super().open(layout)
        self.ops = len(layout.trace.ops)
        self.executable: Any = None
        self.warm = self.capturing = False
        self.origin: Any = None
        self.gate: Gate | None = None
        self.signals: dict[int, Any] = {}
        self.clocks = Clocks(partial(self._event, timed=True))
        self.sleeps = False

    def begin(self, works: Sequence[Work], iterations: int) -> None:
        """Let an earlier run end, and create the events that this one needs."""
        self._drain()
        if self.origin is None:
            self.sleeps = any(work.waited for work in works)
            self.signals = {work.op: self._event() for work in works if work.signals}
            self.gate = self._gate() if self.timing else None
            self.origin = self._event(timed=True)
        self.names = {work.op: work.name for work in works}
        self.timed = (
            {work.op for work in works} if self.timing else set({work.stream: work.op for work in works}.values())
        )
        self.clocks.begin(len(self.timed) * (1 + self.timing), min(iterations, TIMED_TURNS if self.timing else TURNS))
        self.streams[0].record(self.origin)

    def _event(self, *, timed: bool = False) -> Any:
        """A new event; a thread that waits for it spins, which is quick, or sleeps, which leaves the core to others."""
        return self._keep(self.device.create_event(EventOptions(timing_enabled=timed, blocking_sync=self.sleeps)))

    def _gate(self) -> Gate | None:
        gate = Gate(self._slab("gate", 4), self.streams)
        return gate if gate.works() else None

    def iteration(self, issue: Callable[[], list[Token]]) -> list[Token]:
        """Issue an iteration, or replay the graph of one."""
        self.clocks.turn(self._wait_for_iteration)
        if not self.graph or not self.warm:
            tokens, self.warm = self._issued(issue), True
            return tokens
        if self.executable is None:
            self._join()
            self.executable = self._keep(self._capture(issue))
        self.executable.launch(self.streams[0])
        token = _Token(UNKNOWN, self.streams[0], end=self.clocks.take())
        self.clocks.out.append(token)
        self.streams[0].record(token.end)
        return [token] * self.ops

    def part(self, issue: Callable[[], list[Token]]) -> list[Token]:
        """Issue ops; where there is a graph, which is on the first stream, behind it and before its next launch."""
        self.clocks.turn(self._wait_for_iteration)
        if not self.graph:
            return self._issued(issue)
        self._fork()
        tokens = issue()
        self._join()
        return tokens

    def _issued(self, issue: Callable[[], list[Token]]) -> list[Token]:
        """Issue ops, where each is timed from behind a gate, once all have been launched.

        What a first launch loads may wait for the whole device, and behind a gate that is for ever.
        """
        with self.gate.held() if self.gate is not None and self.warm else nullcontext():
            return issue()

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
        signals = self.signals
        captured = {op: self._event() for op in signals}  # which nobody outside the graph can wait for
        builder = self.streams[0].create_graph_builder()
        self.capturing, self.signals = True, captured
        try:
            builder.begin_building()
            self._fork()
            issue()
            self._join()
            builder.end_building()
            return builder.complete()
        except BaseException:
            for end in (self._join, builder.end_building):  # a capture that is not joined cannot be ended
                with suppress(Exception):
                    end()
            raise
        finally:
            self.capturing, self.signals = False, signals
            with suppress(Exception):  # an earlier failure is the one to raise
                builder.close()

    def submit(self, work: Work, reads: Sequence[Block], writes: Sequence[Block], after: Sequence[Token]) -> Token:
        """Put the waits, the op and its event on the op's stream."""
        if self.gate is not None:
            self.gate.op()
        stream = self.streams[work.stream]
        for token in after:
            if token.span is None and token.captured == self.capturing:  # a graph comes after all before it anyway
                stream.wait(token.end)
        start, end = None, self.signals.get(work.op)
        if work.op in self.timed and not self.capturing:
            end = self.clocks.take()
            if self.timing:
                start = self.clocks.take()
                stream.record(start)
        if work.call is not None:
            work.call(stream)
        if end is not None:
            stream.record(end)
        token = _Token(work.op, stream, start, end, self.capturing)
        if work.op in self.timed and not self.capturing:
            self.clocks.out.append(token)
        return token

    def wait(self, token: Token) -> Span:
        """Wait on the host for an op; its times are -1 where no timing event was recorded."""
        if token.span is None:
            (token.stream if token.end is None else token.end).sync()
            with self.timing_lock:  # by one of all who wait for it: its events are others' then
                if token.span is None:
                    token.span = self._span(token)
                    if token.end is not None and token.end.is_timing_enabled:
                        self.clocks.give(token.start, token.end)
        span: Span = token.span
        return span

    def _wait_for_iteration(self, token: _Token) -> None:
        """Wait for an op of an earlier iteration, and say which it was if it failed."""
        try:
            self.wait(token)
        except Exception as error:
            op = max(token.op, 0)  # of a graph nobody knows
            raise ExecutionError(op, self.names[op], f"did not end, it or an op before it: {error}") from error

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
