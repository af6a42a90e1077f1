"""The course of a run: iterations recorded, found alike, planned for, and run under the plan."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gpumem.swap.plan import Plan
from gpumem.torch.captured import cut
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.follow import LOST, Follower
from gpumem.torch.run.hints import Hints
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.planning import Planning
from gpumem.torch.run.report import IDLE, ON_DEMAND, PLANNED, RECORDED, Iteration
from gpumem.torch.watch import Watch
from gpumem.torch.workload import WorkloadError
from gpumem.trace import Trace

KEPT = 1000  # rows of a report
SEGMENTS = 8  # boundaries that one iteration may have within it
TRIES = 24  # iterations recorded before the recorder begins with an empty book
PATIENCE = 3  # iterations in a row that left the plan, before another is made


class Course:
    """Which iterations there were, and what is known of those to come.

    Parameters
    ----------
    memory : Memory
    recorder : callable
        Makes a recorder that has seen nothing.
    planning : callable
        What will plan for a trace; None where its iteration fits as it is.
    wait : bool
        Whether a run waits for its plan.
    """

    def __init__(
        self,
        memory: Memory,
        recorder: Callable[[], Watch],
        planning: Callable[[Trace], Planning | None],
        wait: bool,
    ) -> None:
        self.memory, self.recorder, self.planning, self.wait = memory, recorder, planning, wait
        self.watch: Watch | None = None
        self.follower: Follower | None = None
        self.job: Planning | None = None
        self.rows: deque[Iteration] = deque(maxlen=KEPT)
        self.notes: list[str] = []
        self.hints: Hints | None = None
        self.marks: set[int] = set()  # boundaries within an iteration that is followed
        self.segments: list[tuple[int, int, int]] = []  # of the recording: hash of the keys, ops [lo, hi)
        self.keys: list[int] = []
        self.trail: list[list[Cell]] = []
        self.ops = self.strayed = 0
        self.began = time.perf_counter()

    # recording

    def record(self) -> None:
        """Begin to record."""
        self.follower, self.job = None, None
        self.segments, self.keys, self.trail = [], [], []
        self.watch = self.recorder()
        self.watch.begin()

    def unrecordable(self, why: str) -> None:
        """Go on without a recorder, and so without a plan."""
        self.watch = None
        self.notes.append(f"not planned: {why}")

    def seen(self, key: int, touched: list[Cell]) -> None:
        """Note an op that was recorded."""
        self.keys.append(key)
        self.trail.append(touched)

    def follow(self, trace: Trace, plan: Plan) -> None:
        """Follow a plan from the next op on, which is taken for the first."""
        self.watch = None
        self.hints = Hints.of(trace, plan)
        self.follower = Follower(self.memory, self.hints)

    # boundaries

    def boundary(self, sure: bool) -> None:
        """An iteration may end here; it does where it is `sure`, unless one ended right before."""
        if not self.ops:
            return
        if self.watch is not None:
            self._recorded(self.watch)
        elif self.follower is None:
            self.ended(ON_DEMAND)
        elif self.follower.i == LOST or (self.follower.i not in self.marks and sure):
            why = self.follower.deviation or f"it ended after {self.follower.i} of {self.follower.hints.n} ops"
            self.follower.deviation = why
            self.ended(ON_DEMAND)

    def ended(self, state: str) -> None:
        """An iteration is over."""
        memory, follower = self.memory, self.follower
        memory.bury()
        deviation = "" if follower is None else follower.deviation
        c, now = memory.counts, time.perf_counter()
        self.rows.append(
            Iteration(
                state, self.ops, memory.peak, c.out, c.back, c.again, c.misses, c.evictions, deviation, now - self.began
            )
        )
        self.ops, self.began = 0, now
        memory.begin()
        if follower is not None:
            follower.deviation = ""
            trail = follower.trail if follower.i == 0 and len(follower.trail) == follower.hints.n else None
            if trail is None:
                follower.restart()
            self.strayed = self.strayed + 1 if deviation else 0
            if self.job is not None:
                self._planned(trail)
            elif self.strayed >= PATIENCE:
                self.strayed = 0
                self.record()

    def state(self) -> str:
        """What an iteration that was followed to its end is called."""
        if self.job is not None or self.hints is None:
            return ON_DEMAND
        return PLANNED if self.hints.plan.decisions else IDLE

    def _recorded(self, watch: Watch) -> None:
        lo, hi = (self.segments[-1][2] if self.segments else 0), watch.end()
        if hi == lo:
            watch.begin()
            return
        self.segments.append((hash(tuple(self.keys[lo:hi])), lo, hi))
        self.ended(RECORDED)
        p = self._period()
        if p:
            self._alike(watch, p)
        elif len(self.segments) >= TRIES:
            self.record()
        else:
            watch.begin()

    def _period(self) -> int:
        """How many of the last segments make an iteration that was there twice; 0 if none do."""
        codes = [code for code, _, _ in self.segments]
        for p in range(1, SEGMENTS + 1):
            if len(codes) >= 2 * p and codes[-p:] == codes[-2 * p : -p]:
                return p
        return 0

    def _alike(self, watch: Watch, p: int) -> None:
        """Two iterations of `p` segments are alike: plan for them."""
        bounds = [(self.segments[k][1], self.segments[k + p - 1][2]) for k in (-2 * p, -p)]
        lo, hi = bounds[-1]
        try:
            trace = cut(watch, bounds, "step").trace
        except (WorkloadError, ValueError) as error:
            if len(self.segments) >= TRIES:
                self.unrecordable(str(error))
            else:
                watch.begin()
            return
        self.marks = {end - lo for _, start, end in self.segments if lo < end < hi}
        trail = self.trail[lo:hi]
        self.follow(trace, Plan.of(trace))
        self.segments, self.keys, self.trail = [], [], []
        self.job = self.planning(trace)
        if self.job is None:
            return
        self.job.start()
        if self.wait:
            self.job.stop()
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
