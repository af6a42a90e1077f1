"""The judge of plans: what it keeps, and what it says of the plans that it refused."""

from __future__ import annotations

import pytest

from gpumem.base import work
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap import PLANNERS, Plan, Swap
from gpumem.swap.facts.limits import FAR, Judge
from gpumem.trace import Buffers, Ops, Trace

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
    assert (stop.value.reached, stop.value.limit) == (trace.peak_load, 17) == (22, 17)
    told = "a plan within the limit keeps 8 bytes of pinned memory at least, gtx1080ti has 4 bytes"
    assert stop.value.hint == told and "got down to a peak load of 22 bytes" in str(stop.value)


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
    ops = Ops.make([[], [], [], [0]], [[0], [1], [2], []], duration=[10] * 4)  # nothing can be made again
    trace = Trace(Buffers.make([8, 5, 9], [0, 1, 2], [4, 2, 3], kind=["input", "", ""]), ops)
    options = {"effort": 1e-6} if name == "search" else {}
    with pytest.raises(NotReached) as stop:
        PLANNERS[name](trace, GTX.with_(pinned=4), 13, **options)
    assert stop.value.reached > 13
    if name in ("mosos", "str", "str-auto"):  # the others never offer a plan beyond the budget here
        assert "keeps 8 bytes of pinned memory at least, gtx1080ti has 4 bytes" in stop.value.hint
