"""What is written down of a program until two iterations are alike.

Where an iteration ends, a program may tell (boundaries, of which one iteration may have several); else it is looked for
in what repeats.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Generic, NamedTuple

from gpumem.runtime.residency.environment import RunOp
from gpumem.runtime.residency.limited_memory import R
from gpumem.trace import Trace
from gpumem.trace.record.period import BlockEvent, Detector
from gpumem.trace.record.recorder import Recorder

SEGMENTS = 8  # boundaries that one iteration may have within it: some optimizers take turns; not tuned
TRIES = 24  # boundaries in a row without two alike iterations, before the recording is begun afresh: SEGMENTS thrice
HORIZON = 2**17  # recorded ops at most: two iterations of twice the largest trace that we have seen (32,263 ops)


class Alike(NamedTuple):
    """Two iterations that are alike, each as its ops `[lo, hi)`; and the boundaries within the last one."""

    bounds: list[tuple[int, int]]
    marks: frozenset[int] = frozenset()


class _Segment(NamedTuple):
    """Ops `[lo, hi)` between two boundaries; `code` tells what they look like."""

    code: int
    lo: int
    hi: int


class _Repeats:
    """Looks for a period among the events of blocks, and what ops look like.

    A *mark*, a block as large as the op's key is a number, comes and goes before each op. Else ops that differ by name
    alone would repeat.
    """

    def __init__(self, recorder: Recorder, min_length: int) -> None:
        self._recorder, self._detector = recorder, Detector(min_length=min_length)
        self._pushed = 0  # events of the recorder
        self._marked: list[int] = []  # of each op: the detector's event that its mark is
        self._events = 0  # of the detector

    def look(self, keys: list[int]) -> Alike | None:
        """Look for two iterations in what happened since the last time."""
        events = self._recorder.events_since(self._pushed)
        begins = self._recorder.begins_since(len(self._marked))
        for number, event in enumerate(events, self._pushed):
            while begins and begins[0] == number:
                begins.pop(0)
                if alike := self._mark(keys):
                    return alike
            if alike := self._push(BlockEvent(*event)):
                return alike
        self._pushed += len(events)
        return None

    def _mark(self, keys: list[int]) -> Alike | None:
        op, mark = len(self._marked), -2 - len(self._marked)
        self._marked.append(self._events)
        look = keys[op] % 2**40  # no sum of it overflows
        return self._push(BlockEvent("malloc", mark, look)) or self._push(BlockEvent("free", mark, look))

    def _push(self, event: BlockEvent) -> Alike | None:
        self._events += 1
        alike = self._detector.push(event)
        if alike is None:
            return None
        lo, middle, hi = (bisect_left(self._marked, at) for at in (alike.start, alike.start + alike.length, alike.end))
        return Alike([(lo, middle), (middle, hi)])


class IterationRecorder(Generic[R]):
    """How the recorded ops look and what they touched, and where two iterations are alike.

    Parameters
    ----------
    recorder : Recorder
        Writes down the ops themselves; an iteration recorder is called after that.
    repeats : bool
        Whether to look for what repeats, until a boundary is given.
    min_length : int
        Fewest events of what repeats.
    """

    def __init__(self, recorder: Recorder, repeats: bool, min_length: int) -> None:
        self.recorder = recorder
        self.keys: list[int] = []
        self.trail: list[list[R]] = []
        self._segments: list[_Segment] = []
        self._repeats = _Repeats(recorder, min_length) if repeats else None

    def begin(self) -> None:
        """An iteration may begin here."""

    def end(self) -> None:
        """An iteration may end here."""

    def close(self) -> None:
        """Nothing is recorded any more."""

    def before(self, call: RunOp[R]) -> Alike | None:
        """Look at an op that is about to run; return two iterations that end before it."""
        return None

    def note(self, call: RunOp[R]) -> Alike | None:
        """Note an op that was recorded; return two iterations that are alike once there are any."""
        self.keys.append(call.key)
        self.trail.append(call.touched)
        if self._repeats is None or self._segments:
            return None
        alike = self._repeats.look(self.keys)
        if alike is None:
            return None
        self._repeats = None  # a detector reports a period once
        lo, hi = alike.bounds[-1]
        if hi == len(self.keys) - 1 and self.keys[hi] == self.keys[lo]:  # it ends with a release before this op
            return Alike([(begin + 1, end + 1) for begin, end in alike.bounds])
        return alike

    def boundary(self) -> Alike | None:
        """An iteration may end after the last op; return two that are alike, of which the second ends so."""
        segments, hi = self._segments, len(self.keys)
        lo = segments[-1].hi if segments else 0
        if hi == lo:
            return None
        segments.append(_Segment(hash(tuple(self.keys[lo:hi])), lo, hi))
        codes = [segment.code for segment in segments]
        for period in range(1, SEGMENTS + 1):
            if len(codes) >= 2 * period and codes[-period:] == codes[-2 * period : -period]:
                bounds = [(segments[first].lo, segments[first + period - 1].hi) for first in (-2 * period, -period)]
                return Alike(bounds, frozenset(segment.hi - bounds[1][0] for segment in segments[-period:-1]))
        return None

    @property
    def full(self) -> bool:
        """Whether to begin afresh: the one bound on a recording."""
        return len(self.keys) >= HORIZON or len(self._segments) >= TRIES

    @property
    def knows_boundaries(self) -> bool:
        """Whether boundaries were given."""
        return bool(self._segments)

    def trace(self, alike: Alike) -> Trace:
        """Return the last of two iterations; ValueError where they are none."""
        raise NotImplementedError
