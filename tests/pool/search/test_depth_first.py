"""The depth-first search for a placement below a height, against brute force, and where it gives up."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.pool.search import _packing, _parts
from gpumem.pool.search._depth_first import GAVE_UP, IMPOSSIBLE, IN_ORDER, LEVEL, SOLVED, pack
from gpumem.pool.search._packing import ALL, LOOK, UNIT, PackingInstance, PackingState
from gpumem.pool.search._parts import AREA, FULL_LENGTH_AREA, KEYS, LENGTH_AREA, START
from gpumem.pool.search._problem import PlacementProblem
from gpumem.trace import Trace
from tests.plain import plain
from tests.pool.search.instances import crowd, least_by_brute_force, tiny

RULES = ("PILE", "SUPPORT", "REFUSED", "ALIKE", "BENEATH", "FREE", "PARTS")


@cache
def known(seed: int) -> tuple[PlacementProblem, int]:
    """Return a tiny problem and its least height."""
    trace, alignment, fixed = tiny(np.random.default_rng(seed))
    return PlacementProblem.of(trace, alignment, fixed), least_by_brute_force(trace, alignment, fixed)


def tells_the_truth(seed: int, order: int, how: int, rules: int) -> None:
    """Below, at and above the least height: the search says whether there is a placement, and finds it."""
    problem, least = known(seed)
    weight = np.exp(np.random.default_rng(seed).standard_normal(len(problem.free)))
    for height in range(max(problem.lower_bound, least - 3), least + 2):
        instance = problem.instance(problem.free, height)
        status, _, offset = pack(instance, order, how, weight, nodes=10**6, work=10**9, rules=rules)
        assert status == (SOLVED if least <= height else IMPOSSIBLE), (seed, height, rules)
        if status == SOLVED:
            placed = problem.complete(problem.free, offset, smallest=True)
            check.placement(problem.trace, placed)
            assert placed.height <= height


@given(st.integers(0, 2**32), st.integers(0, START), st.integers(IN_ORDER, LEVEL), st.integers(0, ALL))
def test_every_order_of_the_search_tells_whether_there_is_a_placement(
    seed: int, order: int, how: int, rules: int
) -> None:
    tells_the_truth(seed, order, how, rules)


def test_the_rules_are_the_bits_of_all() -> None:
    assert sorted(getattr(_packing, rule) for rule in RULES) == [2**k for k in range(len(RULES))]
    assert sum(getattr(_packing, rule) for rule in RULES) == ALL


@pytest.mark.jit
@pytest.mark.parametrize("rules", range(0, ALL + 1, 16))
def test_no_combination_of_the_rules_cuts_off_the_last_placement(rules: int) -> None:
    for seed in range(60):
        for more in range(16):
            tells_the_truth(seed, (seed + more) % (START + 1), seed % (LEVEL + 1), rules + more)


@cache
def hard() -> list[PackingInstance]:
    """Crowds, and some that are alike, at heights that are found hard to reach or to refute."""
    traces = [crowd(seed, 11, 9) for seed in range(15)]
    for seed in range(25):
        b = crowd(seed, 6, 9).buffers
        traces.append(Trace.from_lifetimes(np.repeat(b.size, 3), np.repeat(b.start, 3), np.repeat(b.end, 3), n=9))
    problems = [PlacementProblem.of(trace, 1) for trace in traces]
    return [p.instance(p.free, p.lower_bound + up) for p in problems for up in (0, 2)]


def work_on(instances: list[PackingInstance], rules: int) -> int:
    """Return what the search spends on some instances."""
    return sum(
        pack(p, order, IN_ORDER, np.ones(len(p.size)), nodes=2000, work=10**12, rules=rules)[1]
        for p in instances
        for order in (AREA, FULL_LENGTH_AREA)
    )


@pytest.mark.jit
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_saves_work(rule: str) -> None:
    assert work_on(hard(), ALL) < work_on(hard(), ALL - getattr(_packing, rule))


def test_a_search_that_may_put_too_few_gives_up() -> None:
    trace = Trace.from_lifetimes([5, 4, 3, 3, 3, 2], [0, 1, 2, 3, 4, 5], [3, 5, 6, 7, 8, 9], n=9)
    problem = PlacementProblem.of(trace, 1)
    instance = problem.instance(problem.free, trace.peak_live_bytes)
    least = [pack(instance, AREA, IN_ORDER, np.ones(6), nodes=nodes, work=10**9)[0] for nodes in range(8)]
    assert least[:6] == [GAVE_UP] * 6
    assert least[-1] == SOLVED


def test_a_search_out_of_work_gives_up_before_it_fails() -> None:
    trace = Trace.from_lifetimes([1] * 50, list(range(50)), [k + 3 for k in range(50)], n=60)
    problem = PlacementProblem.of(trace, 1)
    instance = problem.instance(problem.free, trace.peak_live_bytes)
    status, spent, _ = pack(instance, AREA, IN_ORDER, np.ones(50), nodes=10**6, work=2000)
    assert status == GAVE_UP
    assert 2000 < spent < 4000


def test_sections_where_nothing_rose_cost_nothing() -> None:
    count = 50
    trace = Trace.from_lifetimes([1] * count, list(range(count)), list(range(1, count + 1)))
    problem = PlacementProblem.of(trace, 1)
    instance = problem.instance(problem.free, trace.peak_live_bytes)
    status, spent, _ = pack(instance, AREA, IN_ORDER, np.ones(count), nodes=count, work=10**6)
    assert status == SOLVED
    assert spent == (LOOK * count + count) // UNIT  # one part each; all sections were looked at once, at first


def test_sections_where_a_rise_cannot_be_too_much_are_not_looked_at_again() -> None:
    count, work = 200, list[int]()
    for peak in (1, 10):  # of the last section
        start, end = [*range(count), 0, 0, count], [*range(1, count + 1), count, count, count + 1]
        trace = Trace.from_lifetimes([1] * (count + 2) + [peak], start, end)
        problem = PlacementProblem.of(trace, 1)
        instance = problem.instance(problem.free, trace.peak_live_bytes)
        status, spent, _ = pack(instance, LENGTH_AREA, IN_ORDER, np.ones(count + 3), nodes=count + 3, work=10**6)
        assert status == SOLVED
        work.append(spent)
    assert work[1] < work[0]


@given(st.integers(0, 2**32))
def test_options_are_counted_by_section(seed: int) -> None:
    """What the ways go by: in each section, the buffers that leave enough above them for all that is left there."""
    rng = np.random.default_rng(seed)
    trace, alignment, fixed = tiny(rng)
    problem = PlacementProblem.of(trace, alignment, fixed)
    p = problem.instance(problem.free, problem.lower_bound)
    count, n = len(p.size), p.sections
    rows = {name: np.zeros(count, np.int64) for name in PackingState._fields} | {"items": np.arange(count)}
    rows |= {name: rng.integers(0, 9, n) for name in ("unplaced", "total")} | {"spent": np.zeros(1, np.int64)}
    state = PackingState(**rows)
    state.bound[:] = rng.integers(0, 9, count)
    top = int(rng.integers(0, 17))  # met exactly, one time in nine
    plain(_packing).count_options(p, state, state.items, top)
    for t in range(n):
        here = [j for j in range(count) if any(x % n == t for x in range(p.first[j], p.last[j]))]
        if here:
            assert state.total[t] == sum(state.bound[j] + state.unplaced[t] <= top for j in here)


@given(st.integers(0, 2**32), st.integers(0, 60))
def test_buffers_are_sorted_as_numpy_does_it(seed: int, count: int) -> None:
    """By three of the keys, equals by number: what decides which buffer goes first at one offset."""
    rng = np.random.default_rng(seed)
    keys, buffers = rng.integers(-2, 2, (5, count)).astype(float), rng.permutation(100)[:count]
    column = np.zeros(100, np.int64)
    column[buffers] = np.arange(count)
    for order in KEYS:
        first, second, third = (keys[key] for key in order)
        expected = buffers[np.lexsort((buffers, third, second, first))]
        by = buffers.copy()
        plain(_parts)._sort(by, keys, order, column)
        assert (by == expected).all()
