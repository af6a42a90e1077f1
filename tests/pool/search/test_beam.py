"""The beam search: states against a slow reading of them, placements against the checker and brute force."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.pool.search import _packing, _skyline, beam as module
from gpumem.pool.search._packing import FAR, PackingInstance
from gpumem.pool.search._problem import PlacementProblem
from gpumem.pool.search._skyline import GIVE_UP, POWER, Arc, Goal, Skylines
from gpumem.pool.search.beam import BeamWalk, beam
from gpumem.pool.search.greedy import greedy
from gpumem.testing import perfect
from gpumem.trace import I64, Trace, lifetimes
from gpumem.trace.placement import Placement
from tests.plain import plain
from tests.pool.search.instances import least_by_brute_force, tiny

sky: Any = plain(_skyline, meet=plain(lifetimes).meet, add=plain(_packing).add)  # type: ignore[arg-type]


def instance(seed: int, slack: int) -> tuple[PlacementProblem, PackingInstance]:
    """Return a tiny problem, with nothing fixed, below a height somewhat above the least that it could have."""
    trace, alignment, _ = tiny(np.random.default_rng(seed))
    problem = PlacementProblem.of(trace, alignment)
    return problem, problem.instance(np.sort(problem.free), problem.lower_bound + slack * alignment)


def beginning(p: PackingInstance) -> Skylines:
    """Return a table of two states: nothing is placed yet, and room for another one."""
    n, count = p.sections, len(p.size)
    s = Skylines(*np.zeros((2, 2, n), np.int64), *np.zeros((3, 2, count), np.int64), *np.zeros((2, 2), np.int64))
    for j in range(count):
        s.unplaced[0, np.arange(p.first[j], p.last[j]) % n] += p.size[j]
    s.order[0], s.waiting[0] = np.arange(count), count
    return s


def sections(p: PackingInstance, first: int, last: int) -> list[int]:
    return [t % p.sections for t in range(first, last)]


def slow_loss(p: PackingInstance, top: I64, placed: set[int], ceiling: int) -> float:
    """Read the loss off a skyline: in each section, what must lie above some offset ends no lower than that and it."""
    rest = [j for j in range(len(p.size)) if j not in placed]
    least = {j: max(top[sections(p, p.first[j], p.last[j])]) for j in rest}
    total = 0.0
    for t in range(p.sections):
        here = [j for j in rest if t in sections(p, p.first[j], p.last[j])]
        piles = [at + sum(p.size[j] for j in here if least[j] >= at) for at in {least[j] for j in here}]
        load = sum(int(p.size[j]) for j in range(len(p.size)) if t in sections(p, p.first[j], p.last[j]))
        end = max([top[t], *piles])
        if end > ceiling or any(least[j] + p.size[j] > p.ceiling[j] for j in here):
            return -1.0
        total += (max(end - load, 0) / ceiling) ** POWER
    return total


@given(st.integers(0, 2**32), st.integers(0, 8), st.data())
def test_a_state_is_what_its_steps_made_of_it(seed: int, slack: int, data: st.DataObject) -> None:
    _, p = instance(seed, slack)
    s, n, placed, ceiling = beginning(p), p.sections, set[int](), int(max(p.ceiling, default=1))
    rows: list[I64] = [np.empty(n, np.int64) for _ in range(4)]
    top = np.zeros(n, np.int64)
    while len(placed) < len(p.size):
        sky.copy(s, 0, s, 1)
        sky.look(p, s, 0, ceiling, rows[0], rows[1])
        t = sky.valley(s, 0, rows[0], rows[1])
        first, last, wall = sky.stretch(s, 0, t, rows[1])
        assert wall > top[t] and {int(top[x]) for x in sections(p, first, last)} == {int(top[t])}
        rest = [j for j in range(len(p.size)) if j not in placed and t in sections(p, p.first[j], p.last[j])]
        j = data.draw(st.sampled_from(rest + ([GIVE_UP] if wall < FAR else [])))
        end = wall
        if j != GIVE_UP:
            first, last = int(p.first[j]), int(p.last[j])
            end = int(max(top[sections(p, first, last)]) + p.size[j])
            placed.add(j)
        sky.lift(p, s, 1, j, Arc(first, last, end))
        sky.copy(s, 1, s, 0)
        top[sections(p, first, last)] = end
        assert s.top[0].tolist() == top.tolist()
        order = s.order[0, : s.waiting[0]].tolist()
        assert sorted(order) == sorted(set(range(len(p.size))) - placed)
        least = [int(max(top[sections(p, p.first[j], p.last[j])])) for j in order]
        assert s.min_offset[0, order].tolist() == least == sorted(least, reverse=True)
        assert sky.loss(p, s, 0, Goal(beginning(p).unplaced[0], ceiling, rows[2], rows[3], rows[3])) == slow_loss(
            p, top, placed, ceiling
        )
        assert all(j == GIVE_UP or s.offset[0, j] + p.size[j] == end for j in [j])


@given(st.integers(0, 2**32), st.integers(0, 8))
def test_what_is_tried_gives_up_least_first(seed: int, slack: int) -> None:
    _, p = instance(seed, slack)
    s, n, ceiling = beginning(p), p.sections, int(max(p.ceiling, default=1))
    if not len(p.size):
        return
    largest = int(np.argmax(p.size))
    sky.lift(p, s, 0, largest, Arc(int(p.first[largest]), int(p.last[largest]), max(p.size)))
    for t in range(n):
        found = sky.to_try(p, s, 0, Arc(t, t + 1, 0), ceiling).tolist()
        keys = []
        for j in found:
            under = sections(p, p.first[j], p.last[j])
            assert t in under and j in s.order[0, : s.waiting[0]]
            keys.append((int((s.min_offset[0, j] - s.top[0, under]).sum()), -int(p.size[j] * len(under)), 0))
        assert keys == sorted(keys)


@given(st.integers(0, 2**32), st.integers(0, 8), st.integers(1, 20))
def test_what_a_beam_places_is_a_placement(seed: int, slack: int, width: int) -> None:
    problem, p = instance(seed, slack)
    left, _, offset = beam(p, width, 10**9)
    if left == 0:
        placed = problem.complete(np.sort(problem.free), offset, smallest=True)
        check.placement(problem.trace, placed)
        assert placed.height <= problem.lower_bound + slack * problem.alignment


def test_a_wide_beam_finds_nearly_all_that_there_is() -> None:
    found = []
    for seed in range(60):
        trace, alignment, _ = tiny(np.random.default_rng(seed))
        problem = PlacementProblem.of(trace, alignment)
        least = least_by_brute_force(trace, alignment, {})
        for height, there in ((least - alignment, False), (least, True)):
            left, _, _ = beam(problem.instance(np.sort(problem.free), height), 100, 10**9)
            assert there or left > 0 or not len(problem.free), seed
            if there:
                found.append(left == 0)
    assert sum(found) >= 57


@pytest.mark.jit
def test_a_wider_beam_sees_more() -> None:
    problem = PlacementProblem.of(perfect(120, seed=2), 1)
    left = [beam(problem.instance(np.sort(problem.free), int(1.02 * 2**20)), width, 10**12)[0] for width in (1, 4, 400)]
    assert left[0] > 0 == left[2]


@pytest.mark.jit
def test_the_walk_comes_down_from_greedy_and_asks_for_less_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, asked = perfect(120, seed=2), list[tuple[int, int]]()

    def spy(p: PackingInstance, width: int, work: int) -> tuple[int, int, I64]:
        asked.append((width, int(p.ceiling[0])))
        return beam(p, width, work)

    monkeypatch.setattr(module, "beam", spy)
    first = greedy(trace, alignment=1)
    walk = BeamWalk(PlacementProblem.of(trace, 1), first, trace.peak_live_bytes)
    placed = walk.run(200_000_000)
    check.placement(trace, placed)
    assert placed.height < 1.03 * trace.peak_live_bytes < 1.2 * trace.peak_live_bytes < first.height
    assert all(a[0] <= b[0] and a[1] >= b[1] for a, b in pairwise(asked))


def test_the_walk_ends_where_hardly_anything_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace.from_lifetimes([2] * 8, range(8), range(3, 11), n=11)
    asked: list[int] = []

    def hopeless(p: PackingInstance, width: int, work: int) -> tuple[int, int, I64]:
        asked.append(width)
        return len(p.size), 1, np.zeros(len(p.size), np.int64)

    monkeypatch.setattr(module, "beam", hopeless)
    before = Placement(np.arange(8) * 2, 16, 1, 6)
    walk = BeamWalk(PlacementProblem.of(trace, 1), before, 6)
    assert walk.run(10**9) is before
    assert asked == [module.WIDTH]


def test_nothing_to_place() -> None:
    problem = PlacementProblem.of(Trace.from_lifetimes([], [], [], n=3), 1)
    assert beam(problem.instance(problem.free, 0), 4, 100)[0] == 0
