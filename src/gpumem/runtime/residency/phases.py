"""What a run does around its ops: it follows a plan, it brings what they need and no more, and it may record them.

::

    Recording ( OnDemand )                         nothing is known yet
        |  two iterations are alike
        v
    Following  --- an op is not as planned --->  OnDemand  --- PATIENCE iterations in a row ---> Recording ( OnDemand )
        ^                                           |
        +------ the plan's first ops came by -------+

Where recording is cheap (`RunLoop.eager`) it begins with the first op that is not as planned, around Following and
OnDemand, and ends when CALM iterations were as planned, or another iteration was found. A phase owns what it needs:
whoever leaves one drops its recorder, its iteration recorder and its planner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol

from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.environment import RunOp
from gpumem.runtime.residency.follower import LOST, Follower
from gpumem.runtime.residency.iteration_recorder import TRIES, Alike, IterationRecorder
from gpumem.runtime.residency.ledger import Ledger
from gpumem.runtime.residency.limited_memory import LimitedMemory, R
from gpumem.runtime.residency.observing import tolerable
from gpumem.runtime.residency.report import IDLE, ON_DEMAND, PLANNED, RECORDED
from gpumem.trace import Trace

PATIENCE = 3  # iterations in a row not as planned, before another plan: a last batch, an evaluation; not tuned
# Iterations in a row as planned, after which what is recorded beside them is given up: as many as would be alike.
CALM = 2


@dataclass(slots=True)
class FollowedPlan(Generic[R]):
    """A plan that is followed, or was left for now: where the run stands, and who may find a better one.

    `marks` are boundaries within the iteration; `strayed` counts iterations in a row that were not as planned, `calm`
    those that were.
    """

    follower: Follower[R]
    marks: frozenset[int] = frozenset()
    job: Planning | None = None
    strayed: int = 0
    calm: int = 0

    def drop(self) -> None:
        """Nobody wants a plan for it any more."""
        if self.job is not None:
            self.job.give_up()


class Loop(Protocol[R]):
    """What a phase asks of its run loop (`RunLoop`)."""

    memory: LimitedMemory[R]
    ledger: Ledger
    eager: bool
    knows_boundaries: bool  # whether the program gives them
    failed: int  # periods in a row that were none
    phase: Phase[R]

    def lasts(self, size: int) -> None:
        """So many bytes were alive all the time of a recorded iteration."""

    def tell(self, kind: str, why: str = "") -> None:
        """Tell a log."""

    def go(self, phase: Phase[R]) -> None:
        """Let another phase begin."""

    def enter(self, phase: FollowingPhase[R] | OnDemandPhase[R]) -> None:
        """Let another phase begin; what is recorded goes on being so."""

    def record(self) -> None:
        """Record, and forget the plan there was."""

    def record_beside(self) -> None:
        """Record beside the plan there is."""

    def new_iterations(self) -> IterationRecorder[R]:
        """Return an iteration recorder that begins here."""

    def give_up(self, why: str) -> None:
        """Record no more."""

    def plan_iteration(self, trace: Trace, alike: Alike, iterations: IterationRecorder[R], inner: Phase[R]) -> None:
        """Have an iteration planned for."""

    def switch(self, followed: FollowedPlan[R], trail: list[list[R]]) -> None:
        """Go over to a better plan, if it is there."""


class Phase(Generic[R]):
    """Around each op `before` and `after`; `boundary` where an iteration may end, `sure` if it does."""

    iterations: IterationRecorder[R] | None = None  # of the op that is under way, if it is recorded
    followed: FollowedPlan[R] | None = None

    def __init__(self, loop: Loop[R]) -> None:
        self.loop = loop

    @property
    def follower(self) -> Follower[R] | None:
        """Of the plan there is, followed or not."""
        return None if self.followed is None else self.followed.follower

    def before(self, call: RunOp[R]) -> int:
        """Do what is due before an op; return which one of the plan's it is, or `LOST`."""
        raise NotImplementedError

    def after(self, call: RunOp[R]) -> None:
        """Do what is due after it."""
        raise NotImplementedError

    def boundary(self, sure: bool) -> None:
        """An iteration may end after the last op; there is one at least since the last that did."""
        raise NotImplementedError

    def drop(self) -> None:
        """Whatever comes next, nothing of this is wanted."""
        if self.followed is not None:
            self.followed.drop()


