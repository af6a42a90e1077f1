"""Is what `gpumem.swap.search.planner` finds as good as the best of all states that its evaluator accepts?"""

from __future__ import annotations

from itertools import combinations, pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from gpumem.simulator.simulate import simulate
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import Evaluation, State, SwapState, evaluate, retime
from gpumem.swap.search._recompute_changes import adopt, propagate
from gpumem.swap.search._recompute_state import RecomputeChoice, RecomputeState
from gpumem.swap.search.instance import Instance, problem
from gpumem.swap.search.planner import lowest, search
from gpumem.swap.search.walk import SearchWalk
from gpumem.testing import steps
from tests.strategies import machine_of, traces
from tests.swap.search.oracles import check_plan, check_variants, menus, overhead


@pytest.mark.jit
@given(st.data())
def test_the_lowest_limit_is_that_of_the_best_swap_set(data: st.DataObject) -> None:
    """Brute force: every set of up to 10 gaps, the engines in the order of the accesses."""
    trace = data.draw(traces(streams=1, max_ops=8, max_buffers=4))
    target = machine_of(data, duplex=True)
    swap_problem, recompute, windows = problem(trace, target, 0)
    drops = RecomputeState.of(recompute)
    propagate(recompute, drops)
    assume(0 < len(windows) <= 10)
    best = trace.peak_live_bytes
    for count in range(len(windows) + 1):
        for gaps in combinations(range(len(windows)), count):
            state = State(swap_problem, drops, SwapState.of(swap_problem), Evaluation.of(swap_problem))
            for gap in gaps:
                toggle(swap_problem, drops, state.swaps, gap)
            retime(state)
            best = next((limit for limit in range(1, best) if evaluate(state, limit)[1] == 0), best)
    plan, limit = lowest(trace, target, stall=0, effort=2e-4)
    assert limit <= best
    check_plan(trace, target, plan, limit)
    assert overhead(trace, target, plan, limit) == 0


@pytest.mark.jit
@settings(max_examples=10)
@given(st.data())
def test_the_search_is_as_good_as_brute_force_in_three_modes(data: st.DataObject) -> None:
    """Every gap kept, swapped or recomputed at its end, each op by each variant: the least time that needs no wait."""
    trace = data.draw(steps(streams=1, max_layers=3))
    target = machine_of(data, duplex=True)
    menu = data.draw(st.one_of(st.just({}), menus(trace)))
    walk = SearchWalk(Instance.of(trace, target, 1, recompute=True, algorithms=menu), 1.0, 0)
    recompute, swap_problem = walk.recompute, walk.state.problem
    gaps = range(len(walk.windows))
    assume(0 < len(gaps) <= 8 and trace.peak_live_bytes > 1 and len(recompute.droppable))
    limit = data.draw(st.integers(max(trace.peak_live_bytes // 2, 1), trace.peak_live_bytes - 1))
    least, drops = None, RecomputeState.of(recompute)
    variants = [range(int(first), int(stop)) for first, stop in pairwise(recompute.variants.first)]
    modes_of = ([0, 1, *([2] if recompute.last_place[gap] else [])] for gap in gaps)
    assume(prod(map(len, variants)) <= 9)
    for modes, variant in product(product(*modes_of), [np.array(row, np.int64) for row in product(*variants)]):
        mode = np.array(modes)
        at = np.where(mode == 2, recompute.last_place, 0)
        if not adopt(recompute, drops, RecomputeChoice.of(recompute)._replace(recompute_at=at, variant=variant)):
            continue
        cost = int(drops.added_ns.sum() + drops.extra_ns.sum())
        state = State(swap_problem, drops, SwapState.of(swap_problem), walk.state.times)
        for gap in np.flatnonzero(mode == 1):
            toggle(swap_problem, drops, state.swaps, gap)
        retime(state)
        if (least is None or cost < least) and evaluate(state, limit)[1] == 0:
            least = cost
    assume(least is not None)
    plan = search(trace, target, limit, effort=1e-4, algorithms=menu)
    check_variants(trace, target, plan, limit)
    line = simulate(plan.apply(trace), target, capacity=limit)
    assert line.makespan <= max(swap_problem.period + least, simulate(trace, target).makespan)
