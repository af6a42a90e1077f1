"""What planners ask first: is that an option, is there anything to do about the limit, can it be met at all?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.units import exact
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap.plan import Hold, Plan
from gpumem.swap.plan.gaps import gaps, without
from gpumem.swap.plan.tails import drops_tail, without_tails
from gpumem.trace import Trace


def floor(trace: Trace) -> tuple[int, int]:
    """Return the op that must hold the most bytes whatever is swapped or dropped, and how many.

    No plan gets below: the op holds what it touches, and what is alive without a gap around it, but for dead tails.
    """
    return _most_held(without_tails(trace, every=True))


def trimmed(trace: Trace, limit: int, *, always: bool) -> Trace:
    """Return what to plan for: `trace` without dead tails if some op cannot keep to the limit with them, or `always`.

    Those of values that recomputations may need are dropped only where it must be.
    """
    if limit >= trace.peak_live_bytes or not (always or limit < _most_held(trace)[1]):
        return trace
    less = without_tails(trace)
    return without_tails(trace, every=True) if limit < _most_held(less)[1] else less


def keep_tails(trace: Trace, plan: Plan, machine: Machine, limit: int) -> Plan:
    """Return `plan` without tails dropped that are not in the way: what the limit and the iteration's time allow.

    The smallest are kept first. A runtime cannot know that nobody will read a tail, and copies it to the host.
    O(log tails) simulations; where the time is up, those that were found to fit until then.
    """
    drops = [decision for decision in plan.decisions if isinstance(decision, Hold) and drops_tail(decision, trace)]
    drops.sort(key=lambda decision: int(trace.buffers.size[decision.buffer]))
    best, least = plan, simulate(plan.apply(trace), machine, capacity=limit).makespan if drops else 0

    def fits_keeping(count: int) -> bool:
        nonlocal best
        undropped = {*drops[:count]}
        candidate = replace(plan, decisions=tuple(decision for decision in plan.decisions if decision not in undropped))
        swapped = candidate.apply(trace)
        is_fine = swapped.peak_live_bytes <= limit and simulate(swapped, machine, capacity=limit).makespan <= least
        best = candidate if is_fine else best
        return is_fine

    can_keep, cannot_keep = 0, len(drops) + 1  # so many can be kept, and so many cannot; all are tried first
    count = len(drops)
    while cannot_keep - can_keep > 1 and not work.over():
        can_keep, cannot_keep = (count, cannot_keep) if fits_keeping(count) else (can_keep, count)
        count = (can_keep + cannot_keep) // 2
    return best


def _most_held(trace: Trace) -> tuple[int, int]:
    held = without(trace.live_bytes(), gaps(trace))
    return int(np.argmax(held)), int(held.max())


@strict
def fits(trace: Trace, limit: int) -> bool:
    """Return whether the peak live bytes of `trace` are at most `limit` already, so that the empty plan will do.

    It raises the `Infeasible` and the `ValueError` of the contract in `gpumem.swap`.

    Examples
    --------
    >>> fits(Trace.from_lifetimes([4, 2], [0, 1], [2, 3]), 6)
    True
    """
    if limit < 1:
        raise ValueError(f"limit: {limit} bytes is below 1")
    if trace.peak_live_bytes <= limit:
        return True
    op, needs = floor(trace)
    if limit < needs:
        raise Infeasible(op, needs, limit)
    return False


# Bytes or ns that nothing reaches; half of int64's range, so that the sum of two does not overflow.
FAR = 2**62


@dataclass(slots=True, eq=False)
class Judge:
    """Keeps the plan whose iteration is shortest by the byte-counting simulation."""

    trace: Trace
    machine: Machine
    limit: int
    best: Plan | None = None
    line: Timeline | None = None
    lowest: int = FAR  # bytes: the lowest peak of plans that keep to the pinned budget
    pinned: int = FAR  # bytes: what is kept on the host by plans that were refused for that alone
    stall: int = FAR  # nanoseconds that the best plan adds to an iteration

    @property
    def makespan(self) -> int:
        """Nanoseconds of an iteration by the best plan; `FAR` where there is none."""
        return FAR if self.line is None else self.line.makespan

    def offer(self, plan: Plan, swapped: Trace | None = None) -> int:
        """Judge a plan that may be above the limit, or above the pinned budget; return its makespan, `FAR` then.

        `swapped`: what it makes of the trace, where that is known.
        """
        swapped = plan.apply(self.trace) if swapped is None else swapped
        load, pinned = swapped.peak_live_bytes, int(swapped.live_bytes(host=True).max())
        if pinned <= self.machine.pinned:
            self.lowest = min(self.lowest, load)
        elif load <= self.limit:
            self.pinned = min(self.pinned, pinned)
        if load > self.limit or pinned > self.machine.pinned:
            return FAR
        line = simulate(swapped, self.machine, capacity=self.limit)
        if self.line is None or line.makespan < self.line.makespan:
            self.best, self.line = plan, line
            self.stall = line.makespan - baseline(self.trace, self.machine, swapped).makespan
        return line.makespan

    def plan(self) -> Plan:
        """Return the best plan."""
        if self.best is None:
            raise self.missed("the pinned budget may be too small")
        return self.best

    def missed(self, otherwise: str) -> NotReached:
        """Return what to raise without a plan: the lowest peak, and what plans that keep to the limit lack."""
        hints, reached = [work.hint(otherwise)], min(self.lowest, self.trace.peak_live_bytes)
        if self.pinned < FAR:
            has = f"{self.machine.name} has {exact(self.machine.pinned)}"
            lacking = f"a plan within the limit keeps {exact(self.pinned)} of pinned memory at least, {has}"
            hints = [lacking, *filter(None, [work.hint()])]
        return NotReached(reached, self.limit, hint="; ".join(hints))
