"""What a device of blocks writes down of its program, and how long the ops took."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpumem.runtime.residency.environment import LiveBlock, RunOp
from gpumem.runtime.residency.iteration_recorder import Alike, IterationRecorder
from gpumem.trace import UNKNOWN, Trace
from gpumem.trace.lifetimes import without_idle
from gpumem.trace.record.input_writes import PatternStream
from gpumem.trace.record.recorder import Exec, Recorder

PERIOD, WRITES = "period", "writes"
TIMERS = 512  # of ops that may be under way: the host is rarely further ahead. Not tuned


class OpTimes:
    """How long recorded ops took, in ns; of the last ones the timers, which are read when there are many."""

    def __init__(self, lasted: Callable[[Any], int]) -> None:
        self._lasted = lasted
        self._known: dict[int, int] = {}
        self._timers: deque[tuple[int, Any]] = deque()

    def add(self, op: int, timer: Any) -> None:
        """Note what an op is timed by."""
        self._timers.append((op, timer))
        if len(self._timers) > TIMERS:
            self._read_one()

    def forget(self) -> None:
        """Begin afresh. What was timed so far is read some day, so that its timers serve again."""
        self._known = {}
        self._timers = deque((UNKNOWN, timer) for _, timer in self._timers)

    def read(self) -> dict[int, int]:
        """Wait for all, and return them."""
        while self._timers:
            self._read_one()
        return self._known

    def _read_one(self) -> None:
        op, timer = self._timers.popleft()
        self._known[op] = self._lasted(timer)


@dataclass(slots=True)
class BlockCall:
    """An op on blocks: `is_input` where it writes the program's own bytes."""

    op: Exec
    key: int
    touched: list[LiveBlock]
    is_input: bool
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.op.name


class BlockIterations(IterationRecorder[LiveBlock]):
    """A recording of the ops since some moment, on the blocks that there are then.

    Parameters
    ----------
    blocks : iterable of LiveBlock
    detect : str
        `period` or `writes`.
    min_length : int
        Fewest events of an iteration, for `period`.
    times : OpTimes
        How long its ops took.
    """

    def __init__(self, blocks: Iterable[LiveBlock], detect: str, min_length: int, times: OpTimes) -> None:
        super().__init__(Recorder(), detect == PERIOD, min_length)
        self._ids: dict[int, int] = {}
        self.times = times
        times.forget()
        self._writes = PatternStream() if detect == WRITES else None
        for block in blocks:
            if block.version:
                self._malloc(block)

    def _malloc(self, block: LiveBlock) -> None:
        """Note an allocation, which is when an op first touches the block: it takes no memory before that."""
        self._ids[block.number] = self.recorder.malloc(
            block.size, kind=block.kind, shape=block.shape, dtype=block.dtype
        )

    def free(self, block: LiveBlock) -> None:
        """Note a release."""
        if block.number in self._ids:
            self.recorder.free(self._ids.pop(block.number))

    def before(self, call: RunOp[LiveBlock]) -> Alike | None:
        """Look for two iterations that end where the program is about to write an input."""
        assert isinstance(call, BlockCall)
        repeated = self._writes.at_write() if self._writes is not None and call.is_input else None
        if repeated is None:
            return None
        middle = repeated.start + repeated.length
        return Alike([(repeated.start, middle), (middle, middle + repeated.length)])

    def record(self, call: BlockCall, timer: Any) -> None:
        """Write down an op that was begun, and what it is timed by."""
        ids, op = self._ids, call.op
        for block in call.touched:
            if block.number not in ids:
                self._malloc(block)
        if timer is not None:
            self.times.add(len(self.keys), timer)
        self.recorder.append(op._replace(reads=[ids[b] for b in op.reads], writes=[ids[b] for b in op.writes]))
        if self._writes is not None:
            self._writes.push((op.name, tuple(op.reads), tuple(op.writes)), call.is_input)

    def trace(self, alike: Alike) -> Trace:
        """Return the last of two iterations, whose ops take as long as those that were timed did."""
        lo, hi = alike.bounds[-1]
        trace, times = self.recorder.trace(lo, hi, name="program"), self.times.read()
        duration = [times.get(lo + i, ns) for i, ns in enumerate(trace.ops.duration.tolist())]
        return without_idle(replace(trace, ops=replace(trace.ops, duration=np.array(duration, np.int64))))
