"""What a device writes down of its program until two iterations are alike, and how long the ops took."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpumem.runtime.residency.environment import LiveBlock
from gpumem.trace import UNKNOWN, Trace
from gpumem.trace.record.input_writes import PatternStream
from gpumem.trace.record.period import BlockEvent, Detector
from gpumem.trace.record.recorder import Exec, Recorder

PERIOD, WRITES = "period", "writes"
TIMERS = 512  # of ops that may be under way


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


class Notebook:
    """A recording of the ops since some moment: how they look, what they touched, and when two iterations are alike.

    Parameters
    ----------
    blocks : sequence of LiveBlock
        Those that there are.
    first : int
        How many steps the learner has had since its last row.
    detect : str
        `period` or `writes`.
    min_length : int
        Fewest events of an iteration, for `period`.
    times : OpTimes
        How long its ops took.
    """

    def __init__(self, blocks: Sequence[LiveBlock], first: int, detect: str, min_length: int, times: OpTimes) -> None:
        self.first, self.detect = first, detect
        self.recorder = Recorder()
        self.ids: dict[int, int] = {}
        self.keys: list[int] = []
        self.trail: list[list[LiveBlock]] = []
        self.times = times
        self._detector = Detector(min_length=min_length)
        self._pushed = 0
        self._stream = PatternStream()
        self._is_input = False
        for block in blocks:
            if not block.void:
                self._malloc(block)

    def _malloc(self, block: LiveBlock) -> None:
        """Note an allocation, which is when an op first touches the block: it takes no memory before that."""
        self.ids[block.number] = self.recorder.malloc(block.size, kind=block.kind, shape=block.shape, dtype=block.dtype)

    def free(self, block: LiveBlock) -> None:
        """Note a release."""
        if block.number in self.ids:
            self.recorder.free(self.ids.pop(block.number))

    def before(self, is_input: bool) -> list[tuple[int, int]] | None:
        """Look for two iterations that end where the program is about to write an input; return the ops of both."""
        self._is_input = is_input  # the op may fail, and another come for it
        found = self._stream.at_write() if is_input and self.detect == WRITES else None
        if found is None:
            return None
        middle = found.start + found.length
        return [(found.start, middle), (middle, middle + found.length)]

    def note(self, op: Exec, key: int, touched: list[LiveBlock]) -> list[tuple[int, int]] | None:
        """Note an op; return the ops of two iterations that are alike once there are any, which end with it."""
        ids = self.ids
        for block in touched:
            if block.number not in ids:
                self._malloc(block)
        self.recorder.append(op._replace(reads=[ids[b] for b in op.reads], writes=[ids[b] for b in op.writes]))
        self.keys.append(key)
        self.trail.append(touched)
        if self.detect == WRITES:
            self._stream.push((op.name, tuple(op.reads), tuple(op.writes)), self._is_input)
            return None
        events = self.recorder.events_since(self._pushed)
        self._pushed += len(events)
        found = None
        for event in events:
            found = self._detector.push(BlockEvent(*event)) or found
        if found is None:
            return None
        ops, middle = self.recorder.ops_between, found.start + found.length
        alike = [ops(found.start, middle), ops(middle, found.end)]
        lo, hi = alike[-1]
        if hi < len(self.keys) and self.keys[hi] == self.keys[lo]:  # it ends with a release, or a block for this op
            return [(begin + 1, end + 1) for begin, end in alike]
        return alike


def timed(trace: Trace, lo: int, found: dict[int, int]) -> Trace:
    """Return a trace that begins with op `lo`, whose ops take as long as those that were timed did."""
    duration = [found.get(lo + i, ns) for i, ns in enumerate(trace.ops.duration.tolist())]
    return replace(trace, ops=replace(trace.ops, duration=np.array(duration, np.int64)))
