"""Instances that are a rectangle cut into pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.testing.perfect import perfect


@given(st.integers(1, 60), st.integers(0, 2**32))
def test_all_of_the_height_is_in_use_all_the_time(pieces: int, seed: int) -> None:
    trace = perfect(pieces, seed=seed, steps=30, height=1000)
    assert pieces <= len(trace.buffers) <= pieces + 3
    _, load = trace.steps()
    assert set(load.tolist()) == {1000}
    assert int((trace.buffers.size * (trace.buffers.end - trace.buffers.start)).sum()) == 30 * 1000


def test_a_seed_makes_one_instance() -> None:
    first, second = (perfect(40, seed=seed).buffers.size for seed in (3, 3))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, perfect(40, seed=4).buffers.size)


@pytest.mark.parametrize(
    "options, what",
    [({"pieces": 0}, "pieces: 0"), ({"steps": 0}, "steps: 0"), ({"height": -1}, "height: -1")],
)
def test_what_cannot_be_cut_is_named(options: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        perfect(**{"pieces": 3, **options})
    with pytest.raises(ValueError, match="pieces: 50 are too many for 2 steps of 3 bytes"):
        perfect(50, steps=2, height=3)
