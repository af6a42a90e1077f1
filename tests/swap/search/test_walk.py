"""A walk begins with the plan that it is given, and steps keep its state whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpumem.simulator.machine import Link
from gpumem.simulator.simulate import simulate
from gpumem.swap.mosos import solve_mosos
from gpumem.swap.plan import Variant
from gpumem.swap.search._evaluate import IN, OUT
from gpumem.swap.search._recompute_changes import adopt
from gpumem.swap.search._recompute_state import RecomputeState
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.walk import SearchWalk
from tests.swap.nets import CARD, chain
from tests.swap.search.test_greedy_recompute import net
from tests.swap.search.test_recompute_state import same


@pytest.mark.jit
def test_a_start_with_operators_can_be_said() -> None:
    trace, menu = chain(workspace=25)
    start = solve_mosos(trace, CARD, 80, algorithms=menu).plan
    walk = SearchWalk(Instance.of(trace, CARD, 80, recompute=True, plan=start), 1.0, 0)
    assert walk.from_plan(start, simulate(start.apply(trace), CARD, capacity=80))
    (chosen,) = walk.changes(walk.drops.choice)
    assert chosen in start.decisions and walk.state.swaps.selected.any()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_accepted_a_state_stays_whole(seed: int) -> None:
    """So hot that each step that is possible is kept."""
    trace, budget = net(seed, 7), 60
    machine = replace(CARD, out=Link(0.0, 0.5), into=Link(0.0, 0.5), duplex=seed % 2 == 0)
    menu = {op: [Variant(op, "slow", 60, 0)] for op in range(1, trace.n, 3)}
    instance = Instance.of(trace, machine, trace.peak_live_bytes * 55 // 100, recompute=True, algorithms=menu)
    walk = SearchWalk(instance, 1e-5, seed)
    seen = np.zeros(5, np.int64)
    for turn in range(400):
        if turn >= 40 and seen.all():  # at least so many; holds are rare
            break
        walk.anneal(0.05, stall_budget=budget, hot=1e9, cold=1e9, recompute_rate=50)
        walk.seed += 100
        swaps, drops, times = walk.state.swaps, walk.drops, walk.state.times
        anew = RecomputeState.of(walk.recompute)
        assert adopt(walk.recompute, anew, drops.choice)
        same(drops, anew)
        selected, dropped = np.flatnonzero(swaps.selected), np.flatnonzero(drops.choice.recompute_at)
        assert not set(selected) & set(dropped)
        assert sorted(swaps.ins[: swaps.lengths[IN]]) == selected.tolist()
        payers = [gap for gap in selected if swaps.copied_by[gap] == gap]
        assert sorted(swaps.outs[: swaps.lengths[OUT]]) == payers
        assert swaps.stall.min() >= 0 and swaps.stall.sum() <= budget
        delay = swaps.stall.sum() + drops.added_ns.sum() + drops.extra_ns.sum()
        assert times.period[0] == walk.state.problem.period + delay
        held = drops.choice.pieces[0] + (drops.choice.held_until >= 0).sum() + (drops.choice.drop_at > 0).sum()
        seen += [len(selected), len(dropped), held, swaps.stall.sum(), drops.extra_ns.sum()]
    assert seen.all()
