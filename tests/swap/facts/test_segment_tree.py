"""Segment trees over ops, against plain arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.swap.facts import segment_tree as _tree


@given(st.data())
def test_a_tree_is_what_an_array_is(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 20))
    values = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=n, max_size=n)), np.int64)
    width = np.array(data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), np.int64)
    top, add = _tree.build(values)
    area, wide, more = _tree.build_area(values, width)
    for _ in range(data.draw(st.integers(0, 6))):
        a, b = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
        x = data.draw(st.integers(-9, 9))
        values[a:b] += x
        _tree.add_to(top, add, a, b, x)
        _tree.add_to_area(area, wide, more, a, b, x)
        a, b = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
        assert _tree.largest(top, add, a, b) == values[a:b].max(initial=_tree.LOW)
        assert _tree.area_of(area, wide, more, a, b) == (values * width)[a:b].sum()
        assert top[1] == values.max()
        assert _tree.values(top, add, n).tolist() == values.tolist()
        over = a + np.flatnonzero(values[a:b] > x)
        assert _tree.above(top, add, a, b, x, False) == min(over, default=-1)
        assert _tree.above(top, add, a, b, x, True) == max(over, default=-1)


class Counted:
    """A column that counts how often it is read."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.reads = values, 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, k: int) -> int:
        self.reads += 1
        return int(self.values[k])


@pytest.mark.parametrize("last", [False, True])
def test_what_is_above_is_found_in_logarithmic_steps(last: bool) -> None:
    plain = getattr(_tree.above, "py_func", _tree.above)
    for n in (100, 1000, 10_000, 100_000):
        values = np.tile(np.array([9, 0, 5, 0]), n // 4)
        values[[0, -1]] = 99  # outside the range, so that nodes at its ends promise what they do not have
        top, add = map(Counted, _tree.build(values))
        assert plain(top, add, 1, n - 1, 20, last) == -1
        assert plain(top, add, 1, n - 1, 8, last) == (n - 4 if last else 4)
        assert top.reads + add.reads < 12 * n.bit_length()
