"""Values that the search makes again: its account is the rewritten trace, brute force in three modes, every start."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.columns import RECOMPUTE
from gpumem.errors import Infeasible, NotReached
from gpumem.machine import Machine
from gpumem.simulate import simulate
from gpumem.swap.plan import Hold, Plan, Recompute
from gpumem.swap.plan.replay import Device, replays
from gpumem.swap.plan.values import Origins
from gpumem.swap.search._drops import Drops, drop, fill, remember, settle, tidy
from gpumem.swap.search._engines import Evaluation, evaluate, retime
from gpumem.swap.search._moves import toggle
from gpumem.swap.search.annealing import problem, start, swaps
from gpumem.swap.search.planner import search
from gpumem.swap.search.starts import QUICK, SLOW
from gpumem.testing import plans, steps

from .strategies import machine_of
from .test_search import check_plan

GTX = Machine.named("gtx1080ti")


def same(left: Drops, right: Drops) -> None:
    """All that follows from what is dropped; where it was noted is of no matter."""
    for name in ("at", "wanted", "added", "beside", "load", "held", "due", "due_turn"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), name)
    assert left.points[: left.used[0]].tolist() == right.points[: right.used[0]].tolist()


@given(st.data())
def test_one_drop_after_another_is_what_apply_makes_of_all(data: st.DataObject) -> None:
    trace = data.draw(steps())
    holds = [d for d in data.draw(plans(trace, kinds=(Hold,))).decisions if isinstance(d, Hold)]
    target = machine_of(data)
    _, r, w = problem(trace, target, 0, recompute=True, plan=Plan.of(trace, holds))
    assume(len(r.can))
    d, anew = Drops.of(r), Drops.of(r)
    was = d.copy()
    for g in data.draw(st.lists(st.sampled_from(r.can.tolist()), min_size=1, max_size=6)):
        after, last = int(r.made.after[g]), int(r.lasts[g])
        at = data.draw(st.sampled_from([0, last, *range(after + 1, last)])) if not d.at[g] else 0
        if drop(r, d, g, at):
            settle(r, d)
            remember(r, was, d)
        else:
            remember(r, d, was)
        if data.draw(st.booleans()):
            tidy(r, d)
            remember(r, was, d)
    assert fill(r, anew, d.at, d.by)
    same(d, anew)
    drops = [Recompute(int(w.buffer[g]), int(w.after[g]), int(w.before[g]), int(d.at[g])) for g in np.flatnonzero(d.at)]
    again = Plan.of(trace, [*drops, *holds]).apply(trace)
    ran = again.ops.role == RECOMPUTE
    assert d.added.sum() == target.durations(again)[ran].sum()
    np.testing.assert_array_equal(d.held[1::2], again.load()[~ran])
    assert max(d.held[1::2].max(), max((d.held[2 * i] for i in np.flatnonzero(d.wanted)), default=0)) == again.peak_load
    for made in replays(Device(trace, Origins.of(trace), [*drops, *holds]), drops):
        for g in np.flatnonzero(np.isin(w.buffer, list(made.sources))):
            far = (made.place - w.after[g] - 1) % trace.n + 1
            if far <= w.before[g] - w.after[g]:
                due = int(d.due_turn[g]) * trace.n + int(d.due[g]) // 2
                assert due <= w.after[g] + far


@given(st.data())
def test_a_state_without_overload_takes_what_reruns_take(data: st.DataObject) -> None:
    """The evaluator against the clock: swaps and drops together, one compute stream, full duplex."""
    trace = data.draw(steps(streams=1))
    target = machine_of(data, duplex=True)
    p, r, w = problem(trace, target, 0, recompute=True)
    assume(len(w))
    d, s, x = Drops.of(r), start(p), Evaluation.of(p)
    at = np.zeros(len(w), np.int64)
    for g in data.draw(st.lists(st.sampled_from(r.can.tolist()), max_size=4, unique=True)) if len(r.can) else ():
        at[g] = r.lasts[g]
    assume(fill(r, d, at, d.by))
    for g in data.draw(st.lists(st.integers(0, len(w) - 1), max_size=4, unique=True)):
        if p.copied[g] and not at[g]:
            toggle(p, d, s, g)
    retime(p, d, s, x)
    fits = [limit for limit in range(1, trace.peak_load + 50) if evaluate(p, d, s, x, limit)[1] == 0]
    assume(fits)
    gone = [Recompute(int(w.buffer[g]), int(w.after[g]), int(w.before[g]), int(at[g])) for g in np.flatnonzero(at)]
    swapped = Plan.of(trace, [*swaps(p, w, d, s, x), *gone]).apply(trace)
    check.data_flow(trace, swapped)
    assert swapped.peak_load <= fits[0]
    line = simulate(swapped, target, capacity=fits[0])
    assert line.stalls == {"data": 0, "copy": 0, "memory": 0}
    assert line.makespan == p.turn + d.added.sum() == x.turn[0]


@pytest.mark.jit
@given(st.data())
def test_the_search_is_as_good_as_brute_force_in_three_modes(data: st.DataObject) -> None:
    """Every gap kept, swapped or made again at its end: the least time of those that need no wait."""
    trace = data.draw(steps(streams=1, max_layers=3))
    target = machine_of(data, duplex=True)
    p, r, w = problem(trace, target, 0, recompute=True)
    assume(0 < len(w) <= 8 and trace.peak_load > 1 and len(r.can))
    limit = data.draw(st.integers(max(trace.peak_load // 2, 1), trace.peak_load - 1))
    least, x, d = None, Evaluation.of(p), Drops.of(r)
    for modes in product(*([0, *([1] if p.copied[g] else []), *([2] if r.lasts[g] else [])] for g in range(len(w)))):
        mode = np.array(modes)
        if not fill(r, d, np.where(mode == 2, r.lasts, 0), d.by):
            continue
        s, cost = start(p), int(d.added.sum())
        for g in np.flatnonzero(mode == 1):
            toggle(p, d, s, g)
        retime(p, d, s, x)
        if (least is None or cost < least) and evaluate(p, d, s, x, limit)[1] == 0:
            least = cost
    assume(least is not None)
    plan = search(trace, target, limit, effort=1e-4)
    check_plan(trace, target, plan, limit)
    line = simulate(plan.apply(trace), target, capacity=limit)
    assert line.makespan - simulate(trace, target).makespan <= least


@given(st.data())
def test_the_search_is_never_worse_than_what_it_starts_from(data: st.DataObject) -> None:
    trace = data.draw(steps())
    target = machine_of(data, pinned=data.draw(st.sampled_from([0, 20, 10_000])))
    assume(trace.peak_load > 1)
    limit = data.draw(st.integers(max(trace.peak_load // 2, 1), trace.peak_load - 1))

    def time(planner) -> int | None:  # type: ignore[no-untyped-def]
        try:
            return simulate(planner(trace, target, limit).apply(trace), target, capacity=limit).makespan
        except (NotReached, Infeasible):
            return None

    known = data.draw(st.sampled_from(QUICK))
    others = time(known), time(data.draw(st.sampled_from(SLOW)))
    try:
        plan = search(trace, target, limit, effort=1e-6)
    except (Infeasible, NotReached):
        assert others[0] is None
        return
    check_plan(trace, target, plan, limit)
    found = time(lambda *_: plan)
    assert found is not None and (others[0] is None or found <= others[0])
    try:
        start = known(trace, target, limit)
    except NotReached:
        return
    assert time(lambda *a: search(*a, effort=1e-6, recompute=False, start=start)) <= others[0]
