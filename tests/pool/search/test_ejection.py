"""Placement by ejection: valid whatever is fixed, never higher than its start, the same without the compiler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem import check
from gpumem.pool import best_fit
from gpumem.pool.search._problem import PlacementProblem
from gpumem.pool.search.ejection import OUT, STUCK, Arrangement, EjectionWalk, eject, neighbours
from gpumem.trace import Trace
from gpumem.trace.lifetimes import meet
from tests.strategies import traces

EFFORT = 30_000
NOTHING = np.empty(0, np.int64)


def walk(trace: Trace, *, fixed: dict[int, int] | None = None, alignment: int = 1, seed: int = 0) -> EjectionWalk:
    """A walk that starts from best fit."""
    problem = PlacementProblem.of(trace, alignment, fixed)
    start = problem.complete(NOTHING, NOTHING, smallest=True)
    return EjectionWalk(problem, start, problem.lower_bound, np.random.default_rng(seed))


def crowd(count: int, n: int) -> Trace:
    """Arcs of all lengths that wrap or do not."""
    rng = np.random.default_rng(3)
    start = rng.integers(0, n, count)
    return Trace.from_lifetimes(rng.integers(1, 60, count), start, start + rng.integers(1, n, count), n=n)


@settings(max_examples=10)
@given(traces(), st.sampled_from([1, 256]), st.integers(0, 3), st.integers(0, 3))
def test_placements_are_valid_and_never_higher_than_the_first(
    trace: Trace, alignment: int, seed: int, keep: int
) -> None:
    laid = best_fit(trace, alignment=alignment)
    fixed = {j: int(laid.offset[j]) for j in range(min(keep, len(trace.buffers))) if not trace.buffers.host[j]}
    state = walk(trace, fixed=fixed, alignment=alignment, seed=seed)
    before = state.best.height
    placed = state.run(EFFORT)
    check.placement(trace, placed)
    assert placed.height <= before
    assert all(placed.offset[j] == at for j, at in fixed.items())


def test_neighbours_are_all_that_meet_in_order() -> None:
    b = (trace := crowd(25, 12)).buffers
    near = neighbours(b.start, b.end, trace.n)
    for x in range(25):
        met = [y for y in range(25) if y != x and meet(b.start[x], b.end[x], b.start[y], b.end[y], trace.n)]
        assert near.ids[near.begin[x] : near.begin[x + 1]].tolist() == met


def test_what_lies_in_the_way_is_out_and_goes_elsewhere() -> None:
    """The large one is out; only where the small one lies is there room for it, and that one finds another hole."""
    size, first, last = np.array([3, 3, 1]), np.array([0, 2, 0]), np.array([4, 4, 2])
    near, weight = neighbours(first, last, 4), np.array([5, 4, 1])
    offset = np.array([OUT, 0, 2])
    start = Arrangement(*near, size=size, weight=weight, offset=offset)
    assert eject(start, np.full(3, 6), np.zeros(4), fixed=0, count=3, effort=10**6)[0]
    assert offset.tolist() == [3, 0, 2]
    assert eject(start, np.array([6, 6, 1]), np.zeros(4), fixed=0, count=3, effort=10**6)[0]  # lowered ceiling
    assert offset.tolist() == [3, 0, 0]
    weight[1:] = STUCK  # fixed below: nothing can make room
    tight = np.array([4, 4, 4])
    assert not eject(start, tight, np.zeros(4), fixed=0, count=3, effort=10**6)[0]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_crowd_is_placed_lower_and_the_same_each_time(seed: int) -> None:
    trace = crowd(60, 40)
    state = walk(trace, seed=seed)
    before = state.best.height
    placed = state.run(2_000_000)
    check.placement(trace, placed)
    assert placed.height < before
    assert placed.offset.tolist() == walk(trace, seed=seed).run(2_000_000).offset.tolist()


def test_the_offsets_are_the_same_with_and_without_the_compiler() -> None:
    assert walk(crowd(20, 12)).run(200_000).offset.tolist() == [
        75,
        51,
        257,
        44,
        231,
        158,
        191,
        275,
        108,
        0,
        349,
        394,
        184,
        258,
        291,
        310,
        119,
        77,
        349,
        166,
    ]
