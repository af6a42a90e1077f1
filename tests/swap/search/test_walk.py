"""A walk begins with the plan that it is given."""

from __future__ import annotations

import pytest

from gpumem.simulator.simulate import simulate
from gpumem.swap.mosos import solve_mosos
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.walk import Walk
from tests.swap.nets import CARD, chain


@pytest.mark.jit
def test_a_start_with_operators_can_be_said() -> None:
    trace, menu = chain(workspace=25)
    start = solve_mosos(trace, CARD, 80, algorithms=menu).plan
    walk = Walk(Instance.of(trace, CARD, 80, recompute=True, plan=start), 1.0, 0)
    assert walk.from_plan(start, simulate(start.apply(trace), CARD, capacity=80))
    (chosen,) = walk.changes(walk.drops.choice)
    assert chosen in start.decisions and walk.state.swaps.selected.any()
