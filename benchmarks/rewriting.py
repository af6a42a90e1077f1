"""Traces with a plan applied: instances that are harder to place than those recorded."""

from __future__ import annotations

from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap.autoswap.planner import autoswap
from gpumem.trace import Trace

MACHINE = Machine.named("gtx1080ti")


def rewritten(trace: Trace, percent: int) -> Trace | None:
    """Return the trace with AutoSwap's plan for that load limit applied, None where it is out of reach."""
    limit = trace.peak_live_bytes * percent // 100
    try:
        return autoswap(trace, MACHINE, limit, score="swdoa", peaks="all").apply(trace)
    except (Infeasible, NotReached):
        return None
