"""What each draw of a step over swaps leads to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpumem.simulator.machine import Link
from gpumem.swap.search import _swap_moves
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import FAR, IN, retime
from gpumem.swap.search._recompute_state import POINTS
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.walk import SearchWalk
from gpumem.trace import Buffers, Ops, Trace
from tests.plain import plain
from tests.swap.nets import CARD, layers
from tests.swap.search.draws import Draws

STALL, SELECT, EXCHANGE, MOVE_OUT, MOVE_IN = 0, 20, 55, 80, 90  # the first draw of each kind of step
NEARBY, ANYWHERE, SHORTER = 1, 2, 3  # of a step over stalls, the next draw
ALL, PART = 1, 0  # of a stall


def walk_to(goal: int = 1) -> SearchWalk:
    """Three maps of 8 bytes and a constant can be swapped, none of them is; 8 ops of 10 ns, each of them a point."""
    walk = SearchWalk(Instance.of(layers(4), replace(CARD, out=Link(1.0, 0.0), into=Link(1.0, 0.0)), goal), 1.0, 0)
    assert len(walk.windows) == 3 + 1
    return walk


def change(walk: SearchWalk, *values: int, budget: int = 0, **others: Any) -> Draws:
    """Take one step with these draws."""
    draws = Draws(*values)
    plain(_swap_moves, draw=draws, **others).change_swaps(walk.state, None, budget)
    assert draws.all_taken()
    return draws


def selected(walk: SearchWalk) -> list[int]:
    swaps = walk.state.swaps
    assert sorted(swaps.ins[: swaps.lengths[IN]]) == np.flatnonzero(swaps.selected).tolist()
    return np.flatnonzero(swaps.selected).tolist()


def select(walk: SearchWalk, *gaps: int) -> SearchWalk:
    for gap in gaps:
        toggle(walk.state.problem, walk.drops, walk.state.swaps, gap)
    return walk


def stalls(walk: SearchWalk) -> dict[int, int]:
    return {op: int(walk.state.swaps.stall[op]) for op in np.flatnonzero(walk.state.swaps.stall).tolist()}


def test_a_gap_is_selected_or_selected_no_longer() -> None:
    walk = walk_to()
    change(walk, SELECT, 2)
    assert selected(walk) == [2]
    change(walk, EXCHANGE - 1, 2)
    assert selected(walk) == []


def test_without_a_budget_for_stalls_the_first_draws_select_too() -> None:
    walk = walk_to()
    change(walk, STALL, 1)
    assert selected(walk) == [1]
    change(walk, SELECT, 2, budget=FAR)
    assert selected(walk) == [1, 2]


@pytest.mark.parametrize("kind", [EXCHANGE, MOVE_OUT, MOVE_IN])
def test_where_nothing_is_selected_every_step_selects(kind: int) -> None:
    walk = walk_to()
    change(walk, kind, 3)
    assert selected(walk) == [3]


def test_a_dropped_gap_is_not_selected() -> None:
    walk = walk_to()
    walk.drops.choice.recompute_at[1] = 5
    change(walk, SELECT, 1)
    assert selected(walk) == []
    select(walk, 2)
    change(walk, EXCHANGE, 0, 1)
    assert selected(walk) == []  # the other is given up all the same


def test_a_gap_is_exchanged_for_another_or_given_up_for_itself() -> None:
    walk = select(walk_to(), 1, 2)
    turn = walk.state.swaps.ins[:2].tolist().index(1)
    change(walk, MOVE_OUT - 1, turn, 3)
    assert selected(walk) == [2, 3]
    change(walk, EXCHANGE, walk.state.swaps.ins[:2].tolist().index(3), 3)
    assert selected(walk) == [2]


@pytest.mark.parametrize(("kind", "name"), [(MOVE_OUT, "outs"), (MOVE_IN - 1, "outs"), (MOVE_IN, "ins"), (99, "ins")])
def test_a_copy_moves_within_the_order_of_its_engine(kind: int, name: str) -> None:
    walk, moved = select(walk_to(), 1, 2), []
    order_of_engine = getattr(walk.state.swaps, name)
    change(walk, kind, shift=lambda order, count, random: moved.append((order is order_of_engine, count)))
    assert moved == [(True, 2)]


def test_where_there_are_no_gaps_only_stalls_change() -> None:
    trace = Trace(Buffers.make([8, 8], [0, 0], [2, 1]), Ops.make([[], [0]], [[0, 1], []], duration=[50, 50]))
    walk = SearchWalk(Instance.of(trace, CARD, 1), 1.0, 0)
    assert not len(walk.windows)
    change(walk, SELECT)
    change(walk, STALL)
    walk.state.swaps.stall[0] = 5
    change(walk, STALL, 1, 0, 1, 0, budget=FAR)
    assert sum(stalls(walk).values()) == 5


def long_walk(goal: int = 1) -> SearchWalk:
    """Iterations of 20,000 ns: the longest stall that a step adds is 100 ns, the next one 50."""
    walk = walk_to(goal)
    walk.state.problem.begin[:] *= 250
    walk.state.problem.end[:] *= 250
    walk.state = walk.state._replace(problem=walk.state.problem._replace(period=20_000))
    retime(walk.state)
    return walk


def test_the_op_at_the_worst_point_waits_three_times_in_four_and_any_op_at_a_point_else() -> None:
    walk = long_walk()
    points = walk.drops.points
    walk.state.times.worst[0] = 3
    change(walk, STALL, 2, 3, 0, budget=FAR)  # no op waits so far: whatever the kind
    assert stalls(walk) == {points[3] // 2: 100}
    change(walk, STALL, 0, 0, 5, 1, budget=FAR)
    assert stalls(walk) == {points[3] // 2: 100, points[5] // 2: 50}


@pytest.mark.parametrize(("budget", "after"), [(99, 99), (100, 100), (101, 100)])
def test_ops_wait_for_no_more_than_the_budget(budget: int, after: int) -> None:
    walk = long_walk()
    change(walk, STALL, 0, 1, 0, budget=budget)
    assert sum(stalls(walk).values()) == after
    assert walk.state.times.period[0] == walk.state.problem.period + after  # the times are those of the change
    change(walk, STALL, 0, 1, 0, budget=budget)
    assert sum(stalls(walk).values()) == min(budget, 200)


def test_without_a_point_the_first_op_waits() -> None:
    walk = long_walk(10_000)
    assert not walk.drops.used[POINTS]
    change(walk, STALL, 0, 0, 0, budget=FAR)
    assert stalls(walk) == {0: 100}


@pytest.mark.parametrize(
    ("kind", "part", "target", "after"),
    [
        (NEARBY, [ALL], [5], {3: 64}),  # by none of -5 to 5 ops: it stays
        (NEARBY, [ALL], [10], {(3 + 5) % 8: 64}),
        (NEARBY, [ALL], [0], {(3 - 5) % 8: 64}),
        (NEARBY, [PART, 0], [6], {3: 32, 4: 32}),
        (NEARBY, [PART, 3], [6], {3: 60, 4: 4}),
        (ANYWHERE, [ALL], [7], {7: 64}),
        (SHORTER, [PART, 1], [], {3: 48}),
        (SHORTER, [ALL], [], {}),
    ],
)
def test_a_stall_is_moved_nearby_or_anywhere_or_shortened(
    kind: int, part: list[int], target: list[int], after: dict[int, int]
) -> None:
    walk = walk_to()
    walk.state.swaps.stall[3] = 64
    # Op 5 is drawn: the next one that waits, round the circle, is op 3.
    change(walk, STALL, kind, 5, *part, *target, budget=FAR)
    assert stalls(walk) == after


def test_the_stall_that_changes_is_the_next_one_from_an_op_on() -> None:
    walk = walk_to()
    walk.state.swaps.stall[[2, 6]] = 64
    change(walk, STALL, SHORTER, 4, ALL, budget=FAR)
    assert stalls(walk) == {2: 64}
    walk.state.swaps.stall[4] = 64
    change(walk, STALL, SHORTER, 4, ALL, budget=FAR)
    assert stalls(walk) == {2: 64}
