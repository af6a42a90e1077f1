"""What a plan costs and saves, as a table for people and as JSON for programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpumem.base.arguments import strict_fields
from gpumem.base.display import Facts, Shown, clipped
from gpumem.base.units import human, human_ns, percent
from gpumem.pipeline.report.text import decided, unswapped, versus
from gpumem.simulator.realised import Realised
from gpumem.simulator.timeline import Timeline
from gpumem.swap.plan import Hold, Plan, Recompute
from gpumem.swap.plan.tails import drops_tail
from gpumem.trace import COPY_IN, COPY_OUT, RECOMPUTE, Trace
from gpumem.trace.placement import Placement


@strict_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run(Shown):
    """A trace with its placement and its timeline."""

    trace: Trace
    placement: Placement
    timeline: Timeline

    def _facts(self) -> Facts:
        load, height = human(self.trace.peak_load), human(self.placement.height)
        makespan = human_ns(self.timeline.makespan)
        return {"": self.trace.name, "peak load": load, "footprint": height, "makespan": makespan}

    def copied(self, role: int) -> int:
        """Bytes that the ops of a copy role move in one iteration."""
        ops = self.trace.ops
        copies = (ops.role == role).nonzero()[0]
        return int(self.trace.buffers.size[ops.writes.idx[ops.writes.ptr[copies]]].sum())

    def again(self) -> tuple[int, int]:
        """Ops that run again in one iteration, and the nanoseconds they take."""
        mine = self.trace.ops.role == RECOMPUTE
        return int(mine.sum()), int((self.timeline.end - self.timeline.start)[mine].sum())


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Report(Shown):
    """A plan for one trace on one machine, against the same trace without it.

    `limit` is the size of the pool, if one was asked for; `load_limit` what the load was brought down to.
    `clock` judges both runs: `placed` for a pool, `capacity` for the papers' load limit. `score` is empty where the
    planner has none.
    """

    machine: str
    score: str
    plan: Plan
    before: Run
    after: Run
    limit: int | None
    load_limit: int
    clock: str
    placed: Timeline  # by the placed clock, whatever the limit
    planner: str
    realised: Realised | None = None  # where durations are not as planned with

    def _facts(self) -> Facts:
        r = self.row()
        footprint = f"{human(r['footprint'])} to {human(r['footprint_after'])}"
        return {
            "": clipped(r["trace"], 40),
            "on": clipped(self.machine, 30),
            "by": clipped(self.score or self.planner, 30),
            "swaps": r["swaps"],
            **({"recomputations": r["recomputed"]} if r["recomputed"] else {}),
            "footprint": footprint,
            "overhead": percent(r["overhead"]),
        }

    def row(self) -> dict[str, Any]:
        """Return all figures: bytes, nanoseconds, `overhead` as a fraction.

        `swaps` and `recomputed` count gaps; `reruns` the ops that run again, `recompute_ns` their time in an iteration;
        `held` and `tails` the `Hold` decisions, which keep values for reruns, or drop dead tails.
        """
        before, after = self.before, self.after
        overhead, (reruns, recompute_ns) = after.timeline.overhead(before.timeline), after.again()
        tails = sum(drops_tail(d, before.trace) for d in self.plan.decisions)
        return {
            "trace": before.trace.name,
            "machine": self.machine,
            "planner": self.planner,
            "score": self.score,
            "ops": before.trace.n,
            "buffers": len(before.trace.buffers),
            "limit": self.limit,
            "load_limit": self.load_limit,
            "clock": self.clock,
            "swaps": len(self.plan.swaps),
            "recomputed": sum(isinstance(d, Recompute) for d in self.plan.decisions),
            "reruns": reruns,
            "recompute_ns": recompute_ns,
            "held": sum(isinstance(d, Hold) for d in self.plan.decisions) - tails,
            "tails": tails,
            "peak_load": before.trace.peak_load,
            "peak_load_after": after.trace.peak_load,
            "footprint": before.placement.height,
            "footprint_after": after.placement.height,
            "ratio": before.placement.ratio(before.trace),
            "ratio_after": after.placement.ratio(after.trace),
            "bytes_out": after.copied(COPY_OUT),
            "bytes_in": after.copied(COPY_IN),
            "makespan_before_ns": before.timeline.makespan,
            "makespan_ns": after.timeline.makespan,
            "placed_makespan_ns": self.placed.makespan,
            "overhead": overhead if math.isfinite(overhead) else None,
            "stalls": dict(after.timeline.stalls),
            **(self.realised.row() if self.realised else {}),
        }

    def table(self) -> str:
        """Return the figures as a table; below it whether swapping is needed, where that is not plain."""
        r = self.row()
        goals = [f"pool of {human(r['limit'])}"] if r["limit"] is not None else []
        if r["clock"] == "capacity":
            goals.append(f"load limit of {human(r['load_limit'])}")
        lines = [
            f"{r['trace']}: {r['ops']} ops, {r['buffers']} buffers, on {r['machine']}, {', '.join(goals)}",
            "",
            f"{'':26}{'before':>14}{'after':>14}{'change':>10}",
            versus("peak load", r["peak_load"], r["peak_load_after"], human),
            versus("footprint", r["footprint"], r["footprint_after"], human),
            f"{'competitive ratio':26}{r['ratio']:>14.4f}{r['ratio_after']:>14.4f}",
            versus(f"iteration ({r['clock']} clock)", r["makespan_before_ns"], r["makespan_ns"], human_ns),
            "",
            *decided(r, f": {human(r['bytes_out'])} out, {human(r['bytes_in'])} in an iteration"),
            f"{'overhead as planned':26}{percent(r['overhead'])}",
            *([f"{'as it turns out':26}{self.realised}"] if self.realised else []),
            f"{'stalls':26}" + ", ".join(f"{human_ns(ns)} for {what}" for what, ns in r["stalls"].items()),
        ]
        load_limit = r["load_limit"] if r["clock"] == "capacity" else None
        told = unswapped(r["peak_load"], r["footprint"], r["limit"], load_limit)
        return "\n".join([*lines, *(["", told] if told else [])])
