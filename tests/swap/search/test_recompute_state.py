"""Values that the search makes again: its account is the rewritten trace, brute force in three modes, every start."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod
from zlib import crc32

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from gpumem import check
from gpumem.base.deadline import NEVER
from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.operators import Menu
from gpumem.swap.mosos import solve_mosos
from gpumem.swap.plan import Hold, Plan, Recompute, Variant
from gpumem.swap.plan.replay import Device, replays
from gpumem.swap.plan.values import Origins
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import Evaluation, evaluate, retime
from gpumem.swap.search._operator_choices import fastest
from gpumem.swap.search._recompute_state import Drops, choose, drop, fill, remember, settle, tidy
from gpumem.swap.search.annealing import Annealing, start, swaps
from gpumem.swap.search.multistart import QUICK, SLOW, SWAPPING
from gpumem.swap.search.planner import search
from gpumem.testing import plans, steps
from gpumem.trace import RECOMPUTE, Buffers, Ops, Trace
from tests.strategies import machine_of
from tests.swap.mosos.test_planners import CARD, chain


@st.composite
def menus(draw: st.DrawFn, trace: Trace) -> Menu:
    """For some ops up to two other ways; few have a workspace of their own."""
    found = {}
    for op in draw(st.lists(st.integers(0, trace.n - 1), unique=True, max_size=4)):
        ways = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=2))
        found[op] = [Variant(op, f"way {k}", duration, workspace) for k, (duration, workspace) in enumerate(ways)]
    return found


def check_variants(trace: Trace, target: Machine, plan: Plan, limit: int) -> None:
    """Every oracle, of the trace that the plan's variants make."""
    ways = [d for d in plan.decisions if isinstance(d, Variant)]
    swapped = plan.apply(trace)
    check.data_flow(Plan.of(trace, ways).apply(trace), swapped)
    check.budget(swapped, limit, host=target.pinned)
    line = simulate(swapped, target, capacity=limit)
    check.timeline(swapped, line, target.durations(swapped), capacity=limit, duplex=target.duplex)


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
        NEVER,
        print,
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


@given(st.data())
def test_a_state_without_overload_takes_what_reruns_take(data: st.DataObject) -> None:
    """The evaluator against the clock: swaps, drops and ways together, one compute stream, full duplex."""
    trace = data.draw(steps(streams=1))
    target = machine_of(data, duplex=True)
    found = Annealing(trace, target, 1, 1.0, 0, NEVER, print, recompute=True, algorithms=data.draw(menus(trace)))
    p, r, w, d, s, x = found.p, found.r, found.w, found.d, found.now, found.x
    assume(len(w))
    at = np.zeros(len(w), np.int64)
    for g in data.draw(st.lists(st.sampled_from(r.can.tolist()), max_size=4, unique=True)) if len(r.can) else ():
        at[g] = r.lasts[g]
    by = found.by(lambda row: data.draw(st.integers(0, len(row) - 1)))
    assume(fill(r, d, at, by))
    for g in data.draw(st.lists(st.integers(0, len(w) - 1), max_size=4, unique=True)):
        if p.copied[g] and not at[g]:
            toggle(p, d, s, g)
    retime(p, d, s, x)
    fits = [limit for limit in range(1, trace.peak_load + 250) if evaluate(p, d, s, x, limit)[1] == 0]
    assume(fits)
    other = found.changes(at, by)
    swapped = Plan.of(trace, [*swaps(p, w, d, s, x), *other]).apply(trace)
    check.data_flow(Plan.of(trace, [c for c in other if isinstance(c, Variant)]).apply(trace), swapped)
    assert swapped.peak_load <= fits[0]
    line = simulate(swapped, target, capacity=fits[0])
    assert line.stalls == {"data": 0, "copy": 0, "memory": 0}
    assert line.makespan == p.turn + d.added.sum() + d.longer.sum() == x.turn[0]


