"""Exact placement: the compiled search and the planner against brute force, and what is claimed about the optimum."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.io import read
from gpumem.pool import best_fit, exact, search
from gpumem.pool.search._depth_first import AREA, END, GAVE_UP, IMPOSSIBLE, SOLVED, pack
from gpumem.pool.search._packing import PackingInstance
from gpumem.pool.search._problem import PlacementProblem
from gpumem.pool.search.greedy import ORDERS, placements
from gpumem.pool.smartpool.offline import _fit
from gpumem.trace import Trace
from tests.conftest import shared
from tests.strategies import traces


def least_by_brute_force(trace: Trace, alignment: int, fixed: dict[int, int]) -> int:
    """The lowest first fit over all orders. A lowest placement of all is among them: take it from the bottom up."""
    b, least = trace.buffers, 2**62
    held = sorted(fixed, key=lambda j: fixed[j])
    held = [j for j in held if b.size[j]]
    for order in permutations(j for j in range(len(b)) if j not in fixed and b.size[j] and not b.host[j]):
        offset = np.zeros(len(b), np.int64)
        offset[held] = [fixed[j] for j in held]
        every = np.array([*held, *order], np.int64)
        _fit(b.size, b.start, b.end, trace.n, every, len(held), alignment, False, offset)
        least = min(least, int((offset + b.size)[every].max(initial=0)))
    return max(least, *(fixed[j] + int(b.size[j]) for j in fixed), 0)


def tiny(rng: np.random.Generator) -> tuple[Trace, int, dict[int, int]]:
    """Up to six arcs of a small circle, some alike, some alive all the time, some fixed."""
    n, count = int(rng.integers(1, 9)), int(rng.integers(1, 7))
    start = rng.integers(0, n, count)
    end = start + rng.integers(1, n + 1, count)
    size = rng.integers(0, 12, count)
    if rng.random() < 0.3:
        alike = rng.random(count) < 0.5
        size[alike], start[alike], end[alike] = size[0], start[0], end[0]
    trace, alignment = Trace.from_lifetimes(size, start, end, n=n), int(rng.choice([1, 2, 4, 5]))
    placed = best_fit(trace, alignment=alignment)
    ids = np.flatnonzero(rng.random(count) < 0.3) if rng.random() < 0.4 else []
    lift = int(rng.integers(0, 2)) * alignment
    return trace, alignment, {int(j): int(placed.offset[j]) + lift for j in ids}


def compare(seed: int, count: int) -> int:
    """Hold `exact` against brute force; return how often the optimum lies above the bound known at first."""
    rng, above = np.random.default_rng(seed), 0
    for _ in range(count):
        trace, alignment, fixed = tiny(rng)
        placed = exact(trace, alignment=alignment, fixed=fixed)
        check.placement(trace, placed)
        want = least_by_brute_force(trace, alignment, fixed)
        assert (placed.height, placed.optimal, placed.bound) == (want, True, want), (trace.buffers, alignment, fixed)
        above += PlacementProblem.of(trace, alignment, fixed).lowest < want
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


@given(st.integers(0, 2**32), st.integers(AREA, END), st.booleans())
def test_every_order_of_the_search_tells_whether_there_is_a_placement(seed: int, rule: int, every: bool) -> None:
    rng = np.random.default_rng(seed)
    trace, alignment, fixed = tiny(rng)
    problem = PlacementProblem.of(trace, alignment, fixed)
    want, height = least_by_brute_force(trace, alignment, fixed), problem.lowest + int(rng.integers(0, 4))
    noise = np.exp(rng.standard_normal(len(problem.free)))
    status, _, offset = pack(problem.instance(problem.free, height), rule, every, noise, fails=10**6, work=10**9)
    assert status == (SOLVED if want <= height else IMPOSSIBLE)
    if status == SOLVED:
        placed = problem.complete(problem.free, offset, smallest=True)
        check.placement(trace, placed)
        assert placed.height <= height


def test_a_search_that_fails_once_too_often_gives_up() -> None:
    sizes = [5, 4, 3, 3, 3, 2]
    trace = Trace.from_lifetimes(sizes, [0, 1, 2, 3, 4, 5], [3, 5, 6, 7, 8, 9], n=9)
    problem = PlacementProblem.of(trace, 1)
    instance: PackingInstance = problem.instance(problem.free, trace.peak_load - 1)
    status, _, _ = pack(instance, AREA, False, np.ones(6), fails=0, work=10**9)
    assert status in (IMPOSSIBLE, GAVE_UP)


def test_a_search_out_of_work_gives_up_before_the_first_failure() -> None:
    trace = Trace.from_lifetimes([1] * 50, list(range(50)), [k + 3 for k in range(50)], n=60)
    problem = PlacementProblem.of(trace, 1)
    instance = problem.instance(problem.free, trace.peak_load)
    status, spent, _ = pack(instance, AREA, False, np.ones(50), fails=10**6, work=2000)
    assert status == GAVE_UP
    assert 2000 < spent < 4000


@given(traces(), st.sampled_from([1, 256]))
def test_each_greedy_order_places_validly(trace: Trace, alignment: int) -> None:
    found = placements(PlacementProblem.of(trace, alignment))
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


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.parametrize("path", shared("dsa/*/i*.csv"), ids=lambda p: p.name.split(".")[0])
def test_small_public_instances_are_settled(path: Path) -> None:
    trace = read(path)
    placed = exact(trace, alignment=1)
    check.placement(trace, placed)
    assert placed.optimal
