"""Segments of checkpoints on two levels, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem.base.errors import NotReached
from gpumem.swap.baselines import _checkpoint_prices, checkpoint
from gpumem.swap.baselines._checkpoint_segments import NO_CUT, PART, SEGMENT, SegmentSearch
from gpumem.swap.facts.recompute_cost import RecomputableGaps
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import RECOMPUTE, Trace
from tests.conftest import tiny_machine
from tests.swap.nets import layers


def levels(trace: Trace) -> SegmentSearch:
    found = gaps(trace)
    found = found.where((found.buffer > 0) & (found.after < 8) & (found.before >= 8))
    found = found.where(found.before > found.after + 1)
    made = found.buffer - 1  # `layers`: op i makes map i + 1
    order = np.argsort(made, kind="stable")
    account = RecomputableGaps.of(trace, trace.ops.duration, found.where(order))
    return SegmentSearch.of(trace, account, made[order], made[order] < 0, limit=1)


def test_two_levels_by_hand() -> None:
    trace = layers(8)  # map i + 1 is made by op i, used by op i + 1, and by op 15 - i, its backward
    search = levels(trace)
    assert search.places.tolist() == list(range(7))
    cut = np.array([NO_CUT, NO_CUT, PART, NO_CUT, SEGMENT, NO_CUT, PART])
    at = dict(zip(search.account.buffer.tolist(), search.recomputed_at(cut).tolist()))
    # Segments 1 2:3 4 | 5 6:7 8; op 15 is the backward of map 1, op 9 of map 7. Maps 2 and 6 are used in the next part:
    # back when the backward of their segment begins. Map 4 is used in the next segment: kept.
    assert at == {1: 15, 2: 13, 3: 13, 4: 0, 5: 11, 6: 9, 7: 9}


@pytest.mark.parametrize("most", [3, 5])
def test_no_plan_recomputes_more_than_it_may(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, machine = layers(12), tiny_machine()

    def recomputed(limit: int) -> int:
        return int((checkpoint(trace, machine, limit).apply(trace).ops.role == RECOMPUTE).sum())

    reached = {limit: recomputed(limit) for limit in (41, 57, 80)}
    assert max(reached.values()) > 5
    monkeypatch.setattr(_checkpoint_prices, "MOST_RECOMPUTED", most)
    monkeypatch.setattr(_checkpoint_prices, "EACH", 0)
    for limit, before in reached.items():
        try:
            assert recomputed(limit) <= most
        except NotReached:
            assert before > most
