"""What each draw of a step over drops leads to."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gpumem.swap.plan import Variant
from gpumem.swap.search import _recompute_moves
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import IN
from gpumem.swap.search._recompute_changes import drop, propagate
from gpumem.swap.search._recompute_state import LOGGED, MARKS, POINTS, copy_drops
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.walk import SearchWalk
from gpumem.trace import Buffers, Ops, Trace
from tests.plain import plain
from tests.swap.nets import CARD
from tests.swap.search.draws import Draws

A, B, C = range(3)  # gaps, and the rows of these below
SWITCH, OTHER = 29, 30  # the first draw of a step that switches a variant, where there are some, and of others
HELD, DROPPED = 24, 25  # then, of a step that holds something, where there is a replay, and of others
ANY_GAP = 0  # after a gap is drawn: wherever it is; else it should be around the worst point
LAST, INSIDE = 0, 1  # where a gap's value is recomputed


def walk_to(goal: int = 1, *, choices: bool = True, droppable: bool = True) -> SearchWalk:
    """A, B and C of 8 bytes, by ops 0 to 2 of nothing, read by ops 9, 8 and 7: each can be recomputed until then.

    Op 0 runs by two variants, of 10 and 0 bytes of workspace, op 4 by three, of 20, 10 and 0.
    """
    reads = [[], [], [], [], [], [], [], [2], [1], [0]]
    writes = [[0, 3], [1], [2], [], [4], [], [], [], [], []]
    kind = ["activation"] * 3 + ["workspace"] * 2
    buffers = Buffers.make([8, 8, 8, 10, 20], [0, 1, 2, 0, 4], [10, 9, 8, 1, 5], kind=kind)
    trace = Trace(buffers, Ops.make(reads, writes, duration=[10] * 10, name=["zeros"] * 10))
    menu = {0: [Variant(0, "small", 12, 0)], 4: [Variant(4, "some", 12, 10), Variant(4, "none", 15, 0)]}
    instance = Instance.of(trace, CARD, goal, recompute=droppable or choices, algorithms=menu if choices else {})
    walk = SearchWalk(instance, 1.0, 0)
    if not droppable:
        walk.recompute = walk.recompute._replace(droppable=walk.recompute.droppable[:0])
    return walk


def loops(*values: int, **others: Any) -> tuple[Any, Draws]:
    draws = Draws(*values)
    return plain(_recompute_moves, draw=draws, **others), draws


def change(walk: SearchWalk, *values: int, **others: Any) -> bool:
    """Take a step with these draws."""
    steps, draws = loops(*values, **others)
    possible: bool = steps.change_drops(walk.state, walk.recompute, walk.drops.copy(), None)
    assert draws.all_taken()
    return possible


def drop_some(walk: SearchWalk, *values: int) -> bool:
    steps, draws = loops(*values)
    possible: bool = steps._drop_some(walk.state, walk.recompute, None)
    assert draws.all_taken()
    propagate(walk.recompute, walk.drops)
    return possible


def dropped(walk: SearchWalk) -> dict[int, int]:
    """Before which op each dropped gap is recomputed."""
    places = walk.drops.choice.recompute_at
    return {gap: int(places[gap]) for gap in np.flatnonzero(places).tolist()}


def with_drops(walk: SearchWalk, places: dict[int, int]) -> SearchWalk:
    for gap, place in places.items():
        assert drop(walk.recompute, walk.drops, gap, place)
    propagate(walk.recompute, walk.drops)
    return walk


def with_swaps(walk: SearchWalk, *gaps: int) -> SearchWalk:
    for gap in gaps:
        toggle(walk.state.problem, walk.drops, walk.state.swaps, gap)
    return walk


def swapped(walk: SearchWalk) -> list[int]:
    return sorted(walk.state.swaps.ins[: walk.state.swaps.lengths[IN]].tolist())


def test_the_net_is_as_told() -> None:
    walk = walk_to()
    assert walk.recompute.droppable.tolist() == [A, B, C]
    assert walk.recompute.last_place.tolist() == [9, 8, 7]
    assert walk.recompute.columns.after.tolist() == [0, 1, 2]
    assert np.diff(walk.recompute.variants.first).tolist() == [2, 3]


# Which kind of step it is.


def kind_of(walk: SearchWalk, *values: int) -> str:
    """The kind of the step that these draws lead to."""
    taken: list[str] = []

    def step(kind: str, *_: object) -> bool:
        taken.append(kind)
        return True

    kinds = {"_switch_some": "switch", "change_holds": "hold", "_drop_some": "drop"}
    assert change(walk, *values, **{name: partial(step, kind) for name, kind in kinds.items()})
    (kind,) = taken
    return kind


def test_a_step_switches_a_variant_or_changes_what_is_held_or_what_is_dropped() -> None:
    assert kind_of(walk_to(), SWITCH) == "switch"
    assert kind_of(walk_to(droppable=False)) == "switch"  # there is nothing else to do
    replay = {A: 9}
    assert kind_of(with_drops(walk_to(), replay), OTHER, HELD) == "hold"
    assert kind_of(with_drops(walk_to(), replay), OTHER, DROPPED) == "drop"
    assert kind_of(walk_to(), OTHER, HELD) == "drop"  # there is no replay to hold anything for
    assert kind_of(with_drops(walk_to(choices=False), replay), HELD) == "hold"
    assert kind_of(walk_to(choices=False), DROPPED) == "drop"


def test_after_a_switch_the_live_bytes_are_found_anew() -> None:
    walk = walk_to()
    switched = walk.recompute.variants.first[1] + 1
    assert change(walk, SWITCH, 3, 1, 0)
    assert walk.drops.choice.variant.tolist() == [0, switched]
    assert walk.drops.occupied[2 * 4 + 1] == 24 + 10


def test_what_a_drop_changes_is_found_anew_where_it_is_possible() -> None:
    """B is read by the replay of A here: it is due before that."""
    walk = with_swaps(walk_to(choices=False), B, C)
    due, sorted_anew = walk.drops.due.copy(), []

    def require_before(state: Any, recompute: Any, random: object) -> bool:
        drops = state.drops
        drops.targets[6], drops.read_start[6], drops.read_count[6], drops.reads[0] = 1, 0, 1, 1
        drops.live[2 * 5 + 1] += 100
        return True

    def reorder(problem: Any, drops: Any, swaps: Any, gap: int) -> None:
        sorted_anew.append(gap)

    occupied = walk.drops.occupied.copy()
    assert change(walk, DROPPED, _drop_some=require_before, reorder=reorder)
    assert walk.drops.due.tolist() == [due[A], 2 * 6, due[C]] and sorted_anew == [B]
    assert walk.drops.occupied[2 * 5 + 1] == occupied[2 * 5 + 1] + 100
    walk = with_swaps(walk_to(choices=False), C)
    assert change(walk, DROPPED, _drop_some=require_before, reorder=reorder) and sorted_anew == [B]  # B is not swapped


def test_what_was_not_possible_is_left_to_whoever_goes_back() -> None:
    def half_done(state: Any, recompute: Any, random: object) -> bool:
        state.drops.live[:] += 100
        return False

    walk = walk_to(choices=False)
    occupied = walk.drops.occupied.copy()
    assert not change(walk, DROPPED, _drop_some=half_done)
    np.testing.assert_array_equal(walk.drops.occupied, occupied)


def test_the_copy_to_go_back_to_is_compacted_with_the_state() -> None:
    """A's replay reads B, noted behind what no replay reads any more."""
    walk = walk_to(choices=False)
    drops = walk.drops
    half = len(drops.reads) // 2
    drops.targets[6], drops.read_start[6], drops.read_count[6], drops.used[LOGGED] = 1, half, 1, half + 1
    drops.reads[half] = B
    before = drops.copy()
    steps, _ = loops(DROPPED, _drop_some=lambda *_: False)
    steps.change_drops(walk.state, walk.recompute, before, None)
    assert before.read_start[6] == drops.read_start[6] == 0 and before.used[LOGGED] == 1
    copy_drops(walk.recompute, drops, before)
    assert drops.reads[drops.read_start[6]] == B


