"""The course of a run: iterations recorded, found alike, planned for, and run under the plan."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.follower import LOST
from gpumem.runtime.residency.hints import LEAVE, Hints
from gpumem.runtime.residency.report import IDLE, ON_DEMAND, PLANNED, RECORDED, Iteration
from gpumem.swap.plan import Plan
from gpumem.torch.capture.captured import cut
from gpumem.torch.capture.recorder_mode import Begun, Watch
from gpumem.torch.internals import torch
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.recompute import Remaker
from gpumem.torch.step.observing import tolerable
from gpumem.torch.step.ops import Call
from gpumem.torch.step.workload import WorkloadError
from gpumem.trace import Trace
from gpumem.trace.record.period import BlockEvent, Detector

KEPT = 1000  # rows of a report
SEGMENTS = 8  # boundaries that one iteration may have within it
TRIES = 24  # iterations recorded before the recorder begins with an empty book
PATIENCE = 3  # iterations in a row that left the plan, before another is made
HORIZON = 2**17  # ops in which nothing repeats, before the recorder begins with an empty book; as a device's


class Segment(NamedTuple):
    """Ops `[lo, hi)` of a recording, between two boundaries; `code` tells what they look like."""

    code: int
    lo: int
    hi: int


class Book:
    """What is known of a recording: how its ops look, what they touched, and the boundaries in it.

    A period is looked for among the events of blocks, and what ops look like: a *mark*, a block as large as the op's
    key is a number, comes and goes before each. Else ops that differ by name alone would repeat.
    """

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.trail: list[list[Cell]] = []
        self.segments: list[Segment] = []
        self._detector = Detector()
        self._pushed = 0  # events of the recorder
        self._marked: list[int] = []  # of each op: the detector's event that its mark is
        self._events = 0  # of the detector

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
        begins = watch.recorder.begins_since(len(self._marked))
        for number, event in enumerate(events, self._pushed):
            while begins and begins[0] == number:
                begins.pop(0)
                if found := self._mark():
                    return found
            if found := self._push(BlockEvent(*event)):
                return found
        self._pushed += len(events)
        return None

    def _mark(self) -> tuple[list[tuple[int, int]], set[int]] | None:
        op, mark = len(self._marked), -2 - len(self._marked)
        self._marked.append(self._events)
        look = self.keys[op] % 2**40  # no sum of it overflows
        return self._push(BlockEvent("malloc", mark, look)) or self._push(BlockEvent("free", mark, look))

    def _push(self, event: BlockEvent) -> tuple[list[tuple[int, int]], set[int]] | None:
        self._events += 1
        found = self._detector.push(event)
        if found is None:
            return None
        lo, middle, hi = (bisect_left(self._marked, at) for at in (found.start, found.start + found.length, found.end))
        return [(lo, middle), (middle, hi)], set()


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
        self.failed = 0  # periods that were none
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
            self._observed(self.watch.end)
        if self.follower is not None and self.follower.i:
            self.follower.restart()
        self.ops = 0

    def record(self) -> None:
        """Begin to record."""
        if self.job is not None:
            self.job.give_up()
        self.follower, self.job, self.book = None, None, Book()
        self.watch = self.recorder()
        self._observed(self.watch.begin)

    def unrecordable(self, why: str) -> None:
        """Go on without a recorder, and so without a plan."""
        self.watch, self.given_up = None, True
        self.notes.append(f"runs on demand, as it cannot be recorded: {why}")

    def follow(self, trace: Trace, plan: Plan) -> None:
        """Follow a plan from the next op on, which is taken for the first."""
        self.watch = None
        self.hints = Hints.of(trace, plan)
        self.follower = Remaker(self.memory, self.hints)

    # what the recorder is told; where it fails, it is left out from then on

    def _observed(self, look: Callable[..., Any], *what: Any) -> Any:
        """Call what only observes; where it fails, go on without a recorder."""
        try:
            return look(*what)
        except Exception as error:
            if not tolerable(error):
                raise
            kind = "" if isinstance(error, WorkloadError) else f"{type(error).__name__}: "
            self.unrecordable(f"{kind}{error}")
            return None

    def begins(self, call: Call, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Begun | None:
        """An op is about to run that is to be recorded; None where it cannot be."""
        assert self.watch is not None
        begun: Begun | None = self._observed(self.watch.before, call, func, args, kwargs)
        return begun

    def ran(self, begun: Begun, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """It has run."""
        assert self.watch is not None
        self._observed(self.watch.after, begun, args, kwargs, result)

    def left(self, storages: list[torch.UntypedStorage]) -> None:
        """The end of a call is an op that reads what lasts."""
        assert self.watch is not None
        self._observed(self.watch.touched, LEAVE, storages)

    # boundaries

    def seen(self, key: int, touched: list[Cell]) -> None:
        """Note an op that was recorded."""
        self.book.keys.append(key)
        self.book.trail.append(touched)
        if self.detects and not self.book.segments and self.watch is not None:
            watch, found = self.watch, self._observed(self.book.look, self.watch)
            if found is not None:
                self._observed(watch.end)
                self.ended(RECORDED)
                self._alike(watch, *found)
            elif len(self.book.keys) >= HORIZON:
                self.record()

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
        hi = self._observed(watch.end)
        self.memory.bury()
        least = self.memory.least
        self.ended(RECORDED)
        self.lasts(least)
        if hi is None:
            return
        if self.book.close(hi) and (p := self.book.period()):
            segments = self.book.segments
            bounds = [(segments[k].lo, segments[k + p - 1].hi) for k in (-2 * p, -p)]
            self._alike(watch, bounds, {s.hi - bounds[1][0] for s in segments[-p:-1]})
        elif len(self.book.segments) >= TRIES:
            self.record()
        else:
            self._observed(watch.begin)

    def _alike(self, watch: Watch, bounds: list[tuple[int, int]], marks: set[int]) -> None:
        """Two iterations are alike: plan for them."""
        lo, hi = bounds[-1]
        try:
            trace = cut(watch, bounds, "step").trace
        except Exception as error:
            if not (isinstance(error, ValueError) or tolerable(error)):
                raise
            self._no_iteration(watch, str(error))
            return
        settled, trail = self._observed(self.settled, trace), self.book.trail[lo:hi]
        if self.given_up:
            return
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

    def _no_iteration(self, watch: Watch, why: str) -> None:
        """What repeated is no iteration: go on with the book where boundaries are told, else with an empty one.

        A detector reports a period once; what comes after it would go unseen.
        """
        self.failed += 1
        if self.failed >= TRIES:
            self.unrecordable(why)
        elif self.book.segments:
            self._observed(watch.begin)
        else:
            self.record()

    def _planned(self, trail: list[list[Cell]] | None) -> None:
        """Switch to a plan that is better, if it is there and this is a place to begin with it."""
        job = self.job
        if job is None or trail is None:
            return
        if job.done:
            self.notes += job.notes
            self.job = None
        if (news := job.news()) is None:
            return
        self.follow(*news)
        assert self.follower is not None
        self.follower.switch(trail)
        self.memory.begin()
