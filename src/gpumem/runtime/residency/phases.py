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
whoever leaves one drops its recorder, its book and its planner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol

from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.environment import RunOp
from gpumem.runtime.residency.follower import LOST, Follower
from gpumem.runtime.residency.iteration_recorder import TRIES, Alike, Book
from gpumem.runtime.residency.ledger import Ledger
from gpumem.runtime.residency.limited_memory import LimitedMemory, R
from gpumem.runtime.residency.observing import tolerable
from gpumem.runtime.residency.report import IDLE, ON_DEMAND, PLANNED, RECORDED
from gpumem.trace import Trace

PATIENCE = 3  # iterations in a row not as planned, before another plan: a last batch, an evaluation; not tuned
CALM = 2  # iterations in a row as planned, and what is recorded beside them is given up: as many as would be alike


@dataclass(slots=True)
class Course(Generic[R]):
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
    told: bool  # whether boundaries are
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

    def new_book(self) -> Book[R]:
        """Return a book that begins here."""

    def give_up(self, why: str) -> None:
        """Record no more."""

    def found(self, trace: Trace, found: Alike, book: Book[R], inner: Phase[R]) -> None:
        """Have an iteration planned for."""

    def switch(self, course: Course[R], trail: list[list[R]]) -> None:
        """Go over to a better plan, if it is there."""


class Phase(Generic[R]):
    """Around each op `before` and `after`; `boundary` where an iteration may end, `sure` if it does."""

    book: Book[R] | None = None  # of the op that is under way, if it is recorded
    course: Course[R] | None = None

    def __init__(self, loop: Loop[R]) -> None:
        self.loop = loop

    @property
    def follower(self) -> Follower[R] | None:
        """Of the plan there is, followed or not."""
        return None if self.course is None else self.course.follower

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
        if self.course is not None:
            self.course.drop()


class OnDemandPhase(Phase[R]):
    """Ops get what they touch. The plan that was left, if there is one, goes on where its first ops come by."""

    def __init__(self, loop: Loop[R], course: Course[R] | None = None) -> None:
        super().__init__(loop)
        self.course = course

    def before(self, call: RunOp[R]) -> int:
        """Look whether the plan's first ops came by."""
        course = self.course
        if course is None or (i := course.follower.before(call)) == LOST:
            return LOST
        self.loop.tell("resumed")
        self.loop.ledger.close(ON_DEMAND, course.follower.deviation, but=i)
        course.follower.deviation = ""
        self.loop.enter(FollowingPhase(self.loop, course))
        return i

    def after(self, call: RunOp[R]) -> None:
        """Count the op; where no boundaries are told, an iteration is as long as the one that was planned."""
        ledger, course = self.loop.ledger, self.course
        ledger.ops += 1
        if course is None:
            return
        ledger.step()
        course.follower.after(call)
        if not self.loop.told and ledger.length >= course.follower.hints.n:
            self._ended(course)

    def boundary(self, sure: bool) -> None:
        """An iteration without a plan is over; the next one may go along with it."""
        course = self.course
        if course is None:
            self.loop.ledger.close(ON_DEMAND)
            return
        self._ended(course)
        if self.loop.phase is self:
            course.follower.restart()
            course.follower.deviation = ""
            self.loop.enter(FollowingPhase(self.loop, course))

    def _ended(self, course: Course[R]) -> None:
        self.loop.ledger.close(ON_DEMAND, course.follower.deviation)
        course.strayed += 1
        if course.strayed >= PATIENCE and not self.loop.eager:
            self.loop.record()


class FollowingPhase(Phase[R]):
    """Ops go along with a plan, for which a better one may come at the end of an iteration."""

    course: Course[R]

    def __init__(self, loop: Loop[R], course: Course[R]) -> None:
        super().__init__(loop)
        self.course = course

    def before(self, call: RunOp[R]) -> int:
        """Do what the plan has before the op, or leave the plan."""
        follower = self.course.follower
        i = follower.before(call)
        if i == LOST:
            self.course.calm = 0
            self.loop.tell("deviated", follower.deviation)
            self.loop.ledger.step()
            self.loop.enter(OnDemandPhase(self.loop, self.course))
            if self.loop.eager:
                self.loop.record_beside()
        return i

    def after(self, call: RunOp[R]) -> None:
        """Do what the plan has after the op."""
        self.loop.ledger.ops += 1
        if self.course.follower.after(call):
            self._ended()

    def _ended(self) -> None:
        """An iteration went along to its end."""
        loop, course = self.loop, self.course
        row = loop.ledger.close(self.state())
        missed = loop.eager and row is not None and row.state == PLANNED and row.misses + row.evictions > 0
        course.strayed, course.calm = (course.strayed + 1, 0) if missed else (0, course.calm + 1)
        if missed and course.strayed == PATIENCE:  # ops that look as planned, on other blocks
            loop.record_beside()
        loop.switch(course, course.follower.trail)

    def state(self) -> str:
        """What an iteration is called that went along to its end; told by what was done, where nothing is planned."""
        hints = self.course.follower.hints
        if hints.count:
            return PLANNED
        return IDLE if hints.trace.peak_live_bytes <= self.loop.memory.limit else ""

    def boundary(self, sure: bool) -> None:
        """Where it is none of the plan's, an iteration was over too soon."""
        course, follower = self.course, self.course.follower
        if follower.i in course.marks or not (sure or course.marks):
            return
        self.loop.ledger.close(ON_DEMAND, f"it ended after {follower.i} of {follower.hints.n} ops")
        follower.restart()
        course.strayed += 1
        if course.strayed >= PATIENCE:
            self.loop.record()


