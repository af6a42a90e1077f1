"""Tails that a plan drops and need not: kept, the smallest first, as far as the limit and the time allow."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.base import work
from gpumem.simulator.simulate import simulate
from gpumem.swap import search
from gpumem.swap.facts.limits import keep_tails
from gpumem.swap.plan import Hold, Plan
from gpumem.swap.plan.tails import Tails, drops_tail, without_tails
from gpumem.testing import plans
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.swap.plan.test_tails import with_tails

FAST = tiny_machine()


def two_tails() -> Trace:
    """Buffers of 4 and 8 bytes, of constants, are touched no more after op 1; op 2 has 8 of its own."""
    ops = Ops.make([[], [3], [], []], [[], [0, 1], [2], []])
    return Trace(Buffers.make([4, 8, 8, 0], [1, 1, 2, 0], [4, 4, 3, 4], persistent=[False] * 3 + [True]), ops)


@pytest.mark.parametrize(("limit", "left"), [(12, {1}), (20, set()), (19, {1})])
def test_only_what_is_in_the_way_goes(limit: int, left: set[int]) -> None:
    trace = two_tails()
    both = Tails(trace, without_tails(trace))
    plan = keep_tails(trace, both.dropped(Plan.of(both.less)), FAST, limit)
    assert {d.buffer for d in plan.decisions if drops_tail(d, trace)} == left
    assert plan.apply(trace).peak_load <= limit


def test_search_drops_what_is_in_the_way_alone() -> None:
    plan = search(two_tails(), FAST, 12, effort=1e-6)
    assert plan.decisions == (Hold(1, 1),)


def test_where_the_time_is_up_all_goes() -> None:
    trace = two_tails()
    plan = Tails(trace, without_tails(trace)).dropped(Plan.of(trace))
    with work.within(stopped=lambda: True):
        assert keep_tails(trace, plan, FAST, 12) == plan


@given(st.data())
def test_what_is_kept_costs_nothing_and_one_more_would(data: st.DataObject) -> None:
    trace = data.draw(with_tails())
    both = Tails(trace, without_tails(trace))
    assume(both.less is not trace)
    plan = both.dropped(data.draw(plans(both.less)))
    short = plan.apply(trace)
    limit = short.peak_load + data.draw(st.integers(0, max(trace.peak_load - short.peak_load, 0)))
    found = keep_tails(trace, plan, FAST, limit)

    def takes(some: Plan) -> tuple[bool, int]:
        done = some.apply(trace)
        return done.peak_load <= limit, simulate(done, FAST, capacity=limit).makespan

    fits, ns = takes(found)
    assert fits and ns <= takes(plan)[1]
    check.data_flow(trace, found.apply(trace))
    gone = {*plan.decisions} - {*found.decisions}
    assert all(isinstance(d, Hold) and drops_tail(d, trace) for d in gone)
    left = [d for d in found.decisions if isinstance(d, Hold) and drops_tail(d, trace)]
    assert all(trace.buffers.size[d.buffer] <= trace.buffers.size[e.buffer] for d in gone for e in left)
