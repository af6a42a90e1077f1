"""Every swap planner with options that make it quick, and all oracles for a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpumem import check
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import PLANNERS, Plan
from gpumem.trace import Trace

SMALL = {"search": {"effort": 1e-6}, "bayes": {"evaluations": 5}}
THRESHOLDS = ("autoswap", "bayes", "capuchin")


def quick(name: str) -> Callable[..., Plan]:
    options = {**SMALL.get(name, {}), **({"threshold": 1} if name in THRESHOLDS else {})}
    return partial(PLANNERS[name], **options)


def judged(trace: Trace, target: Machine, plan: Plan, limit: int) -> int:
    """Hold a plan against all oracles; return its makespan by the byte-counting simulation."""
    swapped = plan.apply(trace)
    check.data_flow(trace, swapped)
    check.budget(swapped, limit, host=target.pinned)
    line = simulate(swapped, target, capacity=limit)
    if trace.n < 1000:
        ns, duplex, host_costs = target.durations(swapped), target.duplex, target.host_costs(swapped)
        check.timeline(swapped, line, ns, capacity=limit, duplex=duplex, host_costs=host_costs)
    return line.makespan
