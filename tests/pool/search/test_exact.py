"""Exact placement against brute force, and what it claims about the optimum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.io import read
from gpumem.pool import exact, greedy, search
from gpumem.trace import Trace
from tests.conftest import shared
from tests.pool.search.instances import least_by_brute_force, tiny
from tests.strategies import traces


def compare(seed: int, count: int) -> int:
    """Hold `exact` against brute force; return how often the optimum lies above the bound known at first."""
    rng, above = np.random.default_rng(seed), 0
    for _ in range(count):
        trace, alignment, fixed = tiny(rng)
        placed = exact(trace, alignment=alignment, fixed=fixed)
        check.placement(trace, placed)
        want = least_by_brute_force(trace, alignment, fixed)
        assert (placed.height, placed.optimal, placed.bound) == (want, True, want), (trace.buffers, alignment, fixed)
        above += greedy(trace, alignment=alignment, fixed=fixed).bound < want
    return above


@pytest.mark.jit
def test_exact_is_brute_force() -> None:
    assert compare(0, 300) > 0


@pytest.mark.slow
def test_exact_is_brute_force_on_ten_thousand() -> None:
    assert compare(1, 10_000) > 100


@given(traces(max_buffers=6), st.sampled_from([1, 4, 256]))
def test_exact_on_any_trace(trace: Trace, alignment: int) -> None:
    placed = exact(trace, alignment=alignment)
    check.placement(trace, placed)
    assert placed.optimal
    assert placed.height <= search(trace, alignment=alignment, effort=0.01).height
    assert (
        exact(trace, alignment=alignment, effort=0.01).height <= search(trace, alignment=alignment, effort=0.01).height
    )


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.parametrize("path", shared("dsa/*/i*.csv"), ids=lambda p: p.name.split(".")[0])
def test_small_public_instances_are_settled(path: Path) -> None:
    trace = read(path)
    placed = exact(trace, alignment=1)
    check.placement(trace, placed)
    assert placed.optimal