# What is dropped, and what changes the other way.


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_a_gap_is_dropped_at_the_last_place(kind: int) -> None:
    walk = walk_to()
    # Kept instead: the value from a row on that is dropped: none.
    assert drop_some(walk, B, ANY_GAP, kind, *([0] if kind == 0 else []), LAST)
    assert dropped(walk) == {B: 8}


def test_a_swapped_gap_is_dropped_instead() -> None:
    walk = with_swaps(walk_to(), B)
    assert drop_some(walk, B, ANY_GAP, 2, LAST)
    assert dropped(walk) == {B: 8} and swapped(walk) == []


def test_one_is_dropped_and_another_kept() -> None:
    """The next dropped one from a row on, round the circle."""
    walk = with_drops(walk_to(), {A: 9, C: 7})
    assert drop_some(walk, B, ANY_GAP, 0, 1, LAST)
    assert dropped(walk) == {A: 9, B: 8}
    assert drop_some(walk, C, ANY_GAP, 0, 2, LAST)
    assert dropped(walk) == {B: 8, C: 7}


def test_what_cannot_be_kept_is_not_exchanged() -> None:
    walk = with_drops(walk_to(), {A: 9})
    steps, draws = loops(B, ANY_GAP, 0, _keep_one=lambda *_: False)
    assert not steps._drop_some(walk.state, walk.recompute, None) and draws.all_taken()
    assert dropped(walk) == {A: 9}


