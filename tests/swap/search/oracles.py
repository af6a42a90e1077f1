"""All oracles for a plan of the search, and which variants its ops may run."""

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
    """For some ops up to two other variants; few have a workspace of their own."""
    menu = {}
    for op in draw(st.lists(st.integers(0, trace.n - 1), unique=True, max_size=4)):
        rows = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=2))
        menu[op] = [
            Variant(op, f"variant {index}", duration, workspace) for index, (duration, workspace) in enumerate(rows)
        ]
    return menu


def check_variants(trace: Trace, target: Machine, plan: Plan, limit: int) -> None:
    """Every oracle, of the trace that the plan's variants make."""
    variants = [decision for decision in plan.decisions if isinstance(decision, Variant)]
    swapped = plan.apply(trace)
    check.data_flow(Plan.of(trace, variants).apply(trace), swapped)
    check.budget(swapped, limit, host=target.pinned)
    line = simulate(swapped, target, capacity=limit)
    check.timeline(swapped, line, target.durations(swapped), capacity=limit, duplex=target.duplex)
