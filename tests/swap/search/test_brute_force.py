"""Is what `gpumem.swap.search.planner` finds as good as the best of all states that its evaluator accepts?"""

from __future__ import annotations

from itertools import combinations, pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from gpumem.simulator.simulate import simulate
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import Evaluation, evaluate, retime
from gpumem.swap.search._recompute_changes import fill, settle
from gpumem.swap.search._recompute_state import Decided, Drops
from gpumem.swap.search.annealing import Annealing, start
from gpumem.swap.search.instance import Instance, problem
from gpumem.swap.search.planner import lowest, search
from gpumem.testing import steps
from tests.strategies import machine_of, traces
from tests.swap.search.oracles import check_plan, check_variants, menus, overhead


@pytest.mark.jit
@given(st.data())
def test_the_lowest_limit_is_that_of_the_best_swap_set(data: st.DataObject) -> None:
    """Brute force: every set of up to 10 gaps, the engines in the order of the accesses."""
    trace = data.draw(traces(streams=1, max_ops=8, max_buffers=4))
    target = machine_of(data, duplex=True)
    p, r, w = problem(trace, target, 0)
    d = Drops.of(r)
    settle(r, d)
    assume(0 < len(w) <= 10)
    best = trace.peak_live_bytes
    for count in range(len(w) + 1):
        for gaps in combinations(range(len(w)), count):
            s, x = start(p), Evaluation.of(p)
            for g in gaps:
                toggle(p, d, s, g)
            retime(p, d, s, x)
            best = next((limit for limit in range(1, best) if evaluate(p, d, s, x, limit)[1] == 0), best)
    plan, limit = lowest(trace, target, stall=0, effort=2e-4)
    assert limit <= best
    check_plan(trace, target, plan, limit)
    assert overhead(trace, target, plan, limit) == 0


@pytest.mark.jit
@settings(max_examples=10)
@given(st.data())
def test_the_search_is_as_good_as_brute_force_in_three_modes(data: st.DataObject) -> None:
    """Every gap kept, swapped or made again at its end, every op in each way: the least time that needs no wait."""
    trace = data.draw(steps(streams=1, max_layers=3))
    target = machine_of(data, duplex=True)
    menu = data.draw(st.one_of(st.just({}), menus(trace)))
    found = Annealing(Instance.of(trace, target, 1, recompute=True, algorithms=menu), 1.0, 0)
    p, r, w = found.p, found.r, found.w
    assume(0 < len(w) <= 8 and trace.peak_live_bytes > 1 and len(r.can))
    limit = data.draw(st.integers(max(trace.peak_live_bytes // 2, 1), trace.peak_live_bytes - 1))
    least, x, d = None, Evaluation.of(p), Drops.of(r)
    ways = [range(int(first), int(stop)) for first, stop in pairwise(r.ways.first)]
    every = ([0, 1, *([2] if r.lasts[g] else [])] for g in range(len(w)))
    assume(prod(map(len, ways)) <= 9)
    for modes, by in product(product(*every), [np.array(some, np.int64) for some in product(*ways)]):
        mode = np.array(modes)
        if not fill(r, d, Decided.of(r)._replace(at=np.where(mode == 2, r.lasts, 0), by=by)):
            continue
        s, cost = start(p), int(d.added.sum() + d.longer.sum())
        for g in np.flatnonzero(mode == 1):
            toggle(p, d, s, g)
        retime(p, d, s, x)
        if (least is None or cost < least) and evaluate(p, d, s, x, limit)[1] == 0:
            least = cost
    assume(least is not None)
    plan = search(trace, target, limit, effort=1e-4, algorithms=menu)
    check_variants(trace, target, plan, limit)
    line = simulate(plan.apply(trace), target, capacity=limit)
    assert line.makespan <= max(p.turn + least, simulate(trace, target).makespan)
