"""Jobs that come, run together round by round, and go: when each iteration ends, by the simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible, NotReached
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event, JobRun, Outcome
from gpumem.jobs.waterwave.co_schedule import CoSchedule, co_schedule
from gpumem.jobs.waterwave.pipeline import Pipeline
from gpumem.jobs.waterwave.priorities import by_weight
from gpumem.jobs.waterwave.round_clock import RoundClock
from gpumem.jobs.waterwave.sharing_policies import SharingPolicy, temporal, waterwave
from gpumem.jobs.waterwave.slot_log import PipelineStart, SlotLog
from gpumem.simulator.machine import Machine


@dataclass(slots=True)
class _Running:
    """A job and what it has done."""

    job: Job
    weight: int | None = None  # iterations in a round; None where the policy takes no turns
    launch: int = -1
    leave: int = -1
    refused: int = 0
    ends: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Iterations to go."""
        return self.job.iterations - len(self.ends)

    def done(self, now: int) -> bool:
        """Whether it leaves at a boundary."""
        return self.left == 0 or (self.job.leave is not None and now >= self.job.leave)


@strict
def simulate_together(  # noqa: PLR0913  public: a keyword for each choice of a run
    jobs: Sequence[Job],
    machine: Machine,
    capacity: int,
    policy: SharingPolicy = waterwave,
    *,
    slowdown: float = 1.0,
    hosts: int = 1,
    weights: Sequence[int] | None = None,
    made: Callable[[Sequence[Job], CoSchedule], object] = lambda jobs, schedule: None,
    log: SlotLog | None = None,
) -> Outcome:
    """Run jobs together by a sharing policy, from when they arrive to when they leave.

    Parameters
    ----------
    jobs : sequence of Job
        Their ratios are not looked at.
    machine : Machine
    capacity : int
        Bytes that all jobs together may hold.
    policy : callable
        `policy(traces, machine, limit) -> Pipeline`: `waterwave`, another one of `SHARING_POLICIES`, or your own.
    slowdown : float
        Of `k` kernels that run at once each progresses at `1 / (1 + slowdown (k - 1))`.
    hosts : int
        Host threads, see `co_schedule`.
    weights : sequence of int, optional
        Iterations of each job in a round, for a policy that takes `turns`: see `by_weight`. By default 1.
    made : callable
        Called with the jobs that run and their co-schedule, for each set of them.
    log : SlotLog, optional
        Is filled with what runs when, op by op, for `gpumem.check.waterwave`.

    Returns
    -------
    Outcome
        Its log has no ops: these are in `log`. `replan` is a new pipeline. An iteration begins when the job's last
        one has ended, so waiting for its slots is part of it.

    Raises
    ------
    ValueError
        No jobs, two of one name, not one weight for each; as `policy`.

    Notes
    -----
    Jobs come and go between two rounds. Where one has arrived or is to leave, the round that runs is the last one of
    its pipeline: what it has begun ends (a job that leaves in the middle of an iteration ends it), then those that are
    in get a new pipeline, if they are others than before. A newcomer that does not fit beside the others waits, in the
    order of arrival; one that does not fit alone is refused. Those that are in may fit beside one that leaves and not
    without it, as halves of iterations then meet others: until one comes or goes they run whole iterations in turn
    (`temporal`). A pipeline fits if its `bound` does: what a pair holds at an instant does not follow issue order.
    While a pipeline fills and drains, a group whose partner belongs to another round runs alone.

    Examples
    --------
    >>> from gpumem import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("v100")
    >>> jobs = [Job("a", trace, iterations=5), Job("b", trace, arrival=20_000_000, iterations=3)]
    >>> out = simulate_together(jobs, machine, 640 * 2**20)
    >>> [(job.name, len(job.end)) for job in out.jobs], out.peak <= 640 * 2**20, len(out.replans)
    ([('a', 5), ('b', 3)], True, 2)
    """
    if not jobs:
        raise ValueError("simulate_together: no jobs")
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError("simulate_together: two jobs of one name")
    if weights is not None and len(weights) != len(jobs):
        raise ValueError(f"weights: {len(weights)} of them for {len(jobs)} jobs")
    running = [_Running(job, weight) for job, weight in zip(jobs, [None] * len(jobs) if weights is None else weights)]
    session = _Session(running, machine, capacity, policy, slowdown=slowdown, hosts=hosts, made=made, slots=log)
    return session.run()


