"""The judge of plans for a limit: what the capacity clock says, and which plan is the best so far."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.base.deadline import Deadline
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap.plan import Plan
from gpumem.trace import Trace

FAR = 2**62  # a time that nothing reaches


@dataclass(slots=True, eq=False)
class Judge:
    """Keeps the plan whose iteration is shortest by the capacity clock."""

    trace: Trace
    machine: Machine
    limit: int
    best: Plan | None = None
    line: Timeline | None = None
    lowest: int = FAR
    stall: int = FAR  # nanoseconds that the best plan adds to an iteration

    def offer(self, plan: Plan) -> int:
        """Judge a plan that may be above the limit, or above the pinned budget; return its makespan, `FAR` then."""
        swapped = plan.apply(self.trace)
        self.lowest = min(self.lowest, swapped.peak_load)
        if swapped.peak_load > self.limit or swapped.load(host=True).max() > self.machine.pinned:
            return FAR
        line = simulate(swapped, self.machine, capacity=self.limit)
        if self.line is None or line.makespan < self.line.makespan:
            self.best, self.line = plan, line
            self.stall = line.makespan - baseline(self.trace, self.machine, swapped).makespan
        return line.makespan

    def plan(self, until: Deadline) -> Plan:
        """Return the best plan."""
        if self.best is None:
            reached = min(self.lowest, self.trace.peak_load)
            raise NotReached(reached, self.limit, hint=until.hint("the pinned budget may be too small"))
        return self.best
