"""A trace as it runs, and how much of what a plan does to it: what tables and JSON say of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpumem.base.arguments import strict, strict_fields
from gpumem.base.display import Facts, Shown
from gpumem.base.units import human, human_ns
from gpumem.simulator.timeline import Timeline
from gpumem.swap.plan import Hold, Plan, Recompute
from gpumem.swap.plan.tails import drops_tail
from gpumem.trace import RECOMPUTE, Trace
from gpumem.trace.placement import Placement


@strict_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run(Shown):
    """A trace with its placement and its timeline."""

    trace: Trace
    placement: Placement
    timeline: Timeline

    def _facts(self) -> Facts:
        load, height = human(self.trace.peak_live_bytes), human(self.placement.height)
        makespan = human_ns(self.timeline.makespan)
        return {"": self.trace.name, "peak live bytes": load, "footprint": height, "makespan": makespan}

    def copied(self, role: int) -> int:
        """Bytes that the ops of a copy role move in one iteration."""
        ops = self.trace.ops
        copies = (ops.role == role).nonzero()[0]
        return int(self.trace.buffers.size[ops.writes.idx[ops.writes.ptr[copies]]].sum())

    def recomputed_ops(self) -> tuple[int, int]:
        """Recomputed ops in one iteration, and the nanoseconds they take."""
        own = self.trace.ops.role == RECOMPUTE
        return int(own.sum()), int((self.timeline.end - self.timeline.start)[own].sum())


@dataclass(frozen=True, slots=True)
class DecisionCounts:
    """How much a plan decides, in the words of a report.

    Parameters
    ----------
    swaps, recomputed : int
        Gaps in which a buffer is on the host, and in which it is recomputed.
    recomputed_ops, recompute_ns : int
        Recomputed ops in an iteration, and their nanoseconds.
    held, tails : int
        The `Hold` decisions: values kept for recomputations, and dead tails that are dropped.
    """

    swaps: int
    recomputed: int
    recomputed_ops: int
    recompute_ns: int
    held: int
    tails: int

    @classmethod
    @strict
    def of(cls, plan: Plan, before: Run, after: Run) -> DecisionCounts:
        """Count what a plan decides about a trace, and what is recomputed for that."""
        tails = sum(drops_tail(decision, before.trace) for decision in plan.decisions)
        held = sum(isinstance(decision, Hold) for decision in plan.decisions) - tails
        recomputed = sum(isinstance(decision, Recompute) for decision in plan.decisions)
        return cls(len(plan.swaps), recomputed, *after.recomputed_ops(), held, tails)

    def lines(self, by: str, copied: str = "") -> Iterator[str]:
        """Yield lines of a table; `by` is the score or the planner, `copied` stands behind the swaps.

        >>> print(*DecisionCounts(2, 3, 7, 1500, 1, 2).lines("doa"), sep="\\n")
        swapped                   2 gaps by doa
        recomputed                3 gaps: 7 ops, 1.50 us an iteration
        held                      1 value for recomputations
        dropped                   2 dead tails
        >>> next(DecisionCounts(0, 3, 7, 1500, 0, 0).lines("checkpoint"))
        'recomputed                3 gaps by checkpoint: 7 ops, 1.50 us an iteration'
        """
        swaps = self.swaps or not self.recomputed
        if swaps:
            yield f"{'swapped':26}{self.swaps} gaps by {by}{copied}"
        if self.recomputed:
            ops = f"{self.recomputed_ops} {'op' if self.recomputed_ops == 1 else 'ops'}"
            time = f"{human_ns(self.recompute_ns)} an iteration"
            yield f"{'recomputed':26}{self.recomputed} gaps{'' if swaps else f' by {by}'}: {ops}, {time}"
        if self.held:
            yield f"{'held':26}{self.held} {'value' if self.held == 1 else 'values'} for recomputations"
        if self.tails:
            yield f"{'dropped':26}{self.tails} dead {'tail' if self.tails == 1 else 'tails'}"
