"""The biggest of the gaps over an op, against a look at each of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem.swap.facts.biggest import Biggest, biggest


@given(st.data(), st.integers(1, 9))
def test_the_biggest_gap_over_an_op(data: st.DataObject, n: int) -> None:
    spans = data.draw(st.lists(st.tuples(st.integers(0, 2 * n), st.integers(0, n)), max_size=8))
    first, stop = np.array([a for a, _ in spans], np.int64), np.array([a + k for a, k in spans], np.int64)
    rows = Biggest.of(first, stop, n)
    dead, tried = set[int](), dict[int, int]()
    for _ in range(data.draw(st.integers(1, 12))):
        op = data.draw(st.integers(0, n - 1))
        over = [k for k, (a, length) in enumerate(spans) if (op - a) % n < length]
        left = [k for k in over if k not in dead and tried.get(k) != op]
        found = biggest(rows, op)
        assert found == (left[0] if left else -1)
        if found >= 0:
            tried[found] = op
            if data.draw(st.booleans()):
                rows.length[found] = 0
                dead.add(found)
