"""From traces to nodes, and from schedules to plans: a plan holds and takes what its schedule says."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings, strategies as st

from gpumem import Machine, bundled, check, simulate
from gpumem.simulator import workspaces
from gpumem.simulator.machine import Link
from gpumem.swap import Plan, Variant
from gpumem.swap.mosos import Rules, rounded, solve
from gpumem.swap.mosos.stages import Stages
from gpumem.swap.mosos.translate import plan_of
from gpumem.trace import Buffers, Ops, Trace


@st.composite
def chains(draw: st.DrawFn) -> Trace:
    """Ops with one output each, read by later ones: mostly by the next, and again from the other end."""
    n = draw(st.integers(3, 8))
    reads: list[list[int]] = [[] for _ in range(n)]
    for i in range(1, n):
        reads[i].append(i - 1)
        if i > n // 2:
            reads[i].append(n - 1 - i)
        reads[i] += draw(st.lists(st.integers(0, i - 1), max_size=1))
    last = [max((i for i in range(n) if j in reads[i]), default=j) for j in range(n)]
    size = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    duration = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    ops = Ops.make([sorted(set(r)) for r in reads], [[i] for i in range(n)], duration=duration, name=["op"] * n)
    return Trace(Buffers.make(size, range(n), [x + 1 for x in last]), ops)


@st.composite
def menus(draw: st.DrawFn, trace: Trace) -> dict[int, list[Variant]]:
    """For some ops a slower way with less workspace than the one they run by."""
    found = {}
    for op in draw(st.lists(st.integers(0, trace.n - 1), unique=True, max_size=3)):
        now = int(trace.ops.duration[op])
        found[op] = [Variant(op, "wide", now, draw(st.integers(1, 60))), Variant(op, "narrow", now + 7, 0)]
    return found


def machine(data: st.DataObject) -> Machine:
    slow = data.draw(st.sampled_from([0.3, 1.0, 3.0]))
    return Machine("m", 10_000, Link(0, slow), Link(0, slow), 1.0, 1.0, duplex=data.draw(st.booleans()))


@given(st.data())
@settings(max_examples=40)
def test_a_plan_holds_and_takes_what_its_schedule_says(data: st.DataObject) -> None:
    says_what_it_does(data)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=2500, deadline=None)
def test_a_thousand_plans_hold_and_take_what_their_schedules_say(data: st.DataObject) -> None:
    says_what_it_does(data)


def says_what_it_does(data: st.DataObject) -> None:
    trace, card = data.draw(chains()), machine(data)
    net = Stages.of(trace, card, algorithms=data.draw(menus(trace)))
    assert len(net.nodes) == trace.n
    most = int(sum(net.nodes.size)) + 60
    limit = data.draw(st.integers(most // 4, most))
    rules = Rules(plain=True, duplex=card.duplex, copies=data.draw(st.booleans()))
    schedule = solve(net.nodes, limit, rules).schedule
    assume(schedule is not None)
    assert schedule is not None
    plan = plan_of(net, schedule)
    rewritten = plan.apply(trace)
    check.data_flow(
        Plan.of(trace, [d for d in plan.decisions if isinstance(d, Variant) and d.at < 0]).apply(trace), rewritten
    )
    computes = ~rewritten.ops.copies
    assert rewritten.ops.of[computes].tolist() == schedule.node.tolist()
    assert rewritten.load()[computes].tolist() == schedule.memory.tolist()
    assert simulate(rewritten, card, capacity=limit).makespan == schedule.time


def test_a_real_net_in_place_holds_no_more_than_its_schedule() -> None:
    trace, card = workspaces.add(bundled("vgg16")), Machine.named("p40")
    net = Stages.of(trace, card, most=24)
    in_place = [j for j in net.outputs.idx.tolist() if len(set(trace.ops.writes.rows()[trace.ops.writes.idx == j])) > 1]
    assert len(net.nodes) <= 24 and len(in_place) >= 4 <= net.nodes.again.sum()
    for part in (95, 85):
        found = rounded(net.nodes, trace.peak_load * part // 100, Rules(plain=True))
        assert found.schedule is not None
        rewritten = plan_of(net, found.schedule).apply(trace)
        assert rewritten.peak_load <= found.schedule.memory.max() <= trace.peak_load * part // 100
        assert simulate(rewritten, card, capacity=trace.peak_load * part // 100).makespan <= found.schedule.time
