"""What the search recomputes and which variants ops run: its account is the rewritten trace, whatever the changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from gpumem.swap.plan import Hold, Plan, Recompute
from gpumem.swap.plan.replay import Device, replays
from gpumem.swap.plan.values import Origins
from gpumem.swap.search._chosen import choice_of
from gpumem.swap.search._hold_moves import change_holds
from gpumem.swap.search._operator_choices import fastest
from gpumem.swap.search._recompute_changes import (
    adopt,
    drop,
    drop_later,
    hold,
    hold_dead,
    propagate,
    release,
    switch_variant,
)
from gpumem.swap.search._recompute_state import (
    LOGGED,
    PIECES,
    POINTS,
    RecomputeChoice,
    RecomputeState,
    compact,
    copy_drops,
)
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.walk import SearchWalk
from gpumem.testing import steps
from gpumem.trace import RECOMPUTE, Buffers, Ops, Trace
from tests.strategies import machine_of
from tests.swap.nets import CARD
from tests.swap.search.oracles import menus


def same(left: RecomputeState, right: RecomputeState) -> None:
    """All that follows from what is dropped; where it was logged is of no matter."""
    assert decided(left.choice) == decided(right.choice)
    for name in (
        "extra_ns",
        "duration",
        "size",
        "targets",
        "added_ns",
        "scratch",
        "live",
        "occupied",
        "due",
        "due_iteration",
    ):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), name)
    assert left.points[: left.used[POINTS]].tolist() == right.points[: right.used[POINTS]].tolist()


def decided(choice: RecomputeChoice) -> tuple[object, ...]:
    """What is chosen; in which order pieces stand is of no matter."""
    columns = (choice.piece_value, choice.piece_start, choice.piece_stop)
    pieces = sorted(zip(*(column[: choice.pieces[0]].tolist() for column in columns)))
    return (
        choice.recompute_at.tolist(),
        choice.drop_at.tolist(),
        choice.variant.tolist(),
        choice.held_until.tolist(),
        pieces,
    )


def change(data: st.DataObject, walk: SearchWalk) -> bool:
    """Change one thing, any that there is."""
    recompute, drops, columns = walk.recompute, walk.drops, walk.recompute.columns
    ops = walk.trace.n
    kinds = ["variant", "drop", "drop", "hold", "hold", "later", "dead", "release", "step"]
    kind = data.draw(st.sampled_from(kinds))
    if kind == "variant" and len(walk.choices):
        row, first = data.draw(st.integers(0, len(walk.choices) - 1)), recompute.variants.first
        return switch_variant(recompute, drops, row, data.draw(st.integers(int(first[row]), int(first[row + 1]) - 1)))
    if kind == "hold":
        start = data.draw(st.integers(1, ops - 1))
        value = data.draw(st.integers(0, len(columns.holder) - 1))
        return hold(recompute, drops, value, start, data.draw(st.integers(start, ops)))
    if kind == "dead":
        buffer = data.draw(st.integers(0, len(columns.size) - 1))
        return hold_dead(recompute, drops, buffer, data.draw(st.integers(-1, ops)))
    if kind == "release" and drops.choice.pieces[0]:
        return release(recompute, drops, data.draw(st.integers(0, int(drops.choice.pieces[0]) - 1)))
    if kind == "step":
        return change_holds(recompute, drops, np.array([data.draw(st.integers(1, 10**6))]))
    gap = data.draw(st.sampled_from(recompute.droppable.tolist()))
    after, last, dropped = int(columns.after[gap]), int(recompute.last_place[gap]), int(drops.choice.recompute_at[gap])
    if kind == "later" and dropped:
        return drop_later(recompute, drops, gap, data.draw(st.sampled_from([0, *range(after + 1, dropped + 1)])))
    places = st.sampled_from([0, last, *range(after + 1, last)])
    return drop(recompute, drops, gap, 0 if dropped else data.draw(places))


@given(st.data())
def test_one_change_after_another_is_what_apply_makes_of_all(data: st.DataObject) -> None:
    """Values recomputed and held, and variants of ops, in any order; the empty menu as well."""
    trace, target = data.draw(steps()), machine_of(data)
    walk = SearchWalk(Instance.of(trace, target, 1, recompute=True, algorithms=data.draw(menus(trace))), 1.0, 0)
    recompute, drops = walk.recompute, walk.drops
    assume(len(recompute.droppable))
    anew, before = RecomputeState.of(recompute), drops.copy()
    propagate(recompute, drops)
    copy_drops(recompute, before, drops)
    for _ in range(data.draw(st.integers(1, 12))):
        possible = change(data, walk)
        if possible and data.draw(st.integers(0, 3)):
            propagate(recompute, drops)
            copy_drops(recompute, before, drops)
        else:
            copy_drops(recompute, drops, before)
        if data.draw(st.booleans()):
            compact(drops)
            copy_drops(recompute, before, drops)
    compact(drops)
    propagate(recompute, drops)  # from what was logged, copied and compacted
    assert adopt(recompute, anew, drops.choice)
    same(drops, anew)
    decisions = walk.changes(drops.choice)
    # A choice of a plan says nothing of variants; holding a buffer until its death is no holding.
    chosen = choice_of(recompute, walk.windows.rows(trace.n), Plan.of(trace, decisions))
    assert decided(drops.choice) == decided(chosen._replace(variant=drops.choice.variant))
    recomputed = Plan.of(trace, decisions).apply(trace)
    is_recomputation = recomputed.ops.role == RECOMPUTE
    durations = target.durations(recomputed)
    assert drops.added_ns.sum() == durations[is_recomputation].sum()
    np.testing.assert_array_equal(drops.duration, durations[~is_recomputation])
    np.testing.assert_array_equal(drops.duration - drops.extra_ns, target.durations(fastest(trace, walk.choices)))
    np.testing.assert_array_equal(drops.occupied[1::2], recomputed.live_bytes()[~is_recomputation])
    at_places = max((drops.occupied[2 * place] for place in np.flatnonzero(drops.targets)), default=0)
    assert max(drops.occupied[1::2].max(), at_places) == recomputed.peak_live_bytes
    values = [x for x in decisions if isinstance(x, Recompute | Hold)]
    targets = [x for x in values if isinstance(x, Recompute) or x.at >= 0]
    windows = walk.windows
    for replay in replays(Device(trace, Origins.of(trace), values), targets):
        for gap in np.flatnonzero(np.isin(windows.buffer, list(replay.sources))):
            distance = (replay.place - windows.after[gap] - 1) % trace.n + 1
            if distance <= windows.before[gap] - windows.after[gap]:
                due = int(drops.due_iteration[gap]) * trace.n + int(drops.due[gap]) // 2
                assert due <= windows.after[gap] + distance


@given(st.data())
def test_where_little_of_the_log_is_free_nothing_is_read_beyond_it(data: st.DataObject) -> None:
    """Whoever changes things compacts it or is refused; what was refused can be propagated."""
    trace, target = data.draw(steps()), machine_of(data)
    walk = SearchWalk(Instance.of(trace, target, 1, recompute=True), 1.0, 0)
    recompute = walk.recompute
    assume(len(recompute.droppable))
    for _ in range(data.draw(st.integers(0, 12))):
        before = walk.drops.copy()
        if not change(data, walk):
            copy_drops(recompute, walk.drops, before)
    compact(walk.drops)
    free = data.draw(st.integers(0, 8))
    drops = walk.drops._replace(reads=walk.drops.reads[: int(walk.drops.used[LOGGED]) + free].copy())
    walk.state = walk.state._replace(drops=drops)
    for buffer in np.flatnonzero(drops.choice.held_until >= 0).tolist():
        if not hold_dead(recompute, drops, buffer, -1):
            propagate(recompute, drops)
            assert (drops.read_start + drops.read_count)[drops.read_count > 0].max(initial=0) <= len(drops.reads)
            return
    possible = walk.trim_holds()
    assert (drops.read_start + drops.read_count)[drops.read_count > 0].max(initial=0) <= len(drops.reads)
    if possible:
        anew = RecomputeState.of(recompute)
        assert adopt(recompute, anew, drops.choice)
        same(drops, anew)


def chained() -> SearchWalk:
    """A, which comes in: read until op 5. B, of A: until op 2. C, of B: read by ops 3 and 6. D, of C and A: by op 7.

    Z is a constant, read by op 4; E, of no bytes, is made by op 3 of C and A. W is a workspace of op 1.
    """
    reads = [[], [0], [1], [2, 0], [4], [0], [2], [3]]
    writes = [[], [1, 6], [2], [3, 5], [], [], [], []]
    size, start, end = [8, 8, 8, 8, 8, 0, 8], [0, 1, 2, 3, 0, 3, 1], [6, 3, 7, 8, 8, 4, 2]
    kind, persistent = ["activation"] * 6 + ["workspace"], [False] * 4 + [True, False, False]
    buffers = Buffers.make(size, start, end, persistent=persistent, kind=kind)
    trace = Trace(buffers, Ops.make(reads, writes, duration=[10] * 8))
    return SearchWalk(Instance.of(trace, CARD, 1, recompute=True), 1.0, 0)


A, B, C, D, Z, E, W = range(7)  # buffers of `chained`, and their values


def gap_of(walk: SearchWalk, buffer: int, after: int) -> int:
    return walk.windows.rows(walk.trace.n)[buffer, after]


def test_a_value_is_dropped_before_it_is_recomputed() -> None:
    walk = chained()
    recompute, drops, gap = walk.recompute, walk.drops, gap_of(walk, C, 3)
    assert drop(recompute, drops, gap, 5)
    assert not drop_later(recompute, drops, gap, 5)
    assert drop_later(recompute, drops, gap, 4) and drops.choice.drop_at[gap] == 4
    assert drop(recompute, drops, gap, 4) and drops.choice.drop_at[gap] == 0


def test_a_value_is_not_recomputed_where_what_it_is_made_of_is_gone() -> None:
    walk = chained()
    assert drop(walk.recompute, walk.drops.copy(), gap_of(walk, C, 3), 5)
    assert not drop(walk.recompute, walk.drops.copy(), gap_of(walk, C, 3), 6)  # A is dead


@pytest.mark.parametrize(
    ("buffer", "until", "possible"),
    [(B, 3, True), (B, 8, True), (B, -1, True), (B, 2, False), (B, 9, False), (Z, 8, False)],
)
def test_a_buffer_is_held_from_its_death_on_within_the_iteration(buffer: int, until: int, possible: bool) -> None:
    walk = chained()
    assert hold_dead(walk.recompute, walk.drops, buffer, until) == possible


@pytest.mark.parametrize(
    ("value", "start", "stop", "possible"),
    [
        (C, 4, 6, True),
        (C, 3, 8, True),
        (C, 2, 4, False),  # op 2 writes it
        (C, 4, 4, False),
        (C, 4, 9, False),
        (A, 4, 6, False),  # nothing writes it
        (W, 4, 6, False),  # of use to its op only
        (E, 4, 6, False),  # no bytes
    ],
)
def test_a_piece_is_recomputed_behind_its_op_and_held_for_some_ops(
    value: int, start: int, stop: int, possible: bool
) -> None:
    walk = chained()
    assert hold(walk.recompute, walk.drops, value, start, stop) == possible


def test_pieces_of_a_buffer_follow_one_another_and_there_is_an_end_of_them() -> None:
    walk = chained()
    recompute, drops = walk.recompute, walk.drops
    assert hold(recompute, drops, C, 4, 5)
    assert not hold(recompute, drops.copy(), C, 4, 6) and not hold(recompute, drops.copy(), C, 3, 5)
    assert hold(recompute, drops, C, 5, 6)
    drops.choice.pieces[0] = PIECES
    assert not hold(recompute, drops, D, 4, 5)


def test_no_value_is_recomputed_twice_at_one_place() -> None:
    walk = chained()
    assert drop(walk.recompute, walk.drops, gap_of(walk, C, 3), 5)
    assert not hold(walk.recompute, walk.drops, C, 5, 6)


def test_a_replay_is_found_anew_only_where_a_change_concerns_it() -> None:
    walk = chained()
    recompute, drops = walk.recompute, walk.drops
    assert drop(recompute, drops, gap_of(walk, C, 3), 5)
    logged, took = int(drops.used[LOGGED]), int(drops.added_ns[5])
    assert hold_dead(recompute, drops, E, 6) and drops.used[LOGGED] == logged  # it does not touch E
    assert hold_dead(recompute, drops, B, 5) and drops.used[LOGGED] > logged
    assert (took, drops.added_ns[5]) == (20, 10)  # B is there


def test_a_replay_whose_reads_cannot_be_logged_is_refused() -> None:
    walk = chained()
    recompute, gap = walk.recompute, gap_of(walk, C, 3)
    assert not drop(recompute, walk.drops.copy()._replace(reads=walk.drops.reads[:0]), gap, 5)
    assert drop(recompute, walk.drops, gap, 5) and walk.drops.read_count[5] == 1
    full = walk.drops._replace(reads=walk.drops.reads[: walk.drops.used[LOGGED]])
    assert not hold_dead(recompute, full, B, 5) and full.read_count[5] == 0


@pytest.mark.parametrize(("place", "due"), [(0, 2 * 5 + 1), (5, 2 * 5), (4, 2 * 4)])
def test_a_swapped_buffer_is_due_before_the_first_replay_that_reads_it(place: int, due: int) -> None:
    """A, between ops 3 and 5; C is recomputed from it."""
    walk = chained()
    assert drop(walk.recompute, walk.drops, gap_of(walk, C, 3), place)
    propagate(walk.recompute, walk.drops)
    assert walk.drops.due[gap_of(walk, A, 3)] == due
    assert drop(walk.recompute, walk.drops, gap_of(walk, D, 3), 5)  # which reads it as well
    propagate(walk.recompute, walk.drops)
    assert walk.drops.due[gap_of(walk, A, 3)] == min(due, 2 * 5)


def test_nothing_is_held_for_longer_than_replays_read_it() -> None:
    walk = chained()
    recompute, drops, gap = walk.recompute, walk.drops, gap_of(walk, C, 3)
    assert drop(recompute, drops, gap, 5) and hold_dead(recompute, drops, B, 8) and walk.trim_holds()
    assert drops.choice.held_until[B] == 5  # C is made of it there
    assert drop_later(recompute, drops, gap, 4) and walk.trim_holds()
    assert drops.choice.drop_at[gap] == 0
    assert drop(recompute, drops, gap_of(walk, D, 3), 4) and drop_later(recompute, drops, gap, 4) and walk.trim_holds()
    assert drops.choice.drop_at[gap] == 4  # D is made of it
    assert drop(recompute, drops, gap, 0) and walk.trim_holds()
    assert drops.choice.held_until[B] == -1
