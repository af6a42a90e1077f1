"""The search: what its evaluator promises the clock keeps; never worse than AutoSwap; brute force on small traces."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.base import deadline
from gpumem.base.deadline import NEVER
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.autoswap.scores import SCORES
from gpumem.swap.facts.limits import floor
from gpumem.swap.plan import Plan
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import Evaluation, evaluate, retime
from gpumem.swap.search._recompute_state import Drops
from gpumem.swap.search.annealing import Annealing, problem, start, swaps
from gpumem.swap.search.planner import lowest, search
from gpumem.trace import Buffers, Ops, Trace
from tests.strategies import machine_of, traces

GTX = Machine.named("gtx1080ti")


def overhead(trace: Trace, target: Machine, plan: Plan, limit: int) -> float:
    return simulate(plan.apply(trace), target, capacity=limit).overhead(simulate(trace, target))


@given(st.data())
def test_a_state_without_overload_runs_without_stall(data: st.DataObject) -> None:
    """The evaluator against the clock: any selection, any order of the engines, one compute stream, full duplex."""
    trace = data.draw(traces(streams=1, max_ops=14))
    target = machine_of(data, duplex=True)
    p, r, w = problem(trace, target, 0)
    d, s, x = Drops.of(r), start(p), Evaluation.of(p)
    assume(len(w))
    for g in data.draw(st.lists(st.integers(0, len(w) - 1), max_size=6, unique=True)):
        toggle(p, d, s, g)
    if s.used[0] > 1 and data.draw(st.booleans()):
        s.outs[: s.used[0]] = data.draw(st.permutations(s.outs[: s.used[0]].tolist()))
    if s.used[1] > 1 and data.draw(st.booleans()):
        s.ins[: s.used[1]] = data.draw(st.permutations(s.ins[: s.used[1]].tolist()))
    retime(p, d, s, x)
    fits = [limit for limit in range(1, trace.peak_load + 1) if evaluate(p, d, s, x, limit)[1] == 0]
    assume(fits)
    swapped = Plan(tuple(swaps(p, w, d, s, x)), trace.n).apply(trace)
    check.data_flow(trace, swapped)
    assert swapped.peak_load <= fits[0]
    line = simulate(swapped, target, capacity=fits[0])
    assert line.stalls == {"data": 0, "copy": 0, "memory": 0}


def check_plan(trace: Trace, target: Machine, plan: Plan, limit: int) -> None:
    """Every oracle."""
    swapped = plan.apply(trace)
    check.data_flow(trace, swapped)
    check.budget(swapped, limit, host=target.pinned)
    line = simulate(swapped, target, capacity=limit)
    check.timeline(swapped, line, target.durations(swapped), capacity=limit, duplex=target.duplex)


@given(st.data())
def test_plans_pass_the_oracles_and_are_never_worse_than_autoswap(data: st.DataObject) -> None:
    trace = data.draw(traces())
    target = machine_of(data, pinned=data.draw(st.sampled_from([0, 20, 10_000])))
    assume(trace.peak_load > 1)
    limit = data.draw(st.integers(1, trace.peak_load - 1))
    try:
        plan = search(trace, target, limit, effort=1e-6, seed=data.draw(st.integers(0, 3)))
    except Infeasible as stop:
        assert stop.needs == floor(trace)[1] > limit
        return
    except NotReached as stop:
        assert stop.reached > limit and target.pinned < 10_000
        return
    check_plan(trace, target, plan, limit)
    for score in SCORES:
        try:
            greedy = autoswap(trace, target, limit, score=score, peaks="all", threshold=1)
        except NotReached:
            continue
        assert overhead(trace, target, plan, limit) <= overhead(trace, target, greedy, limit)


@pytest.mark.jit
@given(st.data())
def test_the_lowest_limit_is_that_of_the_best_swap_set(data: st.DataObject) -> None:
    """Brute force: every set of up to 10 gaps, the engines in the order of the accesses."""
    trace = data.draw(traces(streams=1, max_ops=8, max_buffers=4))
    target = machine_of(data, duplex=True)
    p, r, w = problem(trace, target, 0)
    d = Drops.of(r)
    assume(0 < len(w) <= 10)
    best = trace.peak_load
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
@given(st.data())
def test_half_duplex_and_the_pinned_budget_are_honoured_by_the_lowest_limit(data: st.DataObject) -> None:
    trace = data.draw(traces())
    target = machine_of(data, pinned=data.draw(st.sampled_from([0, 8, 20])))
    plan, limit = lowest(trace, target, stall=0.1, effort=1e-5)
    if trace.peak_load:
        check_plan(trace, target, plan, limit)
    if plan.decisions:  # with two streams, waiting for memory may cost time without any swap
        assert overhead(trace, target, plan, limit) <= 0.1


@pytest.mark.thorough
@pytest.mark.jit
def test_the_same_seed_gives_the_same_plan() -> None:
    trace = bundled("resnet18")
    limit = trace.peak_load * 42 // 100
    once, again, other = (search(trace, GTX, limit, effort=0.02, seed=seed) for seed in (3, 3, 4))
    assert once == again != other


@pytest.mark.thorough
@pytest.mark.jit
def test_vgg16_needs_no_stall_at_60_percent_and_little_at_40() -> None:
    trace = bundled("vgg16")
    for percent, most in ((60, 0.0), (40, 0.16)):  # AutoSwap: 0.6 and 20 %
        limit = trace.peak_load * percent // 100
        plan = search(trace, GTX, limit, effort=0.1)
        assert overhead(trace, GTX, plan, limit) <= most
    plan, limit = lowest(trace, GTX, effort=0.05)
    assert limit < 0.6 * trace.peak_load
    check_plan(trace, GTX, plan, limit)


def test_a_trace_that_fits_needs_no_plan() -> None:
    trace = bundled("mlp3")
    assert search(trace, GTX, trace.peak_load) == Plan((), trace.n, trace.name)


def test_nothing_to_swap_leaves_the_peak() -> None:
    trace = Trace(Buffers.make([8], [0], [2]), Ops.make([[], [0]], [[0], []], duration=[5, 5]))
    assert lowest(trace, GTX) == (Plan((), 2, ""), 8)
    with pytest.raises(Infeasible, match="8"):
        search(trace, GTX, 7)


@pytest.mark.parametrize("wrong", [{"effort": 0}, {"effort": -1.0}, {"seconds": 0.0}])
def test_an_effort_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    trace = bundled("mlp3")
    with pytest.raises(ValueError, match="must be positive"):
        search(trace, GTX, trace.peak_load * 95 // 100, **wrong)


@pytest.mark.jit
def test_time_up_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = bundled("vgg16")
    told: list[str] = []
    limit, moment = trace.peak_load * 55 // 100, 0.0

    def hear(text: str) -> None:
        nonlocal moment
        told.append(text)
        moment = 0.0 if text == "AutoSwap" else 2.0  # up with the first step of annealing

    monkeypatch.setattr(deadline, "now", lambda: moment)
    plan = search(trace, GTX, limit, recompute=False, seconds=1.0, progress=hear)
    check_plan(trace, GTX, plan, limit)
    assert told[0] == "AutoSwap" and len(told) == 2 and "% of the peak" in told[-1]
    found = Annealing(trace, GTX, limit, 1.0, 0, NEVER, told.append).d
    assert np.all(np.diff(found.points[: found.used[0]]) > 0)


def test_a_gap_that_pays_only_with_another_one_is_found() -> None:
    """Found by brute force: the greedy start does not get below the peak, annealing has to go on from there."""
    ops = Ops.make([[], [], [], [0], [], [], []], [[], [], [], [], [], [], [0]], duration=[0, 0, 2, 0, 0, 1, 0])
    trace = Trace(Buffers.make([1, 1], [0, 4], [7, 5], persistent=[True, False]), ops)
    target = Machine("m", 100, Link(1.0, 0.05), Link(0.0, 0.05), 1.0, 1.0)
    assert lowest(trace, target, stall=0, effort=2e-4)[1] == 1
