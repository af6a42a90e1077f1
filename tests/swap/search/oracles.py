"""All oracles for a plan of the search, and what its ops may run by."""

from __future__ import annotations

from hypothesis import strategies as st

from gpumem import check
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.operators import Menu
from gpumem.swap.plan import Plan, Variant
from gpumem.trace import Trace


def overhead(trace: Trace, target: Machine, plan: Plan, limit: int) -> float:
    return simulate(plan.apply(trace), target, capacity=limit).overhead(simulate(trace, target))


def check_plan(trace: Trace, target: Machine, plan: Plan, limit: int) -> None:
    """Every oracle."""
    swapped = plan.apply(trace)
    check.data_flow(trace, swapped)
    check.budget(swapped, limit, host=target.pinned)
    line = simulate(swapped, target, capacity=limit)
    check.timeline(swapped, line, target.durations(swapped), capacity=limit, duplex=target.duplex)


@st.composite
def menus(draw: st.DrawFn, trace: Trace) -> Menu:
    """For some ops up to two other ways; few have a workspace of their own."""
    found = {}
    for op in draw(st.lists(st.integers(0, trace.n - 1), unique=True, max_size=4)):
        ways = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=2))
        found[op] = [Variant(op, f"way {k}", duration, workspace) for k, (duration, workspace) in enumerate(ways)]
    return found


def check_variants(trace: Trace, target: Machine, plan: Plan, limit: int) -> None:
    """Every oracle, of the trace that the plan's variants make."""
    ways = [d for d in plan.decisions if isinstance(d, Variant)]
    swapped = plan.apply(trace)
    check.data_flow(Plan.of(trace, ways).apply(trace), swapped)
    check.budget(swapped, limit, host=target.pinned)
    line = simulate(swapped, target, capacity=limit)
    check.timeline(swapped, line, target.durations(swapped), capacity=limit, duplex=target.duplex)
