"""Schedules that wait for copies: against all of them, tried one by one, against a linear program, and by hand."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from gpumem.swap.mosos import Implementation, Nodes, Rules, rounded, solve
from gpumem.swap.mosos.program import MOVED
from tests.swap.mosos import waits
from tests.swap.mosos.oracle import random_nodes


def case(seed: int, n: int, **rules: bool) -> tuple[Nodes, Rules, int]:
    rng = np.random.default_rng(seed)
    nodes = random_nodes(rng, n, shape=("any", "valley")[seed % 2])
    peak, most = max(waits.memory_of(nodes, [])), max(x.workspace for row in nodes.implementations for x in row)
    duplex = bool(rng.random() < 0.7)
    return nodes, Rules(plain=True, waits=True, duplex=duplex, **rules), int(rng.integers(peak // 2, peak + most + 1))


def check(seed: int, n: int) -> str:
    """Compare with all schedules without recomputations."""
    nodes, rules, limit = case(seed, n, recompute=False)
    found, best = solve(nodes, limit, rules), waits.best(nodes, limit, MOVED, rules.duplex)
    if best == inf:
        assert found.status == "infeasible"
        return found.status
    assert found.status == "optimal" and found.schedule is not None
    assert found.value == pytest.approx(best, abs=1e-3) and found.bound == pytest.approx(best, abs=1e-3)
    waits.check(nodes, found.schedule, duplex=rules.duplex)
    return "waits" if found.schedule.wait else "moves" if found.schedule.out else found.status


def test_no_schedule_that_waits_is_better() -> None:
    """Of these cases some must wait, some copy beside the runs, and some have no schedule at all."""
    assert {check(seed, 5 + seed % 2) for seed in range(44)} == {"waits", "moves", "optimal", "infeasible"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 500))
def test_no_schedule_of_six_nodes_that_waits_is_better(seed: int) -> None:
    check(seed, 5 + seed % 2)


def check_reruns(seed: int, n: int) -> None:
    """With recomputation too: what it says of itself is so, and it is no worse than waits or recomputation alone."""
    nodes, rules, limit = case(seed, n)
    found, near = solve(nodes, limit, rules), rounded(nodes, limit, rules)
    for some in (found.schedule, near.schedule):
        if some is not None:
            waits.check(nodes, some, duplex=rules.duplex)
            assert some.memory.max() <= limit
    assert near.value >= found.value - 1e-3 and near.bound <= found.value + 1e-3
    for less in (
        Rules(plain=True, duplex=rules.duplex),
        Rules(plain=True, copies=False),
        case(seed, n, recompute=False)[1],
    ):
        assert found.value <= solve(nodes, limit, less).value + 1e-3


@pytest.mark.parametrize("seed", range(8))
def test_waiting_is_never_worse(seed: int) -> None:
    check_reruns(seed, 7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_waiting_is_never_worse_at_length(seed: int) -> None:
    check_reruns(seed, 6 + seed % 4)


def test_a_copy_that_nothing_hides_is_waited_for() -> None:
    """Node 3 reads what node 0 made: 40 bytes that take longer than any stage, and are in the way of node 2."""
    nodes = Nodes.make(
        [[Implementation("", 10)]] * 4, [[], [], [1], [0, 2]], [40, 30, 60, 10], recomputable=False, out_ns=25, in_ns=15
    )
    assert solve(nodes, 120, Rules(plain=True)).schedule is None
    found = solve(nodes, 120, Rules(plain=True, waits=True)).schedule
    assert found is not None and (found.time, found.wait) == (40, 30)  # out beside node 1, then 15 more; 15 back


def test_waits_are_of_plain_schedules() -> None:
    with pytest.raises(ValueError, match="waits without plain"):
        Rules(waits=True)
