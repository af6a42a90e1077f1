"""Traces to nodes by `stages`, schedules to plans by `translate`: does a plan hold and take what its schedule says?"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings, strategies as st

from gpumem import Machine, Plan, Variant, bundled, check, simulate
from gpumem.base import work
from gpumem.simulator import workspaces
from gpumem.swap.mosos import Rules, rounded, solve
from gpumem.swap.mosos.stages import Stages
from gpumem.swap.mosos.translate import plan_of
from tests.swap.mosos.chains import chains, machine, menus


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
    copies = data.draw(st.booleans())
    rules = Rules(plain=True, duplex=card.duplex, copies=copies, waits=copies and data.draw(st.booleans()))
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
    assert rewritten.live_bytes()[computes].tolist() == schedule.memory.tolist()
    makespan = simulate(rewritten, card, capacity=limit).makespan
    assert makespan == schedule.time if not rules.waits else makespan >= schedule.time


def test_a_real_net_in_place_holds_no_more_than_its_schedule() -> None:
    trace, card = workspaces.add(bundled("vgg16")), Machine.named("p40")
    net = Stages.of(trace, card, most=24)
    in_place = [j for j in net.outputs.idx.tolist() if len(set(trace.ops.writes.rows()[trace.ops.writes.idx == j])) > 1]
    assert len(net.nodes) <= 24 and len(in_place) >= 4 <= net.nodes.recomputable.sum()
    for part in (95, 85):
        found = rounded(net.nodes, trace.peak_live_bytes * part // 100, Rules(plain=True))
        assert found.schedule is not None
        rewritten = plan_of(net, found.schedule).apply(trace)
        assert rewritten.peak_live_bytes <= found.schedule.memory.max() <= trace.peak_live_bytes * part // 100
        assert simulate(rewritten, card, capacity=trace.peak_live_bytes * part // 100).makespan <= found.schedule.time


def test_merging_stops_when_the_time_is_up() -> None:
    trace, card = bundled("mlp3"), Machine.named("p40")
    with work.within(1e-9), pytest.raises(work.TimeUp):
        Stages.of(trace, card, most=5)
