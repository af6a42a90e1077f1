"""The depth-first search for a placement below a height, against brute force, and where it gives up."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.pool.search._depth_first import AREA, END, GAVE_UP, IMPOSSIBLE, SOLVED, pack
from gpumem.pool.search._problem import PlacementProblem
from gpumem.trace import Trace
from tests.pool.search.instances import least_by_brute_force, tiny


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
    instance = problem.instance(problem.free, trace.peak_load - 1)
    status, _, _ = pack(instance, AREA, False, np.ones(6), fails=0, work=10**9)
    assert status in (IMPOSSIBLE, GAVE_UP)


def test_a_search_out_of_work_gives_up_before_the_first_failure() -> None:
    trace = Trace.from_lifetimes([1] * 50, list(range(50)), [k + 3 for k in range(50)], n=60)
    problem = PlacementProblem.of(trace, 1)
    instance = problem.instance(problem.free, trace.peak_load)
    status, spent, _ = pack(instance, AREA, False, np.ones(50), fails=10**6, work=2000)
    assert status == GAVE_UP
    assert 2000 < spent < 4000
