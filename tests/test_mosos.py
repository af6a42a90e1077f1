"""MO-SOS' program against all schedules, tried one by one, and a replay by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from gpumem.swap.mosos import Nodes, Rules, least, rounded, solve
from gpumem.swap.mosos.program import MOVED
from tests.mosos_oracle import least_value, obeys, random_nodes, replay


def rules_of(rng: np.random.Generator, nodes: Nodes) -> Rules:
    by = np.array([rng.integers(len(row)) for row in nodes.implementations])
    flag = lambda share: bool(rng.random() < share)  # noqa: E731
    return Rules(
        copies=flag(0.8),
        reruns=flag(0.8),
        since=int(rng.integers(len(nodes))) if flag(0.2) else 0,
        by=by if flag(0.2) else None,
        one_each=flag(0.3),
        plain=flag(0.4),
        duplex=flag(0.7),
        fetches=int(rng.integers(1, 3)) if flag(0.3) else None,
    )


def case(seed: int, n: int) -> tuple[Nodes, Rules, int]:
    rng = np.random.default_rng(seed)
    nodes = random_nodes(rng, n, shape=("any", "valley")[seed % 2])
    rules = rules_of(rng, nodes)
    loose, low = solve(nodes, 10**6, rules).schedule, least(nodes, rules).value
    assert loose is not None
    return nodes, rules, int(rng.integers(low - (seed % 8 == 0), max(loose.memory.max(), low) + 1))


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


@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_is_better(seed: int) -> None:
    check(seed, 4 + seed % 2)


@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_needs_less_memory(seed: int) -> None:
    check_least(seed, 4)


def check_rounded(seed: int, n: int) -> str:
    """A rounded schedule is one, a plan can say it, and its bound is one."""
    nodes, rules, limit = case(seed, n)
    near, best = rounded(nodes, limit, rules), solve(nodes, limit, rules)
    assert near.bound <= best.value + 1e-6
    if near.schedule is None:
        return "none" if best.schedule else "infeasible"
    memory, time = replay(nodes, near.schedule, duplex=rules.duplex, plain=rules.plain)
    assert (memory, time) == (near.schedule.memory.tolist(), near.schedule.time)
    assert max(memory) <= limit
    obeys(nodes, near.schedule, replace(rules, plain=True))
    assert near.value >= best.value - 1e-6
    return "best" if near.value <= best.value + 1e-6 else "worse"


@pytest.mark.parametrize("seed", range(4))
def test_a_rounded_schedule_is_legal_and_its_bound_holds(seed: int) -> None:
    check_rounded(seed, 8)
