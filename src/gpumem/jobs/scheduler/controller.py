"""The global controller: admits jobs, has all of them planned together, hands out plans and budgets (section 3.2).

Budgets are bytes of the device; their sum never exceeds the capacity. A plan that needs a larger one waits for free
bytes, a smaller one frees some::

    newcomer   arrives ---- waits until its plan fits beside the others' ---- waits for free bytes ---- launch
    running    ...[ iteration ]|[ iteration ]|...    at a boundary: takes its newest plan if its budget fits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gpumem.base.arguments import expect
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event
from gpumem.jobs.policy import Policy
from gpumem.jobs.scheduler.drift import Drift, SwapWindows
from gpumem.jobs.scheduler.executor import Errand, Executor, JobEnvironment
from gpumem.jobs.scheduler.forecast import Forecast, roofline
from gpumem.jobs.scheduler.instructions import Instructions, Place, instructions
from gpumem.simulator.machine import Machine
from gpumem.swap.tasks import Scheduled, Task

# Plans within ever fewer bytes, until their placements fit: each is lower by what the one before was too high. Not
# tuned.
ATTEMPTS = 4


@dataclass(slots=True, eq=False)
class Member:
    """One job: how long its ops take as far as known, the ns of all as last `planned`, its budget, its plans.

    `todo` is the plan in force, `new` a newer one that waits for a boundary.
    """

    job: Job
    place: int
    forecast: Forecast
    drift: Drift
    planned: int = 0
    measured: bool = False
    wait_logged: bool = False
    budget: int = 0
    todo: Instructions | None = None
    new: Instructions | None = None
    executor: Executor | None = None


class GlobalController:
    """Knows all jobs; see `simulate_jobs` for the parameters.

    With `place`, a pool planner, a job's budget is the height of its placement; else its peak live bytes.
    Jobs in the `queue` wait until the plans fit, those `admitted` for free bytes. `budgets`: as in `Outcome`.
    """

    def __init__(
        self,
        machine: Machine,
        capacity: int,
        environment: JobEnvironment,
        policy: Policy,
        *,
        slowdown: float = 0.0,
        place: Place | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: {capacity} bytes is below 1")
        self.machine, self.capacity, self.environment, self.policy, self.place = (
            machine,
            capacity,
            environment,
            policy,
            place,
        )
        self.estimate = policy.estimate or roofline(machine, slowdown)
        self.members: dict[str, Member] = {}
        self.queue: list[Member] = []
        self.admitted: list[Member] = []
        self.running: list[Member] = []
        self.budgets: list[tuple[int, int]] = []
        self.asked = False  # whether a job may be admitted now
        self.because: Member | None = None  # the job for which all are to be planned anew

    def _log(self, kind: str, member: Member, size: int = 0) -> None:
        self.environment.log(Event(self.environment.now, member.job.name, kind, size=size))

    # Events of jobs.

    def expect(self, jobs: Sequence[Job]) -> None:
        """Have the environment call back when jobs arrive, and when they leave by themselves."""
        for place, job in enumerate(jobs):
            self.environment.at(job.arrival, partial(self.arrive, job, place))
            if job.leave is not None:
                self.environment.at(job.leave, partial(self.withdraw, job.name))

    def arrive(self, job: Job, place: int) -> None:
        """Queue a job that arrives now."""
        member = self.members[job.name] = Member(job, place, Forecast(job, self.estimate), Drift(self.policy.late))
        self._log("arrive", member)
        self.queue.append(member)
        self.asked = True

    def withdraw(self, name: str) -> None:
        """Let a job leave now if it still waits."""
        member = self.members[name]
        for waiting in (self.queue, self.admitted):
            if member in waiting:
                waiting.remove(member)
                self._log("leave", member)
                if waiting is self.admitted:
                    self._ask(member)  # the plans of others are smaller on its account
                self.asked = True

    def admit(self) -> Errand[None]:
        """Plan as many of the queue, in order, as fit beside the admitted jobs; refuse those that do not fit alone."""
        self.asked = False
        while self.queue:
            before = self._waiting()
            needed = yield from self._admit_some()
            if not needed:
                continue
            if before[0] and before == self._waiting():
                (first,) = yield from self._instructions(self.queue[:1])
                needed = first.budget
            if before != self._waiting():  # a job came or left while planning
                self.asked = True
                break
            if needed <= self.capacity:
                break
            self._log("refused", self.queue.pop(0), needed)
        self._launch()
        for member in (*self.queue, *self.admitted):
            if not member.wait_logged:
                member.wait_logged = True
                self._log("wait", member)

    def _waiting(self) -> tuple[list[Member], list[Member]]:
        """The jobs that are admitted or run, and the queue."""
        return [*self.running, *self.admitted], list(self.queue)

    def _admit_some(self) -> Errand[int]:
        """Plan with the whole queue, then with as much of its front as fits; else return what its first needs.

        By bisection: one job less each time would ask for Q^2 plans. A planner may fit ten jobs and not nine: fewer
        are admitted at once then, but no job waits for ever. The search ends at 0 only where the first alone does not
        fit, and `admit` goes on with the rest.
        """
        inside, queue = self._waiting()
        fits, too_many, count = 0, len(queue) + 1, len(queue)
        while fits + 1 < too_many:
            plans = yield from self._instructions([*inside, *queue[:count]])
            total = sum(plan.budget for plan in plans)
            if (inside, queue) != self._waiting():
                return total
            if total <= self.capacity:
                fits, fitting, budget = count, plans, total
            else:
                too_many, needed = count, total
            count = (fits + too_many) // 2
        if not fits:
            return needed
        if self.running:
            self._log("replan", queue[0], budget)
        self.admitted += queue[:fits]
        del self.queue[:fits]
        self._give([*inside, *queue[:fits]], fitting)
        return 0

    def _launch(self) -> None:
        """Start the admitted jobs, in their order, as far as their budgets fit."""
        while self.admitted:
            member = self.admitted[0]
            assert member.todo is not None
            if self._granted() + member.todo.budget > self.capacity:
                return
            self.running.append(self.admitted.pop(0))
            self._grant(member, member.todo.budget)
            member.executor = Executor(
                member.job,
                member.place,
                member.todo,
                environment=self.environment,
                controller=self,
                drain=self.policy.drain,
            )
            self.environment.launch(member.executor)

    # Plans.

    def _ask(self, because: Member) -> None:
        """Have all planned anew, unless a job has asked for that already."""
        if self.because is None:
            self.because = because
            self.environment.soon(self._replan)

    def _replan(self) -> Errand[None]:
        """Plan all admitted jobs anew; where that does not fit, the old plans stay."""
        because, self.because = self.because, None
        assert because is not None
        members, _ = self._waiting()
        if members:
            plans = yield from self._instructions(members)
            total = sum(plan.budget for plan in plans)
            if members == self._waiting()[0]:  # a job that came or left meanwhile has had all planned anew
                self._log("replan", because, total)
                if total <= self.capacity:
                    self._give(members, plans)
                else:
                    for member in members:
                        member.drift.accept(member.forecast.ns)
                self.asked |= bool(self.queue)  # with the estimates known now, queued jobs may fit

    def _instructions(self, members: Sequence[Member]) -> Errand[list[Instructions]]:
        """Have jobs planned together, while others go on."""
        others = len(members) - 1
        tasks = [Task(member.job.trace, member.forecast.beside(others), member.job.ratio) for member in members]
        return (yield partial(self._planned, members, tasks))

    def _planned(self, members: Sequence[Member], tasks: Sequence[Task]) -> list[Instructions]:
        """Plan for the capacity; where live bytes fit it but placements do not, for as much less."""
        target = self.capacity
        for _ in range(ATTEMPTS):
            proposed = self.policy.planner(tasks, self.machine, target)
            expect("policy", "what the planner returned", proposed, "Sequence[Scheduled]")
            if len(proposed) != len(tasks):
                raise ValueError(f"policy: the planner returned {len(proposed)} plans for {len(tasks)} jobs")
            plans = [self._carry_out(member, scheduled) for member, scheduled in zip(members, proposed, strict=True)]
            excess = sum(plan.budget for plan in plans) - self.capacity
            if excess <= 0 or sum(scheduled.peak for scheduled in proposed) > target or excess >= target:
                break
            target -= excess
        return plans

    def _carry_out(self, member: Member, scheduled: Scheduled) -> Instructions:
        """What a plan means for a job; the same object if it is a plan that the job has."""
        for earlier in (member.todo, member.new):
            if earlier is not None and (earlier.plan, earlier.delays) == (scheduled.plan, scheduled.delays):
                return earlier
        return instructions(member.job.trace, scheduled.plan, self.machine, delays=scheduled.delays, place=self.place)

    def _give(self, members: Sequence[Member], plans: Sequence[Instructions]) -> None:
        for member, new in zip(members, plans):
            member.forecast.set_neighbours(len(members) - 1)
            member.planned = int(member.forecast.ns.sum())
            if self.policy.replan == "windows":
                member.drift.rely(SwapWindows.of(member.job.trace, new, self.machine), member.forecast.ns)
            if member in self.running:
                member.new = None if new is member.todo else new
            else:
                member.todo = new

    # Budgets.

    def _granted(self) -> int:
        return sum(member.budget for member in self.running)

    def _grant(self, member: Member, budget: int) -> None:
        member.budget = budget
        self.budgets.append((self.environment.now, self._granted()))

    # What executors ask at a boundary.

    def new_plan(self, executor: Executor) -> Instructions | None:
        """Return a new plan if there is one and its budget fits; the larger of the two budgets is granted meanwhile."""
        member = self.members[executor.job.name]
        new = member.new
        if new is None or self._granted() + max(new.budget - member.budget, 0) > self.capacity:
            return None
        member.todo, member.new = new, None
        if new.budget > member.budget:
            self._grant(member, new.budget)
        return new

    def adopted(self, executor: Executor) -> None:
        """Give the bytes by which the budget of the new plan is smaller to others."""
        self._grant(self.members[executor.job.name], executor.todo.budget)
        self._launch()

    def measured(self, executor: Executor, ns: Sequence[int]) -> None:
        """Correct the estimates of a job; plan anew after its first iteration, and when it is too far off the plan."""
        member = self.members[executor.job.name]
        member.forecast.correct(ns, self.policy.beta)
        if self._is_off(member, executor, sum(ns)) or not member.measured:
            member.measured = True
            self._ask(member)

    def _is_off(self, member: Member, executor: Executor, ns: int) -> bool:
        """Whether the kernels of an iteration, `ns` in all, are too far off what the job's plan relies on."""
        if self.policy.replan == "sum":
            return abs(ns - member.planned) > self.policy.threshold * member.planned
        stalled = executor.waits["copy"] + executor.waits["memory"]
        return member.drift.measure(executor.todo, member.forecast.ns, stalled, ns)

    def left(self, executor: Executor) -> None:
        """Plan the others anew after a job has left, and admit queued ones."""
        member = self.members[executor.job.name]
        self.running.remove(member)
        self._grant(member, 0)
        self._ask(member)
        self.asked = True