class OnDemandPhase(Phase[R]):
    """Ops get what they touch. The plan that was left, if there is one, goes on where its first ops come by."""

    def __init__(self, loop: Loop[R], followed: FollowedPlan[R] | None = None) -> None:
        super().__init__(loop)
        self.followed = followed

    def before(self, call: RunOp[R]) -> int:
        """Look whether the plan's first ops came by."""
        followed = self.followed
        if followed is None or (op := followed.follower.before(call)) == LOST:
            return LOST
        self.loop.tell("resumed")
        self.loop.ledger.close(ON_DEMAND, followed.follower.deviation, but=op)
        followed.follower.deviation = ""
        self.loop.enter(FollowingPhase(self.loop, followed))
        return op

    def after(self, call: RunOp[R]) -> None:
        """Count the op; where no boundaries are told, an iteration is as long as the one that was planned."""
        ledger, followed = self.loop.ledger, self.followed
        ledger.ops += 1
        if followed is None:
            return
        ledger.step()
        followed.follower.after(call)
        if not self.loop.knows_boundaries and ledger.length >= followed.follower.hints.n:
            self._ended(followed)

    def boundary(self, sure: bool) -> None:
        """An iteration without a plan is over; the next one may go along with it."""
        followed = self.followed
        if followed is None:
            self.loop.ledger.close(ON_DEMAND)
            return
        self._ended(followed)
        if self.loop.phase is self:
            followed.follower.restart()
            followed.follower.deviation = ""
            self.loop.enter(FollowingPhase(self.loop, followed))

    def _ended(self, followed: FollowedPlan[R]) -> None:
        self.loop.ledger.close(ON_DEMAND, followed.follower.deviation)
        followed.strayed += 1
        if followed.strayed >= PATIENCE and not self.loop.eager:
            self.loop.record()


class FollowingPhase(Phase[R]):
    """Ops go along with a plan, for which a better one may come at the end of an iteration."""

    followed: FollowedPlan[R]

    def __init__(self, loop: Loop[R], followed: FollowedPlan[R]) -> None:
        super().__init__(loop)
        self.followed = followed

    def before(self, call: RunOp[R]) -> int:
        """Do what the plan has before the op, or leave the plan."""
        follower = self.followed.follower
        op = follower.before(call)
        if op == LOST:
            self.followed.calm = 0
            self.loop.tell("deviated", follower.deviation)
            self.loop.ledger.step()
            self.loop.enter(OnDemandPhase(self.loop, self.followed))
            if self.loop.eager:
                self.loop.record_beside()
        return op

    def after(self, call: RunOp[R]) -> None:
        """Do what the plan has after the op."""
        self.loop.ledger.ops += 1
        if self.followed.follower.after(call):
            self._ended()

    def _ended(self) -> None:
        """An iteration went along to its end."""
        loop, followed = self.loop, self.followed
        row = loop.ledger.close(self.state())
        missed = loop.eager and row is not None and row.state == PLANNED and row.misses + row.evictions > 0
        followed.strayed, followed.calm = (followed.strayed + 1, 0) if missed else (0, followed.calm + 1)
        if missed and followed.strayed == PATIENCE:  # ops that look as planned, on other blocks
            loop.record_beside()
        loop.switch(followed, followed.follower.trail)

    def state(self) -> str:
        """What an iteration is called that went along to its end; told by what was done, where nothing is planned."""
        hints = self.followed.follower.hints
        if hints.count:
            return PLANNED
        return IDLE if hints.trace.peak_live_bytes <= self.loop.memory.limit else ""

    def boundary(self, sure: bool) -> None:
        """Where it is none of the plan's, an iteration was over too soon."""
        followed, follower = self.followed, self.followed.follower
        if follower.position in followed.marks or not (sure or followed.marks):
            return
        self.loop.ledger.close(ON_DEMAND, f"it ended after {follower.position} of {follower.hints.n} ops")
        follower.restart()
        followed.strayed += 1
        if followed.strayed >= PATIENCE:
            self.loop.record()


