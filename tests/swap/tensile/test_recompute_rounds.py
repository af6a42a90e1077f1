"""Rounds of recomputations: what they account for at a place is what the rewritten trace holds there."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.swap import Plan
from gpumem.swap.tensile.recompute_rounds import RecomputeRounds
from gpumem.swap.tensile.swap_rounds import SwapRounds
from gpumem.trace import RECOMPUTE, Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.strategies import nets, steps


@given(st.one_of(nets(), steps(streams=1)), st.data())
def test_places_hold_what_recomputations_need_beside(trace: Trace, data: st.DataObject) -> None:
    machine = tiny_machine().with_(pinned=32)
    duration = np.array(data.draw(st.lists(st.integers(1, 100), min_size=trace.n, max_size=trace.n)), np.int64)
    job = SwapRounds(trace, machine, duration, most=0, hosts=[])
    rounds = RecomputeRounds(job, duration)
    while (row := rounds.best()) >= 0:
        rounds.drop(row)
    swapped = Plan(tuple(rounds.taken), trace.n).apply(trace)
    check.data_flow(trace, swapped)
    assert swapped.live_bytes(host=True).max() == job.host.peak <= 32
    load, role, old = swapped.live_bytes(), swapped.ops.role, np.cumsum(swapped.ops.role != RECOMPUTE)
    for place in {decision.before for decision in rounds.taken}:
        assert job.footprint.at(place) == load[(role == RECOMPUTE) & (old == place)].max()


def test_two_recomputations_at_one_place_do_not_need_their_scratch_at_once() -> None:
    ops = Ops.make([[0], [0], [], [1, 3]], [[1, 2], [3, 4], [5], []], duration=[10] * 4)
    size, start, end = [1, 30, 35, 20, 5, 100, 30], [0, 0, 0, 1, 1, 2, 2], [4, 4, 1, 4, 2, 3, 4]
    trace = Trace(Buffers.make(size, start, end, persistent=[True] + [False] * 6), ops)
    job = SwapRounds(trace, tiny_machine(), np.full(4, 10), most=0, hosts=[])
    rounds = RecomputeRounds(job, np.full(4, 10))
    while (row := rounds.best()) >= 0:
        rounds.drop(row)
    assert [decision.buffer for decision in rounds.taken] == [1, 3]
    # Before op 3: buffers 0, 6, 1 and the 35 beside it; then 0, 6, 1, 3 and the 5 beside that.
    assert job.footprint.at(3) == 96 and max(Plan(tuple(rounds.taken), 4).apply(trace).live_bytes()[3:5]) == 96
