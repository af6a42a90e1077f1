"""What the search makes again and by which ways ops run: its account is the rewritten trace, whatever the changes."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, strategies as st

from gpumem.swap.plan import Hold, Plan, Recompute
from gpumem.swap.plan.replay import Device, replays
from gpumem.swap.plan.values import Origins
from gpumem.swap.search._operator_choices import fastest
from gpumem.swap.search._recompute_state import Drops, choose, drop, fill, remember, settle, tidy
from gpumem.swap.search.annealing import Annealing
from gpumem.testing import plans, steps
from gpumem.trace import RECOMPUTE
from tests.strategies import machine_of
from tests.swap.search.oracles import menus


def same(left: Drops, right: Drops) -> None:
    """All that follows from what is dropped; where it was noted is of no matter."""
    for name in (
        "at",
        "by",
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


@given(st.data())
def test_one_change_after_another_is_what_apply_makes_of_all(data: st.DataObject) -> None:
    """Values made again and ways of ops, in any order; the empty menu as well."""
    trace, target = data.draw(steps()), machine_of(data)
    holds = [d for d in data.draw(plans(trace, kinds=(Hold,))).decisions if isinstance(d, Hold)]
    found = Annealing(
        trace,
        target,
        1,
        1.0,
        0,
        recompute=True,
        plan=Plan.of(trace, holds),
        algorithms=data.draw(menus(trace)),
    )
    r, d = found.r, found.d
    assume(len(r.can))
    anew, was = Drops.of(r), d.copy()
    for _ in range(data.draw(st.integers(1, 8))):
        if len(found.choices) and data.draw(st.booleans()):
            k = data.draw(st.integers(0, len(found.choices) - 1))
            fine = choose(r, d, k, data.draw(st.integers(int(r.ways.first[k]), int(r.ways.first[k + 1]) - 1)))
        else:
            g = data.draw(st.sampled_from(r.can.tolist()))
            after, last = int(r.made.after[g]), int(r.lasts[g])
            fine = drop(r, d, g, data.draw(st.sampled_from([0, last, *range(after + 1, last)])) if not d.at[g] else 0)
        if fine and data.draw(st.integers(0, 3)):
            settle(r, d)
            remember(r, was, d)
        else:
            remember(r, d, was)
        if data.draw(st.booleans()):
            tidy(r, d)
            remember(r, was, d)
    tidy(r, d)
    settle(r, d)  # from what was noted, remembered and tidied up
    assert fill(r, anew, d.at, d.by)
    same(d, anew)
    decisions = [*found.changes(d.at, d.by), *holds]
    again = Plan.of(trace, decisions).apply(trace)
    ran = again.ops.role == RECOMPUTE
    time = target.durations(again)
    assert d.added.sum() == time[ran].sum()
    np.testing.assert_array_equal(d.duration, time[~ran])
    np.testing.assert_array_equal(d.duration - d.longer, target.durations(fastest(trace, found.choices)))
    np.testing.assert_array_equal(d.held[1::2], again.load()[~ran])
    assert max(d.held[1::2].max(), max((d.held[2 * i] for i in np.flatnonzero(d.wanted)), default=0)) == again.peak_load
    drops, w = [x for x in decisions if isinstance(x, Recompute)], found.w
    for made in replays(Device(trace, Origins.of(trace), [*drops, *holds]), drops):
        for g in np.flatnonzero(np.isin(w.buffer, list(made.sources))):
            far = (made.place - w.after[g] - 1) % trace.n + 1
            if far <= w.before[g] - w.after[g]:
                due = int(d.due_turn[g]) * trace.n + int(d.due[g]) // 2
                assert due <= w.after[g] + far