class _Session:
    def __init__(
        self,
        running: Sequence[_Running],
        machine: Machine,
        capacity: int,
        policy: SharingPolicy,
        *,
        slowdown: float,
        hosts: int,
        made: Callable[[Sequence[Job], CoSchedule], object],
        slots: SlotLog | None,
    ) -> None:
        self.machine, self.capacity, self.policy, self.slowdown, self.hosts = machine, capacity, policy, slowdown, hosts
        self.all, self.tell = running, made
        self.clock: RoundClock | None = None  # of the last rounds
        self.slots, self.slot = slots, 0
        self.log: list[Event] = []
        self.to_arrive = sorted(self.all, key=lambda one: one.job.arrival)
        self.waiting: list[_Running] = []
        self.inside: list[_Running] = []
        self.now = self.peak = 0
        self.replans: list[int] = []
        self.known: dict[tuple[str, ...], CoSchedule | None] = {}  # by the names of the jobs that are in
        self.turns: dict[tuple[str, ...], CoSchedule] = {}  # of those that do not fit by the policy
        self.least: dict[str, int] = {}  # bytes that a job which does not fit would need, beside those that are in

    def run(self) -> Outcome:
        """Run rounds from one boundary, at which jobs come or go, to the next."""
        while self.to_arrive or self.waiting or self.inside:
            if not (self.waiting or self.inside):
                self.now = max(self.now, self.to_arrive[0].job.arrival)
            schedule = self.boundary()
            if schedule is not None:
                self.rounds(schedule)
        self.log.sort(key=lambda event: event.ns)
        return Outcome(
            tuple(map(_job_run, self.all)), self.peak, budgets=(), replans=tuple(self.replans), log=tuple(self.log)
        )

    def boundary(self) -> CoSchedule | None:
        """Let jobs leave and arrive; return the co-schedule of those that run, None where none does."""
        while self.to_arrive and self.to_arrive[0].job.arrival <= self.now:
            member = self.to_arrive.pop(0)
            self.waiting.append(member)
            self.log.append(Event(member.job.arrival, member.job.name, "arrive"))
        ran = [*self.inside]
        for member in [*self.inside, *self.waiting]:
            if member.done(self.now):
                (self.inside if member in self.inside else self.waiting).remove(member)
                member.leave = self.now
                self.log.append(Event(self.now, member.job.name, "leave", len(member.ends)))
        before = [*self.inside]
        for member in [*self.waiting]:
            if self.made([*self.inside, member]) is None:
                if self.inside:
                    self.log.append(Event(self.now, member.job.name, "wait"))
                    break  # in order of arrival: no later job overtakes
                self.waiting.remove(member)
                member.refused = self.least[member.job.name]
                self.log.append(Event(self.now, member.job.name, "refused", size=member.refused))
                continue
            self.waiting.remove(member)
            self.inside.append(member)
            member.launch = self.now
            self.log.append(Event(self.now, member.job.name, "launch", size=member.job.trace.peak_live_bytes))
        if before and self.inside != ran:
            self.replans.append(self.now)
            self.log += [
                Event(self.now, member.job.name, "adopt", size=member.job.trace.peak_live_bytes) for member in before
            ]
        return self.made(self.inside) or self.in_turn() if self.inside else None

    def made(self, members: Sequence[_Running]) -> CoSchedule | None:
        """The co-schedule of these jobs, None where they do not fit."""
        names = tuple(member.job.name for member in members)
        if names not in self.known:
            try:
                self.known[names] = self.shared(self.policy, members)
            except (Infeasible, NotReached) as error:
                self.least[names[-1]] = error.needs if isinstance(error, Infeasible) else error.reached
                self.known[names] = None
        return self.known[names]

    def in_turn(self) -> CoSchedule:
        """The co-schedule of jobs that do not fit by the policy: without it no round would run, and no time pass."""
        names = tuple(member.job.name for member in self.inside)
        if names not in self.turns:  # these fit: in turn no job needs more than it did beside the one that left
            self.turns[names] = self.shared(temporal, self.inside)
        return self.turns[names]

    def shared(self, policy: SharingPolicy, members: Sequence[_Running]) -> CoSchedule:
        """The co-schedule of these jobs by a sharing policy."""
        weights = [member.weight for member in members if member.weight is not None]
        turns = {"turns": by_weight(weights)} if weights else {}
        pipeline = policy([member.job.trace for member in members], self.machine, self.capacity, **turns)
        # Live bytes within the limit in issue order do not suffice (waterwave-s): by the clock the ops of a pair come
        # in another order.
        if (most := int(pipeline.bound().max())) > self.capacity:
            raise NotReached(most, self.capacity, hint="node groups get lower (waterwave)")
        return co_schedule(pipeline, self.machine, hosts=self.hosts)

    def rounds(self, schedule: CoSchedule) -> None:
        """Run rounds until a job has to come or go, and end what they have begun."""
        if self.clock is None or schedule is not self.clock.schedule:
            self.tell([member.job for member in self.inside], schedule)
            self.clock = RoundClock(schedule, self.machine, self.slowdown)
        clock, names = self.clock, tuple(member.job.name for member in self.inside)
        if self.slots is not None:
            self.slots.pipelines.append(PipelineStart(self.slot, names, schedule.pipeline))
        count = max(
            min(self.until(member, clock.ends(index), clock.full.ns) for index, member in enumerate(self.inside)), 1
        )
        begun, ends = self.begun(schedule.pipeline, count), [list[int]() for _ in names]
        for round_ in range(count + clock.over):
            begun_by_lag = begun[round_ : round_ + clock.over + 1][::-1]
            for turn, cell in clock.last.items():
                if turn in begun_by_lag[cell.lag]:
                    ends[schedule.pipeline.turns[turn].job].append(
                        self.now + int(clock.round(begun_by_lag).end[cell.ops[-1]])
                    )
            if self.slots is not None:
                self.slots.groups += clock.runs(begun_by_lag, names, self.now, self.slot)
            self.now += clock.round(begun_by_lag).ns
            self.slot += schedule.pipeline.period
        for member, new_ends in zip(self.inside, ends):
            first = len(member.ends)
            member.ends += sorted(new_ends)
            self.log += [
                Event(ns, member.job.name, "iteration", first + round_) for round_, ns in enumerate(member.ends[first:])
            ]
        self.peak = max(self.peak, schedule.trace.peak_live_bytes)

    def begun(self, pipeline: Pipeline, count: int) -> list[dict[int, int]]:
        """Of `count` rounds, which turns begin an iteration, and which one; before and behind them none does."""
        following = [range(len(member.ends), member.job.iterations).__iter__() for member in self.inside]
        rounds = [
            {
                index: iteration
                for index, turn in enumerate(pipeline.turns)
                if (iteration := next(following[turn.job], None)) is not None
            }
            for _ in range(count)
        ]
        nothing = [dict[int, int]()] * self.clock.over if self.clock else []
        return [*nothing, *rounds, *nothing]

    def until(self, member: _Running, ends: Sequence[tuple[int, int]], period: int) -> int:
        """In how many rounds the job has ended its iterations, or is to leave, or another one has come."""
        period = max(period, 1)  # a round of no time would divide by zero
        counts = [-(-member.left // len(ends))]
        if member.job.leave is not None:
            last = max(lag * period + ns for lag, ns in ends)
            counts.append(1 + -(-(member.job.leave - self.now - last) // period))
        if self.to_arrive:
            counts.append(-(-(self.to_arrive[0].job.arrival - self.now) // period))
        return min(counts)


def _job_run(member: _Running) -> JobRun:
    count = len(member.ends)
    peak = (member.job.trace.peak_live_bytes,) * count
    return JobRun(
        member.job.name,
        launch=member.launch,
        leave=member.leave,
        refused=member.refused,
        start=tuple([member.launch, *member.ends[:-1]][:count]),
        end=tuple(member.ends),
        budget=peak,
        peak=peak,
        passive=(0,) * count,
        out=0,
        into=0,
        waits={"admission": max(member.launch - member.job.arrival, 0)},
    )
