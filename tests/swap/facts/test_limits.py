"""The judge of plans: what it keeps, and what it says of those that it refused; and which dropped tails are kept."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.base import work
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import PLANNERS, Hold, Plan, Swap, search
from gpumem.swap.facts.limits import FAR, Judge, keep_tails
from gpumem.swap.plan.tails import Tails, drops_tail, without_tails
from gpumem.testing import plans
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.swap.plan.test_tails import with_tails

GTX = Machine.named("gtx1080ti")


def two_gaps() -> Trace:
    """Buffers of 8 and 5 bytes that the first op makes and the last one reads; 9 bytes live amid."""
    ops = Ops.make([[], [], [0, 1]], [[0, 1], [2], []], duration=[10] * 3)
    return Trace(Buffers.make([8, 5, 9], [0, 0, 1], [3, 3, 2]), ops)


def swapped(trace: Trace, *buffers: int) -> Plan:
    return Plan.of(trace, [Swap(b, 0, 2, 1, 2) for b in buffers])


def test_what_was_refused_for_pinned_memory_is_no_load_that_was_reached() -> None:
    trace = two_gaps()
    judge = Judge(trace, GTX.with_(pinned=4), 17)
    assert judge.offer(swapped(trace, 0, 1)) == FAR  # 9 bytes are held, and 13 pinned
    assert judge.offer(swapped(trace, 0)) == FAR  # 14, and 8
    with pytest.raises(NotReached) as stop:
        judge.plan()
    assert (stop.value.reached, stop.value.limit) == (trace.peak_live_bytes, 17) == (22, 17)
    told = "a plan within the limit keeps 8 bytes of pinned memory at least, gtx1080ti has 4 bytes"
    assert stop.value.hint == told and "got down to a peak of 22 bytes" in str(stop.value)


def test_a_plan_above_the_limit_is_a_load_that_was_reached() -> None:
    trace = two_gaps()
    judge = Judge(trace, GTX.with_(pinned=5), 13)
    assert judge.offer(swapped(trace, 1)) == FAR == judge.offer(swapped(trace, 0))  # 17 bytes, and 14 but 8 pinned
    with pytest.raises(NotReached) as stop:
        judge.plan()
    assert (stop.value.reached, stop.value.hint) == (17, "the pinned budget may be too small")


def test_where_it_was_late_both_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(work, "now", lambda: clock[0])
    trace = two_gaps()
    judge = Judge(trace, GTX.with_(pinned=4), 17)
    judge.offer(swapped(trace, 0))
    late = pytest.raises(NotReached, match=r"8 bytes of pinned memory .*; the time was up, more seconds may do$")
    with late, work.within(1):
        clock[0] = 2.0
        judge.plan()


@pytest.mark.parametrize("name", ["ilp", "search", "mosos", "str", "str-auto"])
def test_planners_say_how_much_pinned_memory_they_lack(name: str) -> None:
    ops = Ops.make([[], [], [], [0]], [[0], [1], [2], []], duration=[10] * 4)  # nothing can be recomputed
    trace = Trace(Buffers.make([8, 5, 9], [0, 1, 2], [4, 2, 3], kind=["input", "", ""]), ops)
    options = {"effort": 1e-6} if name == "search" else {}
    with pytest.raises(NotReached) as stop:
        PLANNERS[name](trace, GTX.with_(pinned=4), 13, **options)
    assert stop.value.reached > 13
    if name in ("mosos", "str", "str-auto"):  # the others never offer a plan beyond the budget here
        assert "keeps 8 bytes of pinned memory at least, gtx1080ti has 4 bytes" in stop.value.hint


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
    assert plan.apply(trace).peak_live_bytes <= limit


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
    limit = short.peak_live_bytes + data.draw(st.integers(0, max(trace.peak_live_bytes - short.peak_live_bytes, 0)))
    found = keep_tails(trace, plan, FAST, limit)

    def takes(some: Plan) -> tuple[bool, int]:
        done = some.apply(trace)
        return done.peak_live_bytes <= limit, simulate(done, FAST, capacity=limit).makespan

    fits, ns = takes(found)
    assert fits and ns <= takes(plan)[1]
    check.data_flow(trace, found.apply(trace))
    gone = {*plan.decisions} - {*found.decisions}
    assert all(isinstance(d, Hold) and drops_tail(d, trace) for d in gone)
    left = [d for d in found.decisions if isinstance(d, Hold) and drops_tail(d, trace)]
    assert all(trace.buffers.size[d.buffer] <= trace.buffers.size[e.buffer] for d in gone for e in left)
