"""The global controller: admits jobs, has all of them planned together, hands out plans and budgets (section 3.2).

Budgets are bytes of the device; their sum never exceeds the capacity. A plan that needs a larger one waits for room, a
smaller one makes room::

    newcomer   arrives ---- waits until its plan fits beside the others' ---- waits for room ---- launch
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
from gpumem.jobs.scheduler.executor import Errand, Executor, World
from gpumem.jobs.scheduler.forecast import Forecast, roofline
from gpumem.jobs.scheduler.instructions import Instructions, Place, instructions
from gpumem.simulator.machine import Machine
from gpumem.swap.tasks import Scheduled, Task

TRIES = 4  # plans for ever less, until their placements fit


@dataclass(slots=True, eq=False)
class Member:
    """One job: how long its ops take as far as known, the ns of all as last planned, its budget, its plans.

    `todo` is the plan in force, `new` a newer one that waits for a boundary.
    """

    job: Job
    place: int
    forecast: Forecast
    drift: Drift
    planned: int = 0
    measured: bool = False
    told: bool = False  # that it waits
    budget: int = 0
    todo: Instructions | None = None
    new: Instructions | None = None
    executor: Executor | None = None


class GlobalController:
    """Knows all jobs; see `simulate_jobs` for the parameters.

    With `place`, a pool planner, a job's budget is the height of its placement; else the load in issue order. `queue`
    waits until the plans fit, who is `admitted` waits for room. `budgets`: as in `Outcome`.
    """

    def __init__(
        self,
        machine: Machine,
        capacity: int,
        world: World,
        policy: Policy,
        *,
        slowdown: float = 0.0,
        place: Place | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: {capacity} bytes is below 1")
        self.machine, self.capacity, self.world, self.policy, self.place = machine, capacity, world, policy, place
        self.estimate = policy.estimate or roofline(machine, slowdown)
        self.members: dict[str, Member] = {}
        self.queue: list[Member] = []
        self.admitted: list[Member] = []
        self.running: list[Member] = []
        self.budgets: list[tuple[int, int]] = []
        self.asked = False  # somebody may be admitted
        self.because: Member | None = None  # who wants all to be planned anew

    def _log(self, kind: str, member: Member, size: int = 0) -> None:
        self.world.log(Event(self.world.now, member.job.name, kind, size=size))

    # what happens to jobs

    def expect(self, jobs: Sequence[Job]) -> None:
        """Have the world say when jobs arrive, and when they leave by themselves."""
        for place, job in enumerate(jobs):
            self.world.at(job.arrival, partial(self.arrive, job, place))
            if job.leave is not None:
                self.world.at(job.leave, partial(self.withdraw, job.name))

    def arrive(self, job: Job, place: int) -> None:
        """Queue a job that arrives now."""
        member = self.members[job.name] = Member(job, place, Forecast(job, self.estimate), Drift(self.policy.late))
        self._log("arrive", member)
        self.queue.append(member)
        self.asked = True

    def withdraw(self, name: str) -> None:
        """A job leaves now if it still waits."""
        member = self.members[name]
        for waiting in (self.queue, self.admitted):
            if member in waiting:
                waiting.remove(member)
                self._log("leave", member)
                if waiting is self.admitted:
                    self._ask(member)  # others have smaller plans on its account
                self.asked = True

    def admit(self) -> Errand[None]:
        """Plan as many of the queue, in order, as fit together with the jobs that are in; refuse hopeless ones."""
        self.asked = False
        while self.queue:
            before = self._waiting()
            reached = yield from self._admit_some()
            if not reached:
                continue
            if before[0] and before == self._waiting():
                (first,) = yield from self._instructions(self.queue[:1])
                reached = first.budget
            if before != self._waiting():  # somebody came or went meanwhile
                self.asked = True
                break
            if reached <= self.capacity:
                break
            self._log("refused", self.queue.pop(0), reached)
        self._launch()
        for member in (*self.queue, *self.admitted):
            if not member.told:
                member.told = True
                self._log("wait", member)

    def _waiting(self) -> tuple[list[Member], list[Member]]:
        """Who is in, and who is not."""
        return [*self.running, *self.admitted], list(self.queue)

    def _admit_some(self) -> Errand[int]:
        """Plan with the whole queue, then with as much of its front as fits; else return what its first needs.

        By bisection: one job less each time would ask for Q^2 plans. A planner may fit ten jobs and not nine: fewer
        come in at once then, but nobody waits for ever. The search ends at 0 only where the first alone does not fit,
        and `admit` goes on with the rest.
        """
        inside, queue = self._waiting()
        fit, above, count = 0, len(queue) + 1, len(queue)
        while fit + 1 < above:
            todo = yield from self._instructions([*inside, *queue[:count]])
            total = sum(t.budget for t in todo)
            if (inside, queue) != self._waiting():
                return total
            if total <= self.capacity:
                fit, found, held = count, todo, total
            else:
                above, least = count, total
            count = (fit + above) // 2
        if not fit:
            return least
        if self.running:
            self._log("replan", queue[0], held)
        self.admitted += queue[:fit]
        del self.queue[:fit]
        self._give([*inside, *queue[:fit]], found)
        return 0

    def _launch(self) -> None:
        """Start those who are admitted, in their order, as far as there is room."""
        while self.admitted:
            member = self.admitted[0]
            assert member.todo is not None
            if self._granted() + member.todo.budget > self.capacity:
                return
            self.running.append(self.admitted.pop(0))
            self._grant(member, member.todo.budget)
            member.executor = Executor(member.job, member.place, member.todo, self.world, self, drain=self.policy.drain)
            self.world.launch(member.executor)

    # plans

    def _ask(self, because: Member) -> None:
        """Have all planned anew, unless somebody has asked for that already."""
        if self.because is None:
            self.because = because
            self.world.soon(self._replan)

    def _replan(self) -> Errand[None]:
        """Plan all jobs that are in anew; where that does not fit, the old plans stay."""
        because, self.because = self.because, None
        assert because is not None
        members, _ = self._waiting()
        if members:
            todo = yield from self._instructions(members)
            total = sum(t.budget for t in todo)
            if members == self._waiting()[0]:  # who came or went meanwhile has had all planned anew as well
                self._log("replan", because, total)
                if total <= self.capacity:
                    self._give(members, todo)
                else:
                    for m in members:
                        m.drift.accept(m.forecast.ns)
                self.asked |= bool(self.queue)  # with what is known now, those who wait may fit

    def _instructions(self, members: Sequence[Member]) -> Errand[list[Instructions]]:
        """Have jobs planned together, while others go on."""
        others = len(members) - 1
        tasks = [Task(m.job.trace, m.forecast.beside(others), m.job.ratio) for m in members]
        return (yield partial(self._planned, members, tasks))

    def _planned(self, members: Sequence[Member], tasks: Sequence[Task]) -> list[Instructions]:
        """Plan for the capacity; where loads fit it but placements do not, for as much less."""
        room = self.capacity
        for _ in range(TRIES):
            found = self.policy.planner(tasks, self.machine, room)
            expect("policy", "what the planner returned", found, "Sequence[Scheduled]")
            if len(found) != len(tasks):
                raise ValueError(f"policy: the planner returned {len(found)} plans for {len(tasks)} jobs")
            todo = [self._carry_out(m, s) for m, s in zip(members, found, strict=True)]
            over = sum(t.budget for t in todo) - self.capacity
            if over <= 0 or sum(s.peak for s in found) > room or over >= room:
                break
            room -= over
        return todo

    def _carry_out(self, m: Member, found: Scheduled) -> Instructions:
        """What a plan means for a job; the same again if it is one that the job has."""
        for known in (m.todo, m.new):
            if known is not None and (known.plan, known.delays) == (found.plan, found.delays):
                return known
        return instructions(m.job.trace, found.plan, self.machine, found.delays, self.place)

    def _give(self, members: Sequence[Member], todo: Sequence[Instructions]) -> None:
        for m, new in zip(members, todo):
            m.forecast.settle(len(members) - 1)
            m.planned = int(m.forecast.ns.sum())
            if self.policy.replan == "windows":
                m.drift.rely(SwapWindows.of(m.job.trace, new, self.machine), m.forecast.ns)
            if m in self.running:
                m.new = None if new is m.todo else new
            else:
                m.todo = new

    # budgets

    def _granted(self) -> int:
        return sum(m.budget for m in self.running)

    def _grant(self, member: Member, budget: int) -> None:
        member.budget = budget
        self.budgets.append((self.world.now, self._granted()))

    # what executors ask at a boundary

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
        """The new plan is in force: what its budget is smaller by goes to others."""
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
        stood = executor.waits["copy"] + executor.waits["memory"]
        return member.drift.measure(executor.todo, member.forecast.ns, stood, ns)

    def left(self, executor: Executor) -> None:
        """A job is gone: plan the others anew, let others in."""
        member = self.members[executor.job.name]
        self.running.remove(member)
        self._grant(member, 0)
        self._ask(member)
        self.asked = True