class RecordingPhase(Phase[R]):
    """Ops are written down around another phase, until two iterations are alike."""

    book: Book[R]

    def __init__(self, loop: Loop[R], book: Book[R], inner: FollowingPhase[R] | OnDemandPhase[R]) -> None:
        super().__init__(loop)
        self.book, self.inner = book, inner

    @property
    def course(self) -> Course[R] | None:  # type: ignore[override]
        """Of the plan there is, followed or not."""
        return self.inner.course

    def before(self, call: RunOp[R]) -> int:
        """Do what the inner phase does; an input that is about to be written may end an iteration."""
        found = self.book.before(call)
        if found is not None:
            self._alike(found)
            return self.loop.phase.before(call)
        return self.inner.before(call)

    def after(self, call: RunOp[R]) -> None:
        """Note the op, and see whether that ends an iteration which was there before."""
        self.inner.after(call)
        self.loop.ledger.step()
        course = self.course
        if course is not None and course.calm >= CALM:
            self.loop.go(self.inner)
            return
        found = self.book.note(call)
        if found is not None:
            self._alike(found)
        elif self.book.full:
            self._afresh()

    def boundary(self, sure: bool) -> None:
        """A recorded iteration is over."""
        loop, book = self.loop, self.book
        book.end()
        loop.memory.bury()
        loop.ledger.step()
        least = loop.ledger.least()
        loop.ledger.close(RECORDED)
        loop.lasts(least)
        found = book.boundary()
        if found is not None:
            self._alike(found)
        elif book.full:
            self._afresh()
        else:
            book.begin()

    def _afresh(self) -> None:
        """Go on with an empty book."""
        self.loop.ledger.close("" if self.loop.eager else RECORDED)
        self._empty()

    def _empty(self) -> None:
        """Begin another book."""
        self.book.close()
        self.book = self.loop.new_book()

    def _alike(self, found: Alike) -> None:
        """Two iterations are alike: have them planned for, unless they are what is followed already."""
        loop, book = self.loop, self.book
        try:
            if isinstance(self.inner, FollowingPhase) and self._followed(self.inner.course, found):
                self.loop.go(self.inner)
                return
            trace = book.trace(found)
        except Exception as error:
            if not (isinstance(error, ValueError) or tolerable(error)):
                raise
            self._none(str(error))
            return
        loop.failed = 0
        loop.found(trace, found, book, self.inner)

    def _followed(self, course: Course[R], found: Alike) -> bool:
        """Whether what was found is what is followed; where that misses blocks, ops must touch what was planned."""
        (lo, hi), i = found.bounds[-1], course.follower.i
        if course.follower.hints.n != hi - lo:
            return False
        mine = self.book.recorder.trace(lo - i, hi - i)
        return course.strayed < PATIENCE or _touched(mine) == _touched(course.follower.hints.trace)

    def _none(self, why: str) -> None:
        """What repeated is no iteration: go on with the book where boundaries are told, else with an empty one.

        A detector reports a period once; what comes after it would go unseen.
        """
        self.loop.failed += 1
        if self.loop.failed >= TRIES:
            self.loop.give_up(why)
        elif self.book.told:
            self.book.begin()
        else:
            self._empty()


def _touched(trace: Trace) -> list[list[int]]:
    """Which buffers each op touches, by the order in which they come first."""
    number: dict[int, int] = {}
    rows = zip(trace.ops.reads.tolist(), trace.ops.writes.tolist())
    return [[number.setdefault(b, len(number)) for b in (*reads, *writes)] for reads, writes in rows]
