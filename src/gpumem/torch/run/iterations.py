"""The course of a run: iterations recorded, found alike, planned for, and run under the plan."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gpumem.live.follow import LOST
from gpumem.live.hints import Hints
from gpumem.live.planning import Planning
from gpumem.live.report import IDLE, ON_DEMAND, PLANNED, RECORDED, Iteration
from gpumem.period import BlockEvent, Detector
from gpumem.swap.plan import Plan
from gpumem.torch.captured import cut
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.follow import Remaker
from gpumem.torch.run.memory import Memory
from gpumem.torch.watch import Watch
from gpumem.torch.workload import WorkloadError
from gpumem.trace import Trace

KEPT = 1000  # rows of a report
SEGMENTS = 8  # boundaries that one iteration may have within it
TRIES = 24  # iterations recorded before the recorder begins with an empty book
PATIENCE = 3  # iterations in a row that left the plan, before another is made


class Segment(NamedTuple):
    """Ops `[lo, hi)` of a recording, between two boundaries; `code` tells what they look like."""

    code: int
    lo: int
    hi: int


class Book:
    """What is known of a recording: how its ops look, what they touched, and the boundaries in it."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.trail: list[list[Cell]] = []
        self.segments: list[Segment] = []
        self._detector = Detector()
        self._pushed = 0

    def close(self, hi: int) -> bool:
        """End a segment before op `hi`; return whether there are ops in it."""
        lo = self.segments[-1].hi if self.segments else 0
        if hi > lo:
            self.segments.append(Segment(hash(tuple(self.keys[lo:hi])), lo, hi))
        return hi > lo

    def period(self) -> int:
        """How many of the last segments make an iteration that was there twice; 0 if none do."""
        codes = [segment.code for segment in self.segments]
        for p in range(1, SEGMENTS + 1):
            if len(codes) >= 2 * p and codes[-p:] == codes[-2 * p : -p]:
                return p
        return 0

    def look(self, watch: Watch) -> tuple[list[tuple[int, int]], set[int]] | None:
        """Look for two iterations in what happened since the last time; return the ops of both, and no marks."""
        events = watch.recorder.events_since(self._pushed)
        self._pushed += len(events)
        for event in events:
            found = self._detector.push(BlockEvent(*event))
            if found is not None:
                ops = watch.recorder.ops_between
                middle = found.start + found.length
                return [ops(found.start, middle), ops(middle, found.end)], set()
        return None


