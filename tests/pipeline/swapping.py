"""AutoSwap on one card, and the report of what it found: what tests of plans and reports share."""

from __future__ import annotations

from gpumem.pipeline import Planned
from gpumem.pipeline.report import Run
from gpumem.pipeline.swap_and_place import Combined
from gpumem.pool import best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import Plan, autoswap
from gpumem.trace import Trace

GTX = Machine.named("gtx1080ti")


def swap(trace: Trace, limit: int) -> Plan:
    return autoswap(trace, GTX, limit, score="wdoa")


def report(trace: Trace, found: Combined, limit: int) -> Planned:
    placed = simulate(found.trace, GTX, found.placement)
    before = Run(trace, best_fit(trace), simulate(trace, GTX))
    after = Run(found.trace, found.placement, placed)
    return Planned(found.plan, GTX, before, after, placed, limit, None, found.load_limit, "autoswap", "wdoa")
