"""When ops begin and end, iteration after iteration, against naive sums."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem.swap.facts import Times


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 40))
def test_times_of_ops(duration: list[int], time: int) -> None:
    times, n = Times.in_a_row(np.array(duration)), len(duration)
    every = range(4 * n)
    start = [sum(duration[k % n] for k in range(i)) for i in every]
    end = [start[i] + duration[i % n] for i in every]
    assert (times.start.tolist(), times.end.tolist(), times.period) == (start, end, sum(duration))
    assert times.ended(time) == max((i for i in every if end[i] <= time), default=-1)
    assert times.started(time) == max(i for i in every if start[i] <= time)
    assert times.begins(time) == min((i for i in every if start[i] >= time), default=4 * n)