class Course:
    """Which iterations there were, and what is known of those to come.

    Parameters
    ----------
    memory : Memory
    recorder : callable
        Makes a recorder that has seen nothing.
    settled : callable
        Told of an iteration that was there twice; returns what will plan for it, None where it fits as it is, or why it
        is to be recorded anew.
    lasts : callable
        Told after a recorded iteration how many bytes were alive all the time.
    wait : bool
        Whether a run waits for its plan.

    `detects`: whether an iteration that nobody tells of is looked for in what repeats.
    """

    def __init__(
        self,
        memory: Memory,
        recorder: Callable[[], Watch],
        settled: Callable[[Trace], Planning | str | None],
        lasts: Callable[[int], None],
        wait: bool,
    ) -> None:
        self.memory, self.recorder, self.settled, self.lasts, self.wait = memory, recorder, settled, lasts, wait
        self.detects = True
        self.watch: Watch | None = None
        self.follower: Remaker | None = None
        self.hints: Hints | None = None
        self.job: Planning | None = None
        self.rows: deque[Iteration] = deque(maxlen=KEPT)
        self.notes: list[str] = []
        self.marks: set[int] = set()  # boundaries within an iteration that is followed
        self.book = Book()
        self.ops = self.strayed = 0
        self.given_up = False
        self.began = time.perf_counter()

    # begin, pause, end

    def start(self) -> None:
        """Begin, or go on after a pause, where an iteration begins."""
        self.began = time.perf_counter()
        self.memory.begin()
        if self.watch is not None:
            self.watch.begin()
        elif self.follower is None and not self.given_up:
            self.record()

    def pause(self) -> None:
        """The run is left; a plan under way is there when it is entered again."""
        if self.watch is not None:
            self.watch.end()
        if self.follower is not None and self.follower.i:
            self.follower.restart()
        self.ops = 0

    def record(self) -> None:
        """Begin to record."""
        self.follower, self.job, self.book = None, None, Book()
        self.watch = self.recorder()
        self.watch.begin()

    def unrecordable(self, why: str) -> None:
        """Go on without a recorder, and so without a plan."""
        self.watch, self.given_up = None, True
        self.notes.append(f"runs on demand, as it cannot be recorded: {why}")

    def follow(self, trace: Trace, plan: Plan) -> None:
        """Follow a plan from the next op on, which is taken for the first."""
        self.watch = None
        self.hints = Hints.of(trace, plan)
        self.follower = Remaker(self.memory, self.hints)

    # boundaries

    def seen(self, key: int, touched: list[Cell]) -> None:
        """Note an op that was recorded."""
        self.book.keys.append(key)
        self.book.trail.append(touched)
        if self.detects and not self.book.segments and self.watch is not None:
            found = self.book.look(self.watch)
            if found is not None:
                self.watch.end()
                self.ended(RECORDED)
                self._alike(self.watch, *found)

    def boundary(self, sure: bool) -> None:
        """An iteration may end here; it does where that is `sure`, unless one ended right before."""
        if not self.ops:
            return
        if self.watch is not None:
            self._recorded(self.watch)
        elif self.follower is None:
            self.ended(ON_DEMAND)
        elif self.follower.i == LOST or (self.follower.i not in self.marks and (sure or self.marks)):
            n = self.follower.hints.n
            self.follower.deviation = self.follower.deviation or f"it ended after {self.follower.i} of {n} ops"
            self.ended(ON_DEMAND)

    def ended(self, state: str) -> None:
        """An iteration is over."""
        memory, follower = self.memory, self.follower
        memory.bury()
        deviation = "" if follower is None else follower.deviation
        c, now = memory.counts, time.perf_counter()
        counts = (c.out, c.back, c.again, c.misses, c.evictions)
        state = ON_DEMAND if deviation else state
        number = self.rows[-1].number + 1 if self.rows else 0
        self.rows.append(Iteration(number, state, self.ops, memory.peak, *counts, deviation, now - self.began))
        self.ops, self.began = 0, now
        memory.begin()
        if follower is not None:
            follower.deviation = ""
            self.strayed = self.strayed + 1 if deviation else 0
            trail = follower.trail if follower.i == 0 and len(follower.trail) == follower.hints.n else None
            if trail is None:
                follower.restart()
            if self.job is not None:
                self._planned(trail)
            if self.strayed >= PATIENCE:
                self.strayed = 0
                self.record()

    def state(self) -> str:
        """What an iteration is called that was followed to its end."""
        if self.hints is not None and self.hints.plan.decisions:
            return PLANNED
        return IDLE if self.hints is not None and self.hints.trace.peak_load <= self.memory.limit else ON_DEMAND

    def _recorded(self, watch: Watch) -> None:
        hi = watch.end()
        self.memory.bury()
        least = self.memory.least
        self.ended(RECORDED)
        self.lasts(least)
        if self.book.close(hi) and (p := self.book.period()):
            segments = self.book.segments
            bounds = [(segments[k].lo, segments[k + p - 1].hi) for k in (-2 * p, -p)]
            self._alike(watch, bounds, {s.hi - bounds[1][0] for s in segments[-p:-1]})
        elif len(self.book.segments) >= TRIES:
            self.record()
        else:
            watch.begin()

    def _alike(self, watch: Watch, bounds: list[tuple[int, int]], marks: set[int]) -> None:
        """Two iterations are alike: plan for them."""
        lo, hi = bounds[-1]
        try:
            trace = cut(watch, bounds, "step").trace
        except (WorkloadError, ValueError) as error:
            if len(self.book.segments) >= TRIES:
                self.unrecordable(str(error))
            else:
                watch.begin()
            return
        settled, trail = self.settled(trace), self.book.trail[lo:hi]
        if isinstance(settled, str):
            self.notes.append(f"recorded anew: {settled}")
            self.record()
            return
        now = len(self.book.trail) == hi  # else it ended some ops ago, and the next one is to be found
        self.marks, self.job = marks, settled
        self.follow(trace, Plan.of(trace))
        if not now and self.follower is not None:
            self.follower.i = LOST
        if self.job is None:
            return
        self.job.start()
        if self.wait:
            self.job.stop()
            self.began = time.perf_counter()  # no iteration's time
            if now:
                self._planned(trail)

    def _planned(self, trail: list[list[Cell]] | None) -> None:
        """Switch to the plan, if it is there and this is a place to begin with it."""
        job = self.job
        if job is None or not job.done or trail is None:
            return
        self.job = None
        self.notes += job.notes
        if job.best is None:
            return
        self.follow(job.trace, job.best)
        assert self.follower is not None
        self.follower.switch(trail)
        self.memory.begin()
