"""Jobs that come, run together round by round, and go: when each iteration ends, by the simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible, NotReached
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event, JobRun, Outcome
from gpumem.jobs.waterwave.co_schedule import Together, together
from gpumem.jobs.waterwave.priorities import by_weight
from gpumem.jobs.waterwave.sharing_policies import Way, temporal, waterwave
from gpumem.simulator.machine import Machine
from gpumem.simulator.sharing import share
from gpumem.simulator.simulate import simulate
from gpumem.trace import I64


@dataclass(slots=True)
class _Running:
    """A job and what it has done."""

    job: Job
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
def simulate_together(
    jobs: Sequence[Job],
    machine: Machine,
    capacity: int,
    way: Way = waterwave,
    *,
    slowdown: float = 1.0,
    hosts: int = 1,
    weights: Sequence[int] | None = None,
    made: Callable[[Sequence[Job], Together], object] = lambda jobs, both: None,
) -> Outcome:
    """Run jobs together by a way of sharing, from when they arrive to when they leave.

    Parameters
    ----------
    jobs : sequence of Job
        Their ratios are not looked at.
    machine : Machine
    capacity : int
        Bytes that all jobs together may hold.
    way : callable
        `way(traces, machine, limit) -> Pipeline`: `waterwave`, another one of `WAYS`, or your own.
    slowdown : float
        Of `k` kernels that run at once each progresses at `1 / (1 + slowdown (k - 1))`.
    hosts : int
        Host threads, see `together`.
    weights : sequence of int, optional
        Iterations of each job in a round, for a way that takes `turns`: see `by_weight`. By default 1.
    made : callable
        Told the jobs that are in and what they do together, for each set of them.

    Returns
    -------
    Outcome
        Its log has no ops: they are those of the traces of `together`, one for each set of jobs. `replan` is a new
        pipeline. An iteration begins when the job's last one has ended, so waiting for its slots is part of it.

    Raises
    ------
    ValueError
        No jobs, two of one name, not one weight for each; as `way`.
    Infeasible
        Jobs that are in fit neither by `way` nor in turn when another one has left. A note names that which needs most.

    Notes
    -----
    Jobs come and go between two rounds. Where one has arrived or is to leave, the round that runs is the last one of
    its pipeline: what it has begun ends (a job that leaves in the middle of an iteration ends it), then those that are
    in get a new pipeline, if they are others than before. A newcomer that does not fit beside the others waits, in the
    order of arrival; one that does not fit alone is refused. Those that are in may fit beside one that leaves and not
    without it, as halves of iterations then meet others: until one comes or goes they run whole iterations in turn
    (`temporal`). While a pipeline fills and drains, a group whose partner belongs to another round runs alone.

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
    weight = {} if weights is None else {job.name: mine for job, mine in zip(jobs, weights)}
    return _Session(jobs, machine, capacity, way, slowdown, hosts, weight, made).run()


@dataclass(frozen=True, slots=True, eq=False)
class _Pace:
    """What rounds take while a pipeline fills, when it is full, and while it drains, and when each op ends in them."""

    rounds: Sequence[tuple[int, I64]]
    over: int  # rounds that follow the last one in which something begins

    def when(self, k: int, count: int) -> tuple[int, int]:
        """Of round `k`, if iterations begin in `count` rounds: its kind, 0 to 2, and when it begins."""
        filling, full, draining = (ns for ns, _ in self.rounds)
        if k == 0:
            return 0, 0
        return 1 + (k >= count), filling + (min(k, count) - 1) * full + max(k - count, 0) * draining

    def ends(self, both: Together, j: int) -> list[tuple[int, list[int]]]:
        """Of each turn of a job, in how many rounds and when it ends there, by kind of round."""
        last = [np.flatnonzero(both.turn == t) for t in both.pipeline.turns_of(j)]
        found = [mine[np.argmax(both.lag[mine] * both.trace.n + mine)] for mine in last]
        return sorted((int(both.lag[x]), [int(end[x]) for _, end in self.rounds]) for x in found)


