"""The evaluator of the search against the simulation, and its account of the host."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.plan import Plan, Variant
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import IN, OUT, Evaluation, State, SwapState, evaluate, host_excess, retime
from gpumem.swap.search._hold_moves import change_holds
from gpumem.swap.search._recompute_changes import adopt, propagate
from gpumem.swap.search._recompute_state import RecomputeState, copy_drops
from gpumem.swap.search.instance import Instance, problem
from gpumem.swap.search.walk import Walk, swap_decisions
from gpumem.testing import steps
from tests.conftest import tiny_machine
from tests.strategies import machine_of, nets, plans, traces
from tests.swap.accounts import as_taken, on_host
from tests.swap.search.oracles import menus


@given(st.data())
def test_the_evaluator_of_the_search_counts_the_same(data: st.DataObject) -> None:
    """The same bytes of pinned memory as `facts.pinned` and as the rewritten trace, copies at their accesses."""
    trace = data.draw(st.one_of(nets(), traces()))
    if data.draw(st.booleans()):
        trace = data.draw(plans(trace)).apply(trace)
    swap_problem, recompute, windows = problem(trace, tiny_machine(), 1)
    swap_problem, drops = swap_problem._replace(pinned=0), RecomputeState.of(recompute)
    propagate(recompute, drops)
    swaps, host = SwapState.of(swap_problem), Pinned(trace, windows, 10**6)
    for gap in range(len(windows)):
        if data.draw(st.booleans()):
            toggle(swap_problem, drops, swaps, gap)
            assert host.take(gap, int(windows.after[gap]), int(windows.before[gap]))
    excess = host_excess(swap_problem, swaps, Evaluation.of(swap_problem))
    assert excess == host.peak == on_host(trace, as_taken(host, trace))


@given(st.data())
def test_a_state_within_the_limit_runs_without_stall(data: st.DataObject) -> None:
    """The evaluator against the simulation: any selection, any order of the engines, one stream, full duplex."""
    trace = data.draw(traces(streams=1, max_ops=14))
    target = machine_of(data, duplex=True)
    swap_problem, recompute, windows = problem(trace, target, 0)
    drops, swaps = RecomputeState.of(recompute), SwapState.of(swap_problem)
    propagate(recompute, drops)
    assume(len(windows))
    for gap in data.draw(st.lists(st.integers(0, len(windows) - 1), max_size=6, unique=True)):
        toggle(swap_problem, drops, swaps, gap)
    for order, count in ((swaps.outs, swaps.count[OUT]), (swaps.ins, swaps.count[IN])):
        if count > 1 and data.draw(st.booleans()):
            order[:count] = data.draw(st.permutations(order[:count].tolist()))
    state = State(swap_problem, drops, swaps, Evaluation.of(swap_problem))
    retime(state)
    fits = [limit for limit in range(1, trace.peak_load + 1) if evaluate(state, limit)[1] == 0]
    assume(fits)
    swapped = Plan(tuple(swap_decisions(state, windows)), trace.n).apply(trace)
    check.data_flow(trace, swapped)
    assert swapped.peak_load <= fits[0]
    line = simulate(swapped, target, capacity=fits[0])
    assert line.stalls == {"data": 0, "copy": 0, "memory": 0}


@given(st.data())
def test_a_state_within_the_limit_takes_what_recomputations_take(data: st.DataObject) -> None:
    """The evaluator against the simulation: swaps, drops, holds, variants, one compute stream, full duplex."""
    trace = data.draw(steps(streams=1))
    target = machine_of(data, duplex=True)
    walk = Walk(Instance.of(trace, target, 1, recompute=True, algorithms=data.draw(menus(trace))), 1.0, 0)
    state, recompute, drops, gaps = walk.state, walk.recompute, walk.drops, len(walk.windows)
    assume(gaps)
    choice, droppable = drops.choice.copy(), recompute.droppable.tolist()
    for gap in data.draw(st.lists(st.sampled_from(droppable), max_size=4, unique=True)) if droppable else ():
        choice.recompute_at[gap] = recompute.last_place[gap]
    choice.variant[:] = walk.choose_variants(lambda row: data.draw(st.integers(0, len(row) - 1)))
    assume(adopt(recompute, drops, choice))
    before = drops.copy()
    for seed in data.draw(st.lists(st.integers(1, 10**6), max_size=4)):
        if change_holds(recompute, drops, np.array([seed])):
            propagate(recompute, drops)
            copy_drops(recompute, before, drops)
        else:
            copy_drops(recompute, drops, before)
    for gap in data.draw(st.lists(st.integers(0, gaps - 1), max_size=4, unique=True)):
        if not choice.recompute_at[gap]:
            toggle(state.problem, drops, state.swaps, gap)
    retime(state)
    fits = [limit for limit in range(1, trace.peak_load + 250) if evaluate(state, limit)[1] == 0]
    assume(fits)
    changes = walk.changes(drops.choice)
    swapped = Plan.of(trace, [*swap_decisions(state, walk.windows), *changes]).apply(trace)
    check.data_flow(Plan.of(trace, [change for change in changes if isinstance(change, Variant)]).apply(trace), swapped)
    assert swapped.peak_load <= fits[0]
    line = simulate(swapped, target, capacity=fits[0])
    assert line.stalls == {"data": 0, "copy": 0, "memory": 0}
    assert line.makespan == state.problem.period + drops.added_ns.sum() + drops.extra_ns.sum() == state.times.period[0]
