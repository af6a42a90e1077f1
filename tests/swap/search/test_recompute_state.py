"""What the search makes again and by which ways ops run: its account is the rewritten trace, whatever the changes."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, strategies as st

from gpumem.swap.plan import Hold, Plan, Recompute
from gpumem.swap.plan.replay import Device, replays
from gpumem.swap.plan.values import Origins
from gpumem.swap.search._chosen import chosen_of
from gpumem.swap.search._hold_moves import hold_step
from gpumem.swap.search._operator_choices import fastest
from gpumem.swap.search._recompute_changes import choose, drop, fill, hold, let_go, linger, outlive, settle
from gpumem.swap.search._recompute_state import Decided, Drops, remember, tidy
from gpumem.swap.search.annealing import Annealing
from gpumem.swap.search.instance import Instance
from gpumem.testing import steps
from gpumem.trace import RECOMPUTE
from tests.strategies import machine_of
from tests.swap.search.oracles import menus


def same(left: Drops, right: Drops) -> None:
    """All that follows from what is dropped; where it was noted is of no matter."""
    assert decided(left) == decided(right)
    for name in (
        "longer",
        "duration",
        "size",
        "wanted",
        "added",
        "beside",
        "load",
        "held",
        "due",
        "due_turn",
    ):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), name)
    assert left.points[: left.used[0]].tolist() == right.points[: right.used[0]].tolist()


def decided(d: Drops) -> tuple[object, ...]:
    """What is chosen; in which order pieces stand is of no matter."""
    c = d.c
    pieces = zip(*(column[: c.pieces[0]].tolist() for column in (c.value, c.start, c.stop)))
    return c.at.tolist(), c.later.tolist(), c.by.tolist(), c.until.tolist(), sorted(pieces)


def decided_by(c: Decided, d: Drops) -> tuple[object, ...]:
    """The same of a choice that says nothing of ways; holding a buffer until its death is no holding."""
    return decided(d._replace(c=c._replace(by=d.c.by)))


def change(data: st.DataObject, found: Annealing) -> bool:
    """Change one thing, any that there is."""
    r, d, m = found.r, found.d, found.r.made
    n, gap = found.trace.n, st.sampled_from(found.r.can.tolist())
    kind = data.draw(st.sampled_from(["choose", "drop", "drop", "hold", "hold", "linger", "outlive", "let_go", "step"]))
    if kind == "choose" and len(found.choices):
        k = data.draw(st.integers(0, len(found.choices) - 1))
        return choose(r, d, k, data.draw(st.integers(int(r.ways.first[k]), int(r.ways.first[k + 1]) - 1)))
    if kind == "hold":
        start = data.draw(st.integers(1, n - 1))
        return hold(r, d, data.draw(st.integers(0, len(m.holder) - 1)), start, data.draw(st.integers(start, n)))
    if kind == "outlive":
        return outlive(r, d, data.draw(st.integers(0, len(m.size) - 1)), data.draw(st.integers(-1, n)))
    if kind == "let_go" and d.c.pieces[0]:
        return let_go(r, d, data.draw(st.integers(0, int(d.c.pieces[0]) - 1)))
    if kind == "step":
        return hold_step(r, d, np.array([data.draw(st.integers(1, 10**6))]))
    g = data.draw(gap)
    after, last = int(m.after[g]), int(r.lasts[g])
    if kind == "linger" and d.c.at[g]:
        return linger(r, d, g, data.draw(st.sampled_from([0, *range(after + 1, int(d.c.at[g]) + 1)])))
    return drop(r, d, g, data.draw(st.sampled_from([0, last, *range(after + 1, last)])) if not d.c.at[g] else 0)


@given(st.data())
def test_one_change_after_another_is_what_apply_makes_of_all(data: st.DataObject) -> None:
    """Values made again and held, and ways of ops, in any order; the empty menu as well."""
    trace, target = data.draw(steps()), machine_of(data)
    found = Annealing(Instance.of(trace, target, 1, recompute=True, algorithms=data.draw(menus(trace))), 1.0, 0)
    r, d = found.r, found.d
    assume(len(r.can))
    anew, was = Drops.of(r), d.copy()
    settle(r, d)
    remember(r, was, d)
    for _ in range(data.draw(st.integers(1, 12))):
        fine = change(data, found)
        if fine and data.draw(st.integers(0, 3)):
            settle(r, d)
            remember(r, was, d)
        else:
            remember(r, d, was)
        if data.draw(st.booleans()):
            tidy(d)
            remember(r, was, d)
    tidy(d)
    settle(r, d)  # from what was noted, remembered and tidied up
    assert fill(r, anew, d.c)
    same(d, anew)
    decisions = found.changes(d.c)
    assert decided(d) == decided_by(chosen_of(r, found.w.rows(trace.n), Plan.of(trace, decisions)), d)
    again = Plan.of(trace, decisions).apply(trace)
    ran = again.ops.role == RECOMPUTE
    time = target.durations(again)
    assert d.added.sum() == time[ran].sum()
    np.testing.assert_array_equal(d.duration, time[~ran])
    np.testing.assert_array_equal(d.duration - d.longer, target.durations(fastest(trace, found.choices)))
    np.testing.assert_array_equal(d.held[1::2], again.live_bytes()[~ran])
    assert (
        max(d.held[1::2].max(), max((d.held[2 * i] for i in np.flatnonzero(d.wanted)), default=0))
        == again.peak_live_bytes
    )
    there, w = [x for x in decisions if isinstance(x, Recompute | Hold)], found.w
    wanted = [x for x in there if isinstance(x, Recompute) or x.at >= 0]
    for made in replays(Device(trace, Origins.of(trace), there), wanted):
        for g in np.flatnonzero(np.isin(w.buffer, list(made.sources))):
            far = (made.place - w.after[g] - 1) % trace.n + 1
            if far <= w.before[g] - w.after[g]:
                due = int(d.due_turn[g]) * trace.n + int(d.due[g]) // 2
                assert due <= w.after[g] + far


@given(st.data())
def test_with_little_room_for_what_is_read_nothing_is_read_beyond_it(data: st.DataObject) -> None:
    """Whoever changes things tidies up or is refused; what was refused can be settled."""
    trace, target = data.draw(steps()), machine_of(data)
    found = Annealing(Instance.of(trace, target, 1, recompute=True), 1.0, 0)
    assume(len(found.r.can))
    for _ in range(data.draw(st.integers(0, 12))):
        was = found.d.copy()
        if not change(data, found):
            remember(found.r, found.d, was)
    tidy(found.d)
    used = int(found.d.used[1])
    d = found.d = found.d._replace(read=found.d.read[: used + data.draw(st.integers(0, 8))].copy())
    for b in np.flatnonzero(d.c.until >= 0).tolist():
        if not outlive(found.r, d, b, -1):
            settle(found.r, d)
            assert (d.start + d.length)[d.length > 0].max(initial=0) <= len(d.read)
            return
    fine = found.prune()
    assert (d.start + d.length)[d.length > 0].max(initial=0) <= len(d.read)
    if fine:
        anew = Drops.of(found.r)
        assert fill(found.r, anew, d.c)
        same(d, anew)
