"""What the programs that prove have in common: the best plan so far, and what no plan is below.

::

    found = Incumbent(trace, machine, limit, gap, bound)
    found.begin(start)                 a plan that is known
    with found.noted(): ...            an interrupt carries what is known by then
        found.judge.offer(plan)        the better plan stays
        found.done                     whether the two are as close as was asked for
    found.proposal()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpumem.base.errors import NotReached
from gpumem.base.units import human_ns, percent
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.limits import Judge
from gpumem.swap.linear_programs import LATE, OPTIMAL
from gpumem.swap.plan import Plan
from gpumem.swap.planner import START, Proposal
from gpumem.trace import Trace


def as_it_is(trace: Trace, machine: Machine, limit: int) -> Proposal:
    """Return the plan that moves nothing, for a trace that keeps to the limit: nothing is faster."""
    time = simulate(trace, machine, capacity=limit).makespan
    return Proposal(Plan.of(trace), time, time, OPTIMAL)


@dataclass(slots=True, eq=False)
class Incumbent:
    """The best plan by simulated time, and `bound`, ns that no iteration is below; `gap`: what is close enough."""

    trace: Trace
    machine: Machine
    limit: int
    gap: float
    bound: int
    judge: Judge = field(init=False)
    given: Plan | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.judge = Judge(self.trace, self.machine, self.limit)

    def begin(self, start: Plan | None) -> None:
        """Begin with a plan that there is."""
        if start is not None:
            self.judge.offer(start)
        self.given = self.judge.best

    @property
    def makespan(self) -> int:
        """Nanoseconds of an iteration by the best plan; `FAR` where there is none."""
        return self.judge.makespan

    @property
    def lower_bound(self) -> int:
        """Nanoseconds that no plan is below; at most what the best plan takes."""
        return min(self.bound, self.makespan)

    @property
    def done(self) -> bool:
        """Whether the best plan is proved to be good enough."""
        return self.judge.best is not None and self.makespan - self.lower_bound <= self.gap * self.makespan

    @property
    def summary(self) -> str:
        """The best plan's time, what no plan is below, and the gap."""
        least = f"at least {human_ns(self.lower_bound)}"
        if self.judge.best is None:
            return f"no plan yet, {least} an iteration"
        gap = (self.makespan - self.lower_bound) / max(self.makespan, 1)
        return f"{human_ns(self.makespan)} an iteration, {least}, gap {percent(gap)}"

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Let an interrupt carry what is known as a note."""
        try:
            yield
        except KeyboardInterrupt as stop:
            stop.add_note(f"{self.trace.name}: {self.summary}")
            raise

    def proposal(self) -> Proposal:
        """Return the best plan and what is proved of it."""
        if self.judge.best is None:
            raise self.missed()
        status = OPTIMAL if self.done else START if self.judge.best is self.given else LATE
        return Proposal(self.judge.best, self.makespan, self.lower_bound, status)

    def missed(self) -> NotReached:
        """Return what to raise without a plan."""
        return self.judge.missed("the pinned budget may be too small")
