"""What was on the device becomes decisions: by hand, and no plan recomputes more than the runtime did."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap.dtr import ResidencyIntervals, dtr
from gpumem.swap.dtr.online import POLICIES, RAN
from gpumem.swap.dtr.planner import online
from gpumem.swap.dtr.scores import HEURISTICS
from gpumem.swap.dtr.storages import DtrStorages
from gpumem.swap.dtr.translate import decisions
from gpumem.swap.plan import Hold, Plan, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import RECOMPUTE, Buffers, Ops, Trace
from tests.strategies import steps
from tests.swap.dtr.test_online import GTX, made_once
from tests.swap.judging import judged


def touched(*accesses: int, end: int) -> Trace:
    """A buffer that is made at the first of some ops and read at the others."""
    n = 20
    reads = [[0] if op in accesses[1:] else [] for op in range(n)]
    writes = [[0] if op == accesses[0] else [] for op in range(n)]
    return Trace(Buffers.make([8], [accesses[0]], [end]), Ops.make(reads, writes))


def of(trace: Trace, *rows: tuple[int, int, int]) -> list[object]:
    """The decisions for intervals of that buffer, a row each: from, until, last read by a recomputation."""
    columns = np.array([(0, *row) for row in rows], np.int64).T
    return [*decisions(trace, ResidencyIntervals(*columns))]


def test_intervals_by_hand() -> None:
    trace = touched(1, 4, 12, end=13)
    assert of(trace, (1, 13, -1)) == []  # it was never evicted
    assert of(trace, (1, 6, -1), (10, 13, -1)) == [Recompute(0, 4, 12, 10)]  # nothing read it at 5
    assert of(trace, (1, 7, 6), (12, 13, -1)) == [Hold(0, 6, after=4), Recompute(0, 4, 12, 12)]
    assert of(trace, (1, 5, 5), (12, 13, -1)) == [Hold(0, 5, after=4), Recompute(0, 4, 12, 12)]
    here = [(1, 5, -1), (7, 10, 9), (11, 13, -1)]
    assert of(trace, *here) == [Hold(0, 9, after=4, at=7), Recompute(0, 4, 12, 11)]  # while a recomputation reads it
    here[1] = (7, 10, -1)
    assert of(trace, *here) == [Recompute(0, 4, 12, 11)]  # nothing read it


def test_tails_and_what_comes_after_death() -> None:
    trace = touched(1, 4, end=15)
    assert of(trace, (1, 9, -1)) == [Hold(0, 5)]
    assert of(trace, (1, 9, 8)) == [Hold(0, 8)]
    assert of(trace, (1, 15, -1), (17, 20, 19)) == [Hold(0, 5), Hold(0, 19, after=4, at=17)]
    assert of(trace, (1, 18, 17)) == [Hold(0, 17)]  # what died is not freed
    assert of(touched(0, 4, end=20), (0, 9, -1)) == []  # what lives all through has no tail


@pytest.mark.parametrize("free", POLICIES)
@given(trace=made_once(), part=st.integers(30, 100), heuristic=st.sampled_from(sorted(HEURISTICS)))
def test_a_plan_recomputes_no_more_than_the_runtime(free: str, trace: Trace, part: int, heuristic: str) -> None:
    run = online(trace, GTX, trace.peak_live_bytes * part // 100, heuristic=heuristic, free=free)
    if run.how != RAN:
        return
    swapped = Plan.of(trace, decisions(trace, run.residency)).apply(trace)
    check.data_flow(trace, swapped)
    recomputed = swapped.ops.role == RECOMPUTE
    assert recomputed.sum() <= run.recomputations
    assert swapped.ops.duration[recomputed].sum() <= run.recompute_ns


@given(trace=steps())
def test_what_is_evictable_can_be_recomputed_at_each_access(trace: Trace) -> None:
    storages, spans = DtrStorages.of(trace, GTX), gaps(trace)
    for buffer, after, before in zip(spans.buffer.tolist(), spans.after.tolist(), spans.before.tolist()):
        if storages.evictable[buffer] and after >= storages.ready_at[buffer]:
            swapped = Plan.of(trace, [Recompute(buffer, after, before, before)]).apply(trace)
            check.data_flow(trace, swapped)


@given(trace=steps(), data=st.data())
def test_plans_with_all_options(trace: Trace, data: st.DataObject) -> None:
    heuristic, free = data.draw(st.sampled_from(sorted(HEURISTICS))), data.draw(st.sampled_from(sorted(POLICIES)))
    machine, limit = Machine.named("p100"), max(1, trace.peak_live_bytes * data.draw(st.integers(60, 100)) // 100)
    try:
        plan = dtr(trace, machine, limit, heuristic=heuristic, free=free)
    except Infeasible:
        return
    except NotReached as stop:
        assert stop.reached > limit
        return
    judged(trace, machine, plan, limit)
