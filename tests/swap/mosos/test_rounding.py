"""A rounded schedule is one that a plan can say, and its bound holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem.swap.mosos import rounded, solve
from tests.swap.mosos.cases import case
from tests.swap.mosos.oracle import obeys, replay


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
