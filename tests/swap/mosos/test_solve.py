"""MO-SOS' program solved: against all schedules, tried one by one, and a replay by hand."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from gpumem.base import work
from gpumem.swap.mosos import Nodes, Rules, least, rounded, solve
from gpumem.swap.mosos.program import MOVED
from tests.swap.mosos.cases import case
from tests.swap.mosos.oracle import least_value, obeys, random_nodes, replay


def check(seed: int, n: int) -> str:
    """Compare with all schedules at one limit."""
    nodes, rules, limit = case(seed, n)
    found = solve(nodes, limit, rules)
    best = least_value(nodes, limit, rules, MOVED)
    if best == inf:
        assert found.status == "infeasible" and found.schedule is None
        return found.status
    assert found.status == "optimal" and found.schedule is not None
    assert found.value == pytest.approx(best, abs=3e-6)
    assert found.bound == pytest.approx(best, abs=3e-6)
    check_replay(nodes, rules, limit)
    return found.status


def check_replay(nodes: Nodes, rules: Rules, limit: int) -> None:
    schedule = solve(nodes, limit, rules).schedule
    if schedule is not None:
        memory, time = replay(nodes, schedule, duplex=rules.duplex, plain=rules.plain)
        assert (memory, time) == (schedule.memory.tolist(), schedule.time)
        assert max(memory) <= limit
        obeys(nodes, schedule, rules)


def check_least(seed: int, n: int) -> None:
    nodes, rules, _ = case(seed, n)
    found = least(nodes, rules)
    assert found.status == "optimal" and found.schedule is not None
    assert found.value == found.schedule.memory.max() == least_value(nodes, inf, rules, 0.0, memory=True)
    below, there = (solve(nodes, int(found.value) - less, rules) for less in (1, 0))
    assert (below.status, there.status) == ("infeasible", "optimal")


@pytest.mark.parametrize("seed", range(16))
def test_no_schedule_is_better(seed: int) -> None:
    check(seed, 4 + 2 * (seed % 2))


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 7])
def test_no_schedule_needs_less_memory(seed: int) -> None:
    check_least(seed, 6)


def check_replays(seed: int, n: int) -> str:
    nodes, rules, limit = case(seed, n)
    check_replay(nodes, rules, limit)
    return "replayed"


@pytest.mark.parametrize("seed", [3, 5, 17])
def test_a_schedule_is_what_the_program_thinks(seed: int) -> None:
    check_replays(seed, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000))
def test_a_thousand_schedules_are_what_the_program_thinks(seed: int) -> None:
    check_replays(seed, 6 + seed % 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_no_schedule_of_seven_nodes_is_better(seed: int) -> None:
    check(seed, 6 + seed % 2)


@pytest.mark.parametrize(("seed", "limit", "values"), [(2, 35, (28, 31)), (4, 30, (34, inf))])
def test_what_a_plan_cannot_say_costs(seed: int, limit: int, values: tuple[float, float]) -> None:
    nodes = random_nodes(np.random.default_rng(seed), 7, shape="valley")
    found = [solve(nodes, limit, Rules(plain=plain)).value for plain in (False, True)]
    assert found == pytest.approx(values, abs=1e-3)


def test_a_known_schedule_is_kept_or_beaten() -> None:
    nodes, _, limit = case(3, 7)
    best = solve(nodes, limit)
    again = solve(nodes, limit, start=best.schedule)
    assert (again.value, again.status, again.gap) == (best.value, "optimal", 0.0)
    below = solve(nodes, limit, best=best.value - 1)
    assert (below.schedule, below.status, below.bound) == (None, "infeasible", best.value - 1)
    slow = solve(nodes, limit, Rules(copies=False, by=np.zeros(len(nodes), np.int64)))
    assert slow.schedule is None or solve(nodes, limit, start=slow.schedule).value == best.value


def test_late_is_said() -> None:
    nodes = random_nodes(np.random.default_rng(1), 24, shape="valley")
    near = rounded(nodes, 70)
    assert near.schedule is not None and near.status == "late"
    with work.within(1e-6):
        found, kept = solve(nodes, 70), solve(nodes, 70, start=near.schedule)
    assert (found.schedule, found.status, found.gap) == (None, "late", inf)
    assert (kept.schedule, kept.status) == (near.schedule, "start")