class RecordingPhase(Phase[R]):
    """Ops are written down around another phase, until two iterations are alike."""

    iterations: IterationRecorder[R]

    def __init__(
        self, loop: Loop[R], iterations: IterationRecorder[R], inner: FollowingPhase[R] | OnDemandPhase[R]
    ) -> None:
        super().__init__(loop)
        self.iterations, self.inner = iterations, inner

    @property
    def followed(self) -> FollowedPlan[R] | None:  # type: ignore[override]
        """Of the plan there is, followed or not."""
        return self.inner.followed

    def before(self, call: RunOp[R]) -> int:
        """Do what the inner phase does; an input that is about to be written may end an iteration."""
        alike = self.iterations.before(call)
        if alike is not None:
            self._on_alike(alike)
            return self.loop.phase.before(call)
        return self.inner.before(call)

    def after(self, call: RunOp[R]) -> None:
        """Note the op, and see whether that ends an iteration which was there before."""
        self.inner.after(call)
        self.loop.ledger.step()
        followed = self.followed
        if followed is not None and followed.calm >= CALM:
            self.loop.go(self.inner)
            return
        alike = self.iterations.note(call)
        if alike is not None:
            self._on_alike(alike)
        elif self.iterations.full:
            self._afresh()

    def boundary(self, sure: bool) -> None:
        """A recorded iteration is over."""
        loop, iterations = self.loop, self.iterations
        iterations.end()
        loop.memory.reap()
        loop.ledger.step()
        least = loop.ledger.least()
        loop.ledger.close(RECORDED)
        loop.lasts(least)
        alike = iterations.boundary()
        if alike is not None:
            self._on_alike(alike)
        elif iterations.full:
            self._afresh()
        else:
            iterations.begin()

    def _afresh(self) -> None:
        """Go on with an empty recorder."""
        self.loop.ledger.close("" if self.loop.eager else RECORDED)
        self._empty()

    def _empty(self) -> None:
        """Begin another recorder."""
        self.iterations.close()
        self.iterations = self.loop.new_iterations()

    def _on_alike(self, alike: Alike) -> None:
        """Two iterations are alike: have them planned for, unless they are what is followed already."""
        loop, iterations = self.loop, self.iterations
        try:
            if isinstance(self.inner, FollowingPhase) and self._is_planned(self.inner.followed, alike):
                self.loop.go(self.inner)
                return
            trace = iterations.trace(alike)
        except Exception as error:
            if not (isinstance(error, ValueError) or tolerable(error)):
                raise
            self._none(str(error))
            return
        loop.failed = 0
        loop.plan_iteration(trace, alike, iterations, self.inner)

    def _is_planned(self, followed: FollowedPlan[R], alike: Alike) -> bool:
        """Whether what was alike is what is followed; where that misses blocks, ops must touch what was planned."""
        (lo, hi), done = alike.bounds[-1], followed.follower.position
        if followed.follower.hints.n != hi - lo:
            return False
        iteration = self.iterations.recorder.trace(lo - done, hi - done)
        return followed.strayed < PATIENCE or _touched(iteration) == _touched(followed.follower.hints.trace)

    def _none(self, why: str) -> None:
        """What repeated is no iteration: go on with the recording where boundaries are given, else with an empty one.

        A detector reports a period once; what comes after it would go unseen.
        """
        self.loop.failed += 1
        if self.loop.failed >= TRIES:
            self.loop.give_up(why)
        elif self.iterations.knows_boundaries:
            self.iterations.begin()
        else:
            self._empty()


def _touched(trace: Trace) -> list[list[int]]:
    """Which buffers each op touches, by the order in which they come first."""
    number: dict[int, int] = {}
    rows = zip(trace.ops.reads.tolist(), trace.ops.writes.tolist())
    return [[number.setdefault(buffer, len(number)) for buffer in (*reads, *writes)] for reads, writes in rows]
