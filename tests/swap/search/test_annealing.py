"""The annealing begins with the plan that it is given."""

from __future__ import annotations

import pytest

from gpumem.simulator.simulate import simulate
from gpumem.swap.mosos import solve_mosos
from gpumem.swap.search.annealing import Annealing
from gpumem.swap.search.instance import Instance
from tests.swap.nets import CARD, chain


@pytest.mark.jit
def test_a_start_with_operators_can_be_said() -> None:
    trace, ways = chain(workspace=25)
    start = solve_mosos(trace, CARD, 80, algorithms=ways).plan
    found = Annealing(Instance.of(trace, CARD, 80, recompute=True, plan=start), 1.0, 0)
    assert found.from_plan(start, simulate(start.apply(trace), CARD, capacity=80))
    (chosen,) = found.changes(found.d.c)
    assert chosen in start.decisions and found.now.selected.any()
