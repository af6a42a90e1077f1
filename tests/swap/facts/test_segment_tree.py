"""Segment trees over ops, against plain arrays."""

from __future__ import annotations

import numpy as np
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