@pytest.mark.jit
@settings(max_examples=10)
@given(st.data())
def test_the_search_is_as_good_as_brute_force_in_three_modes(data: st.DataObject) -> None:
    """Every gap kept, swapped or made again at its end, every op in each way: the least time that needs no wait."""
    trace = data.draw(steps(streams=1, max_layers=3))
    target = machine_of(data, duplex=True)
    menu = data.draw(st.one_of(st.just({}), menus(trace)))
    found = Annealing(trace, target, 1, 1.0, 0, NEVER, print, recompute=True, algorithms=menu)
    p, r, w = found.p, found.r, found.w
    assume(0 < len(w) <= 8 and trace.peak_load > 1 and len(r.can))
    limit = data.draw(st.integers(max(trace.peak_load // 2, 1), trace.peak_load - 1))
    least, x, d = None, Evaluation.of(p), Drops.of(r)
    ways = [range(int(first), int(stop)) for first, stop in pairwise(r.ways.first)]
    every = ([0, *([1] if p.copied[g] else []), *([2] if r.lasts[g] else [])] for g in range(len(w)))
    assume(prod(map(len, ways)) <= 9)
    for modes, by in product(product(*every), [np.array(some, np.int64) for some in product(*ways)]):
        mode = np.array(modes)
        if not fill(r, d, np.where(mode == 2, r.lasts, 0), by):
            continue
        s, cost = start(p), int(d.added.sum() + d.longer.sum())
        for g in np.flatnonzero(mode == 1):
            toggle(p, d, s, g)
        retime(p, d, s, x)
        if (least is None or cost < least) and evaluate(p, d, s, x, limit)[1] == 0:
            least = cost
    assume(least is not None)
    plan = search(trace, target, limit, effort=1e-4, algorithms=menu)
    check_variants(trace, target, plan, limit)
    line = simulate(plan.apply(trace), target, capacity=limit)
    assert line.makespan <= max(p.turn + least, simulate(trace, target).makespan)


@pytest.mark.jit
@settings(max_examples=10)
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

    known, menu = data.draw(st.sampled_from((*QUICK, *SWAPPING))), data.draw(st.one_of(st.just({}), menus(trace)))
    others = time(known), time(data.draw(st.sampled_from(SLOW)))
    try:
        plan = search(trace, target, limit, effort=1e-6, algorithms=menu)
    except (Infeasible, NotReached):
        assert others[0] is None
        return
    check_variants(trace, target, plan, limit)
    found = time(lambda *_: plan)
    assert found is not None and (others[0] is None or found <= others[0])
    try:
        start = known(trace, target, limit)
    except NotReached:
        return
    assert time(lambda *a: search(*a, effort=1e-6, recompute=False, start=start)) <= others[0]


@pytest.mark.jit
def test_an_op_takes_a_slower_way_where_that_costs_least() -> None:
    trace, ways = chain(workspace=25)
    plan = search(trace, CARD, 80, effort=1e-4, algorithms=ways)
    assert simulate(plan.apply(trace), CARD, capacity=80).makespan == 265
    assert Variant(1, "narrow", 65, 0) in plan.decisions
    assert plan == search(trace, CARD, 80, effort=1e-4, algorithms=ways)


@pytest.mark.jit
def test_limits_below_what_recorded_workspaces_need() -> None:
    trace, ways = chain(workspace=60)
    with pytest.raises(Infeasible, match="op 1 must hold 90 B"):
        search(trace, CARD, 80, algorithms={})
    with pytest.raises(Infeasible, match="op 1 must hold 90 B"):
        search(trace, CARD, 80, algorithms=ways, recompute=False)
    with pytest.raises(Infeasible, match="op 2 must hold 60 B"):
        search(trace, CARD, 59, algorithms=ways)
    plan = search(trace, CARD, 80, effort=1e-4, algorithms=ways)
    assert simulate(plan.apply(trace), CARD, capacity=80).makespan == 265


@pytest.mark.jit
def test_a_start_with_operators_can_be_said() -> None:
    trace, ways = chain(workspace=25)
    start = solve_mosos(trace, CARD, 80, algorithms=ways).plan
    found = Annealing(trace, CARD, 80, 1.0, 0, NEVER, print, recompute=True, plan=start)
    assert found.from_plan(start, simulate(start.apply(trace), CARD, capacity=80))
    (chosen,) = found.changes(found.d.at, found.d.by)
    assert chosen in start.decisions and found.now.selected.any()


def test_a_gap_that_is_too_short_for_a_copy_leaves_nothing_to_search() -> None:
    """A published planner swaps it and lets an op wait; a state has no such gaps, and no other ones are there."""
    trace = Trace(Buffers.make([8, 8], [0, 1], [3, 2]), Ops.make([[], [], [0]], [[0], [1], []], duration=[5, 5, 5]))
    target = Machine("m", 100, Link(0.0, 1.0), Link(0.0, 1.0), 1.0, 1.0)
    plan = search(trace, target, 8, effort=1e-6, algorithms={})
    check_variants(trace, target, plan, 8)
    assert len(plan.swaps) == 1


@pytest.mark.parametrize(("seed", "makespan", "digest"), [(0, 271, 3690438996), (1, 270, 1375746945)])
def test_the_same_plan_with_and_without_the_compiler(seed: int, makespan: int, digest: int) -> None:
    """The suite runs both ways; where the search changes, both have to get the same new figures."""
    size, n = [(37 * i * i + 11 * i) % 50 + 10 for i in range(8)], 16
    ops = Ops.make(
        [[i - 1] if 0 < i < 8 else [n - 1 - i] if i else [] for i in range(n)],
        [[i] if i < 8 else [] for i in range(n)],
        duration=[29 * i % 23 + 5 for i in range(n)],
    )
    trace = Trace(Buffers.make(size, range(8), range(n, 8, -1)), ops)
    target = Machine("m", 1000, Link(1.0, 0.5), Link(1.0, 0.5), 1.0, 1.0)
    limit = trace.peak_load * 60 // 100
    plan = search(trace, target, limit, effort=1e-6, seed=seed, algorithms={})
    assert simulate(plan.apply(trace), target, capacity=limit).makespan == makespan
    assert crc32(plan.to_json().encode()) == digest