class _Session:
    def __init__(
        self,
        jobs: Sequence[Job],
        machine: Machine,
        capacity: int,
        way: Way,
        slowdown: float,
        hosts: int,
        weight: Mapping[str, int],
        made: Callable[[Sequence[Job], Together], object],
    ) -> None:
        self.machine, self.capacity, self.way, self.slowdown, self.hosts = machine, capacity, way, slowdown, hosts
        self.weight, self.tell = weight, made
        self.ran: Together | None = None  # in the last rounds, and how long they take
        self.pace = _Pace((), 0)
        self.all = [_Running(job) for job in jobs]
        self.log: list[Event] = []
        self.coming = sorted(self.all, key=lambda one: one.job.arrival)
        self.waiting: list[_Running] = []
        self.inside: list[_Running] = []
        self.now = self.peak = 0
        self.replans: list[int] = []
        self.known: dict[tuple[str, ...], Together | None] = {}  # by the names of the jobs that are in
        self.turns: dict[tuple[str, ...], Together] = {}  # of those that do not fit by the way
        self.least: dict[str, int] = {}  # bytes that a job which does not fit would need, beside those that are in

    def run(self) -> Outcome:
        """Go from boundary to boundary."""
        while self.coming or self.waiting or self.inside:
            if not (self.waiting or self.inside):
                self.now = max(self.now, self.coming[0].job.arrival)
            both = self.boundary()
            if both is not None:
                self.rounds(both)
        self.log.sort(key=lambda event: event.ns)
        return Outcome(tuple(map(_told, self.all)), self.peak, (), tuple(self.replans), tuple(self.log))

    def boundary(self) -> Together | None:
        """Let jobs go and come; return what those that are in do together, None where nobody is."""
        while self.coming and self.coming[0].job.arrival <= self.now:
            one = self.coming.pop(0)
            self.waiting.append(one)
            self.log.append(Event(one.job.arrival, one.job.name, "arrive"))
        ran = [*self.inside]
        for one in [*self.inside, *self.waiting]:
            if one.done(self.now):
                (self.inside if one in self.inside else self.waiting).remove(one)
                one.leave = self.now
                self.log.append(Event(self.now, one.job.name, "leave", len(one.ends)))
        before = [*self.inside]
        for one in [*self.waiting]:
            if self.made([*self.inside, one]) is None:
                if self.inside:
                    self.log.append(Event(self.now, one.job.name, "wait"))
                    break  # nobody overtakes
                self.waiting.remove(one)
                one.refused = self.least[one.job.name]
                self.log.append(Event(self.now, one.job.name, "refused", size=one.refused))
                continue
            self.waiting.remove(one)
            self.inside.append(one)
            one.launch = self.now
            self.log.append(Event(self.now, one.job.name, "launch", size=one.job.trace.peak_load))
        if before and self.inside != ran:
            self.replans.append(self.now)
            self.log += [Event(self.now, one.job.name, "adopt", size=one.job.trace.peak_load) for one in before]
        return self.made(self.inside) or self.in_turn() if self.inside else None

    def made(self, members: Sequence[_Running]) -> Together | None:
        """What these jobs do together, None where they do not fit."""
        names = tuple(one.job.name for one in members)
        if names not in self.known:
            try:
                self.known[names] = self.shared(self.way, members)
            except (Infeasible, NotReached) as error:
                self.least[names[-1]] = error.needs if isinstance(error, Infeasible) else error.reached
                self.known[names] = None
        return self.known[names]

    def in_turn(self) -> Together:
        """What those that are in do where they do not fit by the way: without it time would stand still for ever."""
        names = tuple(one.job.name for one in self.inside)
        if names not in self.turns:
            try:
                self.turns[names] = self.shared(temporal, self.inside)
            except Infeasible as error:
                who = ", ".join(names)
                error.add_note(f"jobs {who:.60}: they ran beside one that has left, and do not fit without it")
                raise
        return self.turns[names]

    def shared(self, way: Way, members: Sequence[_Running]) -> Together:
        """What these jobs do together by a way."""
        turns = {"turns": by_weight([self.weight[one.job.name] for one in members])} if self.weight else {}
        found = way([one.job.trace for one in members], self.machine, self.capacity, **turns)
        return together(found, self.machine, hosts=self.hosts)

    def rounds(self, both: Together) -> None:
        """Run as many rounds as nobody has to come or go in, and end what they have begun."""
        if both is not self.ran:
            self.tell([one.job for one in self.inside], both)
            self.ran, self.pace = both, self.paced(both)
        pace = self.pace
        ends = [pace.ends(both, j) for j in range(len(self.inside))]
        count = max(min(self.until(one, mine, pace) for one, mine in zip(self.inside, ends)), 1)
        for one, mine in zip(self.inside, ends):
            begun = [(pace.when(k + lag, count), ns) for k in range(count) for lag, ns in mine]
            found = [self.now + start + ns[kind] for (kind, start), ns in begun][: one.left]
            first = len(one.ends)
            self.log += [Event(ns, one.job.name, "iteration", first + k) for k, ns in enumerate(found)]
            one.ends += found
        self.peak = max(self.peak, both.trace.peak_load)
        self.now += pace.when(count + pace.over, count)[1]

    def paced(self, both: Together) -> _Pace:
        """What the first, any other and the last round of a pipeline take."""
        works = [both.lag == 0, both.lag >= 0, both.lag > 0]  # while it fills, when it is full, while it drains
        lines = []
        for mine in works if (both.lag > 0).any() else works[1:2]:
            alone = self.machine.durations(both.trace)
            part = replace(both.trace.ops, duration=np.where(mine, alone, 0))
            line = simulate(share(replace(both.trace, ops=part), self.machine, self.slowdown), self.machine)
            met = line.end[(both.slot == 0) & (both.turn < 0)].max()  # a stream that is idle has its syncs early
            lines.append((line.makespan, line.end - met))
        return _Pace(lines if len(lines) == 3 else lines * 3, over=int(both.lag.max()))

    def until(self, one: _Running, ends: Sequence[tuple[int, Sequence[int]]], pace: _Pace) -> int:
        """In how many rounds the job has ended its iterations, or is to leave, or another one has come."""
        period = max(pace.rounds[1][0], 1)  # one that takes no time
        found = [-(-one.left // len(ends))]
        if one.job.leave is not None:
            last = max(lag * period + ns[1] for lag, ns in ends)
            found.append(1 + -(-(one.job.leave - self.now - last) // period))
        if self.coming:
            found.append(-(-(self.coming[0].job.arrival - self.now) // period))
        return min(found)


def _told(one: _Running) -> JobRun:
    peak = (one.job.trace.peak_load,) * len(one.ends)
    begin = [one.launch, *one.ends[:-1]][: len(one.ends)]
    waits = {"admission": max(one.launch - one.job.arrival, 0)}
    run = (tuple(begin), tuple(one.ends), peak, peak, (0,) * len(one.ends))
    return JobRun(one.job.name, one.launch, one.leave, one.refused, *run, 0, 0, waits)
