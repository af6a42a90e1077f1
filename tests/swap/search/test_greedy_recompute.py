"""The greedy starts: each step against the best of all steps, and where they end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpumem.simulator.machine import Link, Machine
from gpumem.swap.plan import Variant
from gpumem.swap.search import _greedy_swaps
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import State, evaluate, retime
from gpumem.swap.search._greedy_recompute import drop_greedily
from gpumem.swap.search._greedy_swaps import CURRENT, KEPT, lower_greedily
from gpumem.swap.search._recompute_changes import adopt, drop, propagate
from gpumem.swap.search._recompute_state import RecomputeState
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.walk import SearchWalk
from gpumem.trace import Buffers, Ops, Trace
from tests.plain import plain
from tests.swap.nets import CARD, line

MACHINE = Machine("m", 10_000, Link(0.0, 0.2), Link(0.0, 0.2), 1.0, 1.0)


def net(seed: int, layers: int = 6) -> Trace:
    """Maps of any size, each made of the one before, and read by the backward op of its layer and of the next."""
    rng, ops = np.random.default_rng(seed), 2 * layers
    forward = [[layer - 1] if layer else [] for layer in range(layers)]
    backward = [sorted({layer, max(layer - 1, 0)}) for layer in reversed(range(layers))]
    writes = [[layer] if layer < layers else [] for layer in range(ops)]
    sizes = rng.integers(10, 60, layers).tolist()
    duration = rng.integers(5, 40, ops).tolist()
    end = [min(ops - layer + 1, ops) for layer in range(layers)]
    return Trace(Buffers.make(sizes, range(layers), end), Ops.make(forward + backward, writes, duration=duration))


def walk_to(goal: int, seed: int, *, layers: int = 6, recompute: bool = False) -> SearchWalk:
    trace = net(seed, layers)
    return SearchWalk(Instance.of(trace, MACHINE, trace.peak_live_bytes * goal // 100, recompute=recompute), 1.0, 0)


def limits_of(walk: SearchWalk, current: int) -> np.ndarray:
    limits = np.zeros(2, np.int64)
    limits[CURRENT], limits[KEPT] = current, walk.trace.peak_live_bytes
    return limits


def around(state: State, gap: int, op: int) -> bool:
    """Whether an op is inside a gap, in this iteration or the next."""
    problem, ops = state.problem, len(state.problem.begin)
    first = problem.after[gap] + 1
    last = problem.before[gap] + ops * (problem.before_iteration[gap] - problem.after_iteration[gap])
    return any(position % ops == op for position in range(first, last))


@pytest.mark.parametrize("seed", range(8))
def test_the_gap_around_the_worst_op_that_lowers_the_cost_most_is_toggled(seed: int) -> None:
    walk = walk_to(50, seed)
    state, limits = walk.state, limits_of(walk, walk.goal)
    for _ in range(6):
        cost, excess = evaluate(state, walk.goal)
        worst = int(walk.drops.points[state.times.worst[0]]) // 2
        costs = {}
        for gap in range(len(walk.windows)):
            toggle(state.problem, walk.drops, state.swaps, gap)
            if around(state, gap, worst):
                costs[gap] = evaluate(state, walk.goal)[0]
            toggle(state.problem, walk.drops, state.swaps, gap)
        lower = [gap for gap in costs if costs[gap] < cost]
        before = state.swaps.selected.copy()
        more = lower_greedily(state, limits, walk.goal, 1)
        toggled = np.flatnonzero(state.swaps.selected != before).tolist()
        assert toggled == ([min(lower, key=lambda gap: costs[gap])] if lower and excess > 0 else [])
        assert more == (bool(lower) and excess > 0)


def test_a_limit_that_is_kept_to_falls_down_to_the_goal() -> None:
    walk = walk_to(50, 0)
    seen = []

    def keeps_to_all(state: State, limit: int) -> tuple[float, int]:
        seen.append(limit)
        return 0.0, 0

    loops, limits = plain(_greedy_swaps, evaluate=keeps_to_all), np.array([10_000, 20_000])
    assert not loops.lower_greedily(walk.state, limits, 9_880, 10)
    assert seen == [10_000, 9_950, 9_900, 9_880] and limits.tolist() == [9_880, 9_880]
    limits = np.array([10_000, 20_000])
    assert loops.lower_greedily(walk.state, limits, 9_880, 2) and limits.tolist() == [9_900, 9_950]


def test_where_no_gap_helps_the_lowest_limit_kept_to_is_the_last_one() -> None:
    """X and Y are live at op 2: 16 bytes, and swapping X leaves 8."""
    walk = SearchWalk(Instance.of(line(), CARD, 1), 1.0, 0)
    limits = limits_of(walk, 16)
    assert not lower_greedily(walk.state, limits, 1, 1000)
    assert limits[KEPT] == 8 and limits[CURRENT] == 7
    assert walk.state.swaps.selected.all()


def droppable(walk: SearchWalk, drops: RecomputeState) -> dict[int, float]:
    """Of each gap over the peak that can be dropped: bytes per ns, by what the whole state is with it."""
    recompute, peak = walk.recompute, int(np.argmax(drops.occupied))
    columns, worth = recompute.columns, {}
    for gap in recompute.droppable.tolist():
        place = int(recompute.last_place[gap])
        if drops.choice.recompute_at[gap] or not 2 * columns.after[gap] + 1 < peak < 2 * place:
            continue
        choice = drops.choice.copy()
        choice.recompute_at[gap] = place
        tried = RecomputeState.of(recompute)
        if adopt(recompute, tried, choice) and tried.occupied[2 * place] < drops.occupied[peak]:
            added = int(tried.added_ns.sum() - drops.added_ns.sum())
            worth[gap] = columns.size[columns.buffer[gap]] / max(added, 1)
    return worth


@pytest.mark.parametrize(
    ("layers", "seed"), [*((6, seed) for seed in range(4)), (8, 0), (8, 6), (8, 7), (10, 0), (10, 5)]
)
def test_the_drop_that_frees_most_bytes_for_its_time_is_taken_until_few_enough_are_live(layers: int, seed: int) -> None:
    """On the larger ones a drop makes others dearer, so that what they would take alone says too little."""
    walk = walk_to(50, seed, layers=layers, recompute=True)
    recompute, drops = walk.recompute, walk.drops
    worth, expected = recompute.worth.copy(), RecomputeState.of(recompute)
    propagate(recompute, expected)
    goal = walk.trace.peak_live_bytes * 60 // 100
    drop_greedily(recompute, drops, drops.copy(), worth, goal=goal, most=1000)
    while expected.occupied.max() > goal and (candidates := droppable(walk, expected)):
        chosen = max(candidates, key=lambda gap: candidates[gap])
        assert drop(recompute, expected, chosen, int(recompute.last_place[chosen]))
        propagate(recompute, expected)
    propagate(recompute, drops)
    np.testing.assert_array_equal(drops.choice.recompute_at, expected.choice.recompute_at)
    np.testing.assert_array_equal(drops.occupied, expected.occupied)


def test_tries_that_are_left_tell_an_end_from_a_pause() -> None:
    walk = walk_to(50, 0, recompute=True)
    recompute, drops, worth = walk.recompute, walk.drops, walk.recompute.worth.copy()
    peak = walk.trace.peak_live_bytes
    assert drop_greedily(recompute, drops, drops.copy(), worth, goal=peak, most=5) == 5  # nothing to do
    # The most promising one is tried first; no other is, as none can be worth more.
    assert drop_greedily(recompute, drops, drops.copy(), worth, goal=peak - 1, most=5) == 4
    assert drop_greedily(recompute, drops, drops.copy(), worth, goal=1, most=1000) > 0  # nothing helps any more
    walk = walk_to(50, 6, layers=8, recompute=True)
    recompute, drops, worth = walk.recompute, walk.drops, walk.recompute.worth.copy()
    assert drop_greedily(recompute, drops, drops.copy(), worth, goal=1, most=2) == 0  # the tries are used up


def variants(workspaces: list[int]) -> tuple[Trace, dict[int, list[Variant]]]:
    """Op i holds what ops 0 to i have made, 10 bytes each; ops 1, 2 and 3 have a workspace, and run slower without."""
    reads, writes = [[], [], [], [], [0, 1, 2, 3]], [[0], [1, 4], [2, 5], [3, 6], []]
    ops = Ops.make(reads, writes, duration=[50] * 5, name=["zeros"] * 5)
    kind = ["activation"] * 4 + ["workspace"] * 3
    buffers = Buffers.make([10] * 4 + workspaces, [0, 1, 2, 3, 1, 2, 3], [5, 5, 5, 5, 2, 3, 4], kind=kind)
    menu = {
        op: [Variant(op, "small", 50 + 10 * op, workspace // 2), Variant(op, "none", 100 + 10 * op, 0)]
        for op, workspace in zip((1, 2, 3), workspaces)
    }
    return Trace(buffers, ops), menu


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [
        (100, [0, 0, 0]),
        (60, [0, 1, 1]),  # op 1: 20 bytes and 40 of workspace; op 2: 30 and 20; op 3: 40 and 20
        (45, [1, 2, 2]),
        (30, [1, 2, 2]),  # exceeded by 10 whatever runs: no more than that
    ],
)
def test_each_op_runs_the_fastest_variant_that_exceeds_the_limit_by_no_more(limit: int, chosen: list[int]) -> None:
    trace, menu = variants([40, 40, 40])
    walk = SearchWalk(Instance.of(trace, CARD, limit, recompute=True, algorithms=menu), 1.0, 0)
    walk.shrink_workspaces()
    walk.speed_up_ops()
    assert (walk.drops.choice.variant - walk.recompute.variants.first[:-1]).tolist() == chosen


def swapped_with_variants(seed: int) -> SearchWalk:
    """Some gaps swapped, with half duplex, where all ops run their smallest variants."""
    rng, trace = np.random.default_rng(seed), net(seed)
    machine = replace(MACHINE, duplex=seed % 2 == 0, out=Link(0.0, 0.6), into=Link(0.0, 0.6))
    slower = {op: rng.integers(41, 120, 2).tolist() for op in range(1, trace.n, 2)}
    menu = {op: [Variant(op, f"{ns} ns", ns, 0) for ns in durations] for op, durations in slower.items()}
    goal = trace.peak_live_bytes * 70 // 100
    walk = SearchWalk(Instance.of(trace, machine, goal, recompute=True, algorithms=menu), 1.0, 0)
    slowest = walk.choose_variants(lambda row: len(row) - 1)
    adopt(walk.recompute, walk.drops, walk.drops.choice.copy()._replace(variant=slowest))
    for gap in range(len(walk.windows)):
        if rng.integers(0, 2):
            toggle(walk.state.problem, walk.drops, walk.state.swaps, gap)
    return walk


def excess_with(walk: SearchWalk, variant: np.ndarray) -> int:
    adopt(walk.recompute, walk.drops, walk.drops.choice.copy()._replace(variant=variant))
    retime(walk.state)
    return evaluate(walk.state, walk.goal)[1]


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 45])
def test_where_copies_need_the_time_the_op_that_gains_most_is_sped_up(seed: int) -> None:
    """Faster ops leave less time for copies: not all of them can be."""
    walk, expected = swapped_with_variants(seed), swapped_with_variants(seed)
    variants, variant = walk.recompute.variants, expected.drops.choice.variant.copy()
    walk.speed_up_ops()
    excess = excess_with(expected, variant)
    for row in sorted(range(len(variant)), key=lambda row: -variants.extra_ns[variant[row]]):
        for faster in range(variants.first[row], variant[row]):
            tried = variant.copy()
            tried[row] = faster
            if excess_with(expected, tried) <= excess:
                variant = tried
                break
    np.testing.assert_array_equal(walk.drops.choice.variant, variant)