def test_one_is_dropped_and_another_swapped_no_longer() -> None:
    walk = with_swaps(walk_to(), A, C)
    turn = walk.state.swaps.ins[:2].tolist().index(C)
    assert drop_some(walk, B, ANY_GAP, 1, turn, LAST)
    assert dropped(walk) == {B: 8} and swapped(walk) == [A]


def test_a_dropped_gap_is_swapped_instead_or_kept() -> None:
    walk = with_drops(walk_to(), {B: 8})
    assert drop_some(walk, B, ANY_GAP, 0)
    assert dropped(walk) == {} and swapped(walk) == [B]
    walk = with_drops(walk_to(), {B: 8})
    assert drop_some(walk, B, ANY_GAP, 1)
    assert dropped(walk) == {} and swapped(walk) == []


def test_a_dropped_gap_is_kept_and_another_dropped() -> None:
    walk = with_drops(walk_to(), {B: 8})
    assert drop_some(walk, B, ANY_GAP, 3, C, ANY_GAP, LAST)
    assert dropped(walk) == {C: 7}
    assert not drop_some(walk, C, ANY_GAP, 3, C, ANY_GAP)  # for itself: nothing would have changed
    walk = with_drops(walk_to(), {A: 9, B: 8})
    assert not drop_some(walk, B, ANY_GAP, 3, A, ANY_GAP)  # which is dropped already


def test_what_cannot_be_changed_is_not_exchanged() -> None:
    walk = with_drops(walk_to(), {B: 8})
    steps, draws = loops(B, ANY_GAP, 3, drop=lambda *_: False)
    assert not steps._drop_some(walk.state, walk.recompute, None) and draws.all_taken()


def test_a_dropped_gap_is_recomputed_elsewhere() -> None:
    """With a replay inside it that touches its buffer, each as likely; at the same place it would be no step."""
    walk = with_drops(walk_to(), {B: 6})
    assert drop_some(walk, B, ANY_GAP, 2, LAST)
    assert dropped(walk) == {B: 8}
    assert not drop_some(walk, B, ANY_GAP, 2, LAST)
    for place in (3, 5, 8):
        walk.drops.targets[place], walk.drops.touched[place, B % MARKS] = 1, True
    walk.drops.targets[4] = 1  # touches something else
    walk.drops.touched[7, B % MARKS] = True  # is none
    loops_, draws = loops(INSIDE, 0, 0, 1)
    assert loops_._draw_place(walk.recompute, walk.drops, B, None) == 5
    assert draws.below == [2, 1, 2, 3] and draws.all_taken()
    assert loops(INSIDE, 0, 1, 0)[0]._draw_place(walk.recompute, walk.drops, B, None) == 8
    walk.drops.targets[:2], walk.drops.touched[:2, B % MARKS] = 1, True  # up to the op after which it is dropped
    walk.drops.targets[9], walk.drops.touched[9, B % MARKS] = 1, True  # behind the last place
    assert loops(INSIDE, 0, 1, 1)[0]._draw_place(walk.recompute, walk.drops, B, None) == 3


def test_without_a_replay_inside_a_gap_its_value_is_recomputed_at_the_last_place() -> None:
    walk = walk_to()
    assert drop_some(walk, B, ANY_GAP, 2, INSIDE)
    assert dropped(walk) == {B: 8}


# Around the worst point.


