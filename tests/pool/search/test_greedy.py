"""Greedy placement: each order places validly, and its weights by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.pool.search._problem import PlacementProblem
from gpumem.pool.search.greedy import ORDERS, placements
from gpumem.trace import Trace
from tests.strategies import traces


@given(traces(), st.sampled_from([1, 256]))
def test_each_greedy_order_places_validly(trace: Trace, alignment: int) -> None:
    found = list(placements(PlacementProblem.of(trace, alignment)))
    assert len(found) == 2 * len(ORDERS)
    for placed in found:
        check.placement(trace, placed)


def test_greedy_orders_by_hand() -> None:
    size, first, last = np.array([4, 1, 2, 8]), np.array([0, 1, 2, 5]), np.array([2, 4, 6, 7])
    want = {
        "size": [4, 1, 2, 8],
        "lifetime": [2, 3, 4, 2],
        "area": [8, 3, 8, 16],
        "conflicts": [3, 3, 3, 3],  # the last wraps around a circle of six, onto the first; itself counts
        "conflict-bytes": [4 + 1 + 8, 1 + 4 + 2, 2 + 1 + 8, 8 + 2 + 4],
        "breadth": [12, 5, 10, 12],
    }
    for name, weights in want.items():
        assert ORDERS[name](size, first, last, 6).tolist() == weights, name
