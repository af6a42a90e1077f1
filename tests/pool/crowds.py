"""Traces of many buffers, and their placement by a look at all that is placed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from gpumem.trace import I64, Trace
from tests.conftest import shared

INSTANCES = [
    pytest.param(path, id=f"{path.parent.name}/{path.name.split('.')[0]}", marks=marks)
    for pattern, marks in (
        ("traces/*.json.gz", ()),
        ("traces/csv/*.csv.gz", pytest.mark.slow),  # the first iterations of these, without ops
        ("dsa/*/*.csv", ()),
    )
    for path in shared(pattern)
]
ALIGNMENTS = st.sampled_from([1, 2, 8, 256])


def crowd(seed: int, count: int, n: int, sizes: int, longest: int, wrapping: bool) -> Trace:
    """Arcs of mixed lengths, some alive all the time, of `sizes` different sizes."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, n, count)
    length = rng.integers(1, min(longest, n) + 1, count)
    all_time = rng.random(count) < 0.05
    start[all_time], length[all_time] = rng.choice([0, n - 1], int(all_time.sum())), n
    end = start + length if wrapping else np.where(all_time, start + n, np.minimum(start + length, n))
    return Trace.from_lifetimes(rng.choice(rng.integers(0, 2000, sizes), count), start, end, n=n)


CROWDS = st.builds(
    crowd,
    st.integers(0, 2**32),
    st.integers(1, 150),
    st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 200, 2**40]),
    st.sampled_from([1, 3, 100]),
    st.sampled_from([1, 3, 20, 200, 2**40]),
    st.booleans(),
)


def pairs(trace: Trace, order: I64, first: int, alignment: int, smallest: bool, offset: I64) -> None:
    """Fill `offset` for `order[first:]` by a look at all that is placed."""
    b, n = trace.buffers, trace.n
    for turn in range(first, len(order)):
        x, placed = order[turn], order[:turn]
        placed = placed[np.argsort(offset[placed], kind="stable")]
        meets = (b.start[placed] - b.start[x]) % n < b.end[x] - b.start[x]
        meets |= (b.start[x] - b.start[placed]) % n < b.end[placed] - b.start[placed]
        floor, holes = 0, []
        for y in placed[meets].tolist():
            holes.append((int(offset[y]) - floor, floor))
            floor = max(floor, -(-int(offset[y] + b.size[y]) // alignment) * alignment)
        fitting = [hole for hole in holes if hole[0] >= b.size[x]] or [(0, floor)]
        offset[x] = min(fitting)[1] if smallest else fitting[0][1]


def by_size(trace: Trace) -> I64:
    b = trace.buffers
    order = np.lexsort((np.arange(len(b)), b.start, -b.size))
    return order[b.size[order] > 0]
