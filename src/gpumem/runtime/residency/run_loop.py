"""What a run learns of its program: the iteration, a plan for it, and where in that the program is.

::

    ops   | recorded, two are alike  | along, without a plan   | along with the plan  | on demand   | along ...
                                     ^                         ^                      ^             ^
                                     found: a planner starts   the plan is there,     deviated      its first ops
                                                               at a boundary                        came by
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol

from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.environment import RunOp
from gpumem.runtime.residency.follower import LOST, Follower
from gpumem.runtime.residency.hints import Hints
from gpumem.runtime.residency.iteration_recorder import Alike, IterationRecorder
from gpumem.runtime.residency.ledger import Ledger
from gpumem.runtime.residency.limited_memory import LimitedMemory, LimitError, R
from gpumem.runtime.residency.observing import Refusal, tolerable
from gpumem.runtime.residency.phases import FollowedPlan, FollowingPhase, OnDemandPhase, Phase, RecordingPhase
from gpumem.runtime.residency.report import ON_DEMAND, RECORDED, ManagedReport
from gpumem.swap.plan import Plan
from gpumem.trace import Trace
from gpumem.trace.lifetimes import tails

NOTES = 1000  # of a report, the oldest are dropped, so that a run for days does not grow. Not tuned


class Environment(Protocol[R]):
    """What a run loop needs of whoever runs the ops."""

    @property
    def memory(self) -> LimitedMemory[R]:
        """What moves, under a memory limit."""

    def now(self) -> int:
        """The time, in ns."""

    def iterations(self) -> IterationRecorder[R]:
        """Return an iteration recorder that has seen no op."""

    def follower(self, hints: Hints) -> Follower[R]:
        """Return who carries hints out."""

    def on_iteration(self, trace: Trace) -> Planning | str | None:
        """Return what will plan for an iteration that was there twice.

        None where it fits as it is; or why it is to be recorded anew.
        """

    def lasts(self, size: int) -> None:
        """So many bytes were alive all the time of a recorded iteration; raise LimitError where that is too much."""

    def report(self, kind: str, why: str) -> None:
        """Something for a log: an iteration was `found`, or is `planned` for; ops `deviated`, or `resumed`."""


class RunLoop(Generic[R]):
    """Follows a program: records it, finds its iteration, has it planned for, and carries the plan out.

    Nothing that it only observes with fails the program: where recorder, detector, planner or follower do, the run goes
    on on demand, and its notes say why.

    Parameters
    ----------
    environment : Environment
    wait : bool
        Whether a run waits for its plan.
    eager : bool
        Whether ops are recorded from the first one on that is not as planned, and after PATIENCE iterations in a row
        that went along with the plan and still had misses or evictions. So a device of blocks does, to which an op
        recorded costs a microsecond. In PyTorch it costs more than the op's own dispatch, so there PATIENCE iterations
        go before.
    """

    def __init__(self, environment: Environment[R], *, wait: bool, eager: bool) -> None:
        self.environment, self.wait, self.eager = environment, wait, eager
        self.memory = environment.memory
        self.memory.on_retry = lambda what, error: self.note(f"{what} was tried twice: {type(error).__name__}: {error}")
        self.ledger = Ledger(self.memory, environment.now)
        self.notes: deque[str] = deque(maxlen=NOTES)
        self.noted = 0  # notes so far
        self.knows_boundaries = False  # whether the program gives them
        self.failed = 0  # periods in a row that were none
        self.given_up = False  # to record
        self.hints: Hints | None = None  # those that were followed last
        self._job: Planning | None = None  # that was started last
        self.phase: Phase[R] = OnDemandPhase(self)

    def go(self, phase: Phase[R]) -> None:
        """Let another phase begin; an iteration recorder that is not taken along is closed."""
        iterations, self.phase = self.phase.iterations, phase
        if iterations is not None and iterations is not phase.iterations:
            iterations.close()

    @property
    def job(self) -> Planning | None:
        """Who makes a plan now, for what is followed."""
        return None if self.phase.followed is None else self.phase.followed.job

    # around an op

    def before(self, call: RunOp[R]) -> int:
        """Do what is due before an op; return which one of the plan's it is, or `LOST`."""
        try:
            return self.phase.before(call)
        except Exception as error:
            self._failed(error)
            return LOST

    def after(self, call: RunOp[R]) -> None:
        """Do what is due after an op."""
        try:
            self.phase.after(call)
        except Exception as error:
            self._failed(error)

    def boundary(self, sure: bool = True) -> None:
        """An iteration may end here; it does where that is `sure`, unless one ended right before."""
        if not self.ledger.ops and not self.ledger.length:
            return
        self.knows_boundaries = True
        try:
            self.phase.boundary(sure)
        except Exception as error:
            self._failed(error)

    def observed(self, look: Callable[..., Any], *what: Any) -> Any:
        """Call what only observes the program, and return its result; None, and no more recording, where it fails."""
        try:
            return look(*what)
        except Exception as error:
            self._failed(error)
            return None

    def _failed(self, error: Exception) -> None:
        """Go on without what has failed; what the program is to hear of is raised."""
        if isinstance(error, LimitError) or not tolerable(error):
            raise error
        kind = "" if isinstance(error, Refusal) else f"{type(error).__name__}: "
        self.give_up(f"{kind}{error}")

    # begin, pause, end

    def start(self) -> None:
        """Begin, or go on after a pause, where an iteration begins."""
        self.ledger.start()
        if (iterations := self.phase.iterations) is not None:
            self.observed(iterations.begin)
        elif self.phase.followed is None and not self.given_up:
            self.observed(self.record)

    def pause(self) -> None:
        """The program goes on without the run for a while; a plan under way is there when it comes back."""
        if (iterations := self.phase.iterations) is not None:
            self.observed(iterations.end)
        elif (followed := self.phase.followed) is not None:
            if followed.follower.position:
                followed.follower.restart()
            self.go(FollowingPhase(self, followed))

    def close(self) -> None:
        """Close the last row, and want no plan any more; who makes one ends at its next step."""
        phase = self.phase.inner if isinstance(self.phase, RecordingPhase) else self.phase
        self.ledger.close(*self._state(phase))
        self.phase.drop()
        self.go(OnDemandPhase(self))

    # what is entered and left

    def enter(self, phase: FollowingPhase[R] | OnDemandPhase[R]) -> None:
        """Let another phase begin; what is recorded goes on being so."""
        if isinstance(self.phase, RecordingPhase):
            self.phase.inner = phase
        else:
            self.go(phase)

    def record(self) -> None:
        """Begin to record, and forget the plan there was."""
        self.phase.drop()
        self.go(RecordingPhase(self, self.new_iterations(), OnDemandPhase(self)))

    def record_beside(self) -> None:
        """Begin to record beside the plan there is."""
        if isinstance(self.phase, FollowingPhase | OnDemandPhase):
            self.go(RecordingPhase(self, self.environment.iterations(), self.phase))

    def new_iterations(self) -> IterationRecorder[R]:
        """Return an iteration recorder that begins here."""
        iterations = self.environment.iterations()
        iterations.begin()
        return iterations

    def give_up(self, why: str) -> None:
        """Go on without a recorder, and so without a plan."""
        self.phase.drop()
        self.given_up = True
        self.go(OnDemandPhase(self))
        self.note(f"runs on demand, as it cannot be recorded: {why}")

    def follow(self, trace: Trace, plan: Plan) -> None:
        """Follow a plan from the next op on, which is taken for the first."""
        self.phase.drop()
        self.go(FollowingPhase(self, self._followed_plan(trace, plan)))

    def _followed_plan(self, trace: Trace, plan: Plan) -> FollowedPlan[R]:
        self.hints = Hints.of(trace, plan)
        return FollowedPlan(self.environment.follower(self.hints))

    # an iteration that was there twice

    def plan_iteration(self, trace: Trace, alike: Alike, iterations: IterationRecorder[R], inner: Phase[R]) -> None:
        """Go along with an iteration, and have it planned for."""
        self._rows(alike, len(iterations.keys), inner)
        self.tell("found", f"{trace.n} ops")
        (lo, hi), now = alike.bounds[-1], alike.bounds[-1][1] == len(iterations.keys)
        trail, abandoned = iterations.trail[lo:hi], inner.followed
        if abandoned is not None:
            abandoned.drop()
        job = self.environment.on_iteration(trace)
        if isinstance(job, str):
            self.note(f"recorded anew: {job}")
            self.record()
            return
        followed = self._followed_plan(trace, Plan.of(trace))
        followed.marks, followed.job = alike.marks, job
        if now:
            self.go(FollowingPhase(self, followed))
        else:  # it ended some ops ago, and the next one is to be found
            followed.follower.position = LOST
            self.go(OnDemandPhase(self, followed))
        self._fit()
        if job is not None:
            job.start(self._job)
            self._job = job
            if self.wait:
                job.stop()
                self.switch(followed, trail if now else [])
                self.ledger.began = self.environment.now()  # no iteration's time

    def _rows(self, alike: Alike, count: int, inner: Phase[R]) -> None:
        """Close the rows before, between and after the iterations alike, of so many recorded ops."""
        deviation = "" if inner.follower is None else inner.follower.deviation
        state = "" if self.eager else RECORDED
        for end in (*(begin for begin, _ in alike.bounds), alike.bounds[-1][1]):
            self.ledger.close(ON_DEMAND if deviation else state, deviation, but=count - end)
            deviation = ""

    def switch(self, followed: FollowedPlan[R], trail: list[list[R]]) -> None:
        """Go over to a better plan if it is there, at the end of an iteration whose ops touched these."""
        job = followed.job
        if job is None or not trail:
            return
        if job.done:
            for note in job.notes:
                self.note(note)
            followed.job = None
        if (news := job.news()) is None:
            return
        trace, plan = news
        self.hints = Hints.of(trace, plan, tails(job.trace, trace, job.limit))
        followed.follower = self.environment.follower(self.hints)
        self.tell("planned", repr(plan))
        followed.follower.switch(trail)
        self._fit()

    def _fit(self) -> None:
        """Be within the limit, which may be known just now."""
        with suppress(LimitError):  # which the next op will say
            self.memory.evict_for(0)
        self.memory.peak = self.memory.held  # what moved is the next op's

    # what came of it

    def lasts(self, size: int) -> None:
        """So many bytes were alive all the time of a recorded iteration."""
        self.environment.lasts(size)

    def tell(self, kind: str, why: str = "") -> None:
        """Tell a log."""
        self.environment.report(kind, why)

    def note(self, text: str) -> None:
        """Say something in the report."""
        self.notes.append(text)
        self.noted += 1

    def _state(self, phase: Phase[R]) -> tuple[str, str]:
        """What the iteration under way is called, and where it left the plan."""
        deviation = "" if phase.follower is None else phase.follower.deviation
        return (ON_DEMAND if deviation else phase.state() if isinstance(phase, FollowingPhase) else ""), deviation

    def report(self, *, open_row: bool) -> ManagedReport:
        """Return what came of the run so far; with the row under way, where that is asked for."""
        hints, memory = self.hints, self.memory
        plan = hints.plan if hints is not None and hints.count else None
        trace = None if hints is None else hints.trace
        peak = plan.apply(trace).peak_live_bytes if plan is not None and trace is not None else 0
        rows: Sequence[Any] = self.ledger.rows
        if open_row:
            phase = self.phase.inner if isinstance(self.phase, RecordingPhase) else self.phase
            rows = [*rows, *self.ledger.open_row(*self._state(phase))]
        return ManagedReport(memory.limit, memory.held, trace, plan, peak, tuple(rows), tuple(self.notes))