@pytest.mark.parametrize(
    ("position", "gap", "others", "drawn"),
    [
        (2 * 1 + 1, A, [], A),
        (2 * 1 + 1, B, [C, A], A),  # B is there while op 1 runs, which writes it
        (2 * 2 + 1, B, [], B),
        (2 * 7 - 1, C, [], C),
        (2 * 7, C, [B], B),  # from the replay before op 7 on, which reads it, C is there
        (2 * 0 + 1, C, [A, B] * 8, B),  # none is around it: after some looks, the last one
    ],
)
def test_a_gap_around_the_worst_point_is_drawn(position: int, gap: int, others: list[int], drawn: int) -> None:
    walk = walk_to()
    walk.drops.points[0], walk.state.times.worst[0] = position, 0
    for first in (1, 3):
        steps, draws = loops(gap, first, *others)
        assert steps._draw_gap(walk.state, walk.recompute, None) == drawn and draws.all_taken()
    assert loops(gap, ANY_GAP)[0]._draw_gap(walk.state, walk.recompute, None) == gap


def test_points_may_have_become_fewer() -> None:
    walk = walk_to()
    walk.state.times.worst[0] = 5
    position = loops()[0]._worst_position
    assert position(walk.state) == walk.drops.points[5]
    walk.drops.used[POINTS] = 3
    assert position(walk.state) == walk.drops.points[2]
    walk.drops.used[POINTS] = 0
    assert position(walk.state) == walk.drops.points[0]


# Variants.


def switch(walk: SearchWalk, *values: int, of: int = 0) -> list[int]:
    """Which variant each op runs by then, of its own; the last draw is one of so many."""
    steps, draws = loops(*values)
    assert steps._switch_some(walk.state, walk.recompute, None)
    assert draws.all_taken() and of in (0, draws.below[-1])
    chosen: list[int] = (walk.drops.choice.variant - walk.recompute.variants.first[:-1]).tolist()
    return chosen


ANY_OP, FASTER, AT_WORST = 3, 2, 1  # the first draw
OP_0, OP_4 = 0, 1  # rows of ops with a choice, by two variants and by three


def test_an_op_runs_by_any_variant_but_its_own() -> None:
    walk = walk_to()
    assert switch(walk, ANY_OP, OP_4, 0, of=2) == [0, 1]
    assert switch(walk, ANY_OP, OP_4, 0, of=2) == [0, 0]
    assert switch(walk, ANY_OP, OP_4, 1, of=2) == [0, 2]
    assert switch(walk, ANY_OP, OP_4, 1, of=2) == [0, 1]
    assert switch(walk, ANY_OP, OP_0, 0, of=1) == [1, 1]


def test_or_by_a_faster_one() -> None:
    walk = walk_to()
    switch(walk, ANY_OP, OP_4, 0)
    assert switch(walk, FASTER, OP_4, 0, of=1) == [0, 0]
    assert switch(walk, FASTER, OP_4, 1, of=2) == [0, 2]  # none is faster: any
    assert switch(walk, FASTER, OP_4, 1, of=2) == [0, 1]
    assert switch(walk, ANY_OP, OP_4, 1, of=2) == [0, 2]


@pytest.mark.parametrize("kind", [0, AT_WORST])
def test_half_of_the_time_the_op_at_the_worst_point_switches(kind: int) -> None:
    walk = walk_to()
    walk.drops.points[0], walk.state.times.worst[0] = 2 * 4 + 1, 0
    assert switch(walk, kind, OP_0, 0) == [0, 1]
    walk.drops.points[0] = 2 * 5 + 1  # op 5 has no choice: the one drawn
    assert switch(walk, kind, OP_0, 0) == [1, 1]


def test_or_one_that_the_replay_at_the_worst_point_runs() -> None:
    walk = with_drops(walk_to(), {A: 9})
    walk.drops.points[0], walk.state.times.worst[0] = 2 * 9, 0
    assert switch(walk, AT_WORST, OP_4, OP_4, OP_4, OP_0, 0) == [1, 0]  # looked for until it is found
    assert switch(walk, AT_WORST, OP_4, *[OP_4] * 16, 0) == [1, 1]  # or, after some looks, the one drawn
    walk.drops.points[0] = 2 * 5  # no replay
    assert switch(walk, AT_WORST, OP_0, 0) == [0, 1]
