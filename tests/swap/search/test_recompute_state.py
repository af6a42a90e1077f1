"""What the search recomputes and which variants ops run: its account is the rewritten trace, whatever the changes."""

from __future__ import annotations

import numpy as np
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
from gpumem.swap.search._recompute_state import LOGGED, POINTS, RecomputeChoice, RecomputeState, compact, copy_drops
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.walk import Walk
from gpumem.testing import steps
from gpumem.trace import RECOMPUTE
from tests.strategies import machine_of
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


def change(data: st.DataObject, walk: Walk) -> bool:
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
    walk = Walk(Instance.of(trace, target, 1, recompute=True, algorithms=data.draw(menus(trace))), 1.0, 0)
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
    np.testing.assert_array_equal(drops.occupied[1::2], recomputed.load()[~is_recomputation])
    at_places = max((drops.occupied[2 * place] for place in np.flatnonzero(drops.targets)), default=0)
    assert max(drops.occupied[1::2].max(), at_places) == recomputed.peak_load
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
    walk = Walk(Instance.of(trace, target, 1, recompute=True), 1.0, 0)
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
