"""What finds bugs in planners: it accepts right ones, and finds every seeded bug, with any seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.pool import PLANNERS
from gpumem.testing import ContractError, check_planner
from gpumem.trace import Trace
from tests import faulty
from tests.testing.tried import SEEDS, name


@pytest.mark.thorough
@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_the_planners_of_the_package(planner: str) -> None:
    options = {"search": {"effort": 0.001}}.get(planner, {})
    for alignment in (1, 256):
        check_planner(partial(PLANNERS[planner], alignment=alignment, **options), alignment=alignment, examples=100)


@pytest.mark.parametrize("planner", sorted(faulty.PLANNERS, key=name), ids=name)
def test_every_bug_of_a_planner_is_found(planner: Callable[[Trace], Any]) -> None:
    check_planner(faulty.placed, alignment=16)
    for seed in SEEDS:
        with pytest.raises(ContractError) as found:
            check_planner(planner, seed=seed, alignment=16 if planner is faulty.not_aligned else 1)
        assert found.value.rule in faulty.PLANNERS[planner]
        assert len(found.value.log) == 1


def test_the_trace_that_fails_is_small_and_can_be_made_again() -> None:
    for planner in (faulty.forgets_arcs, faulty.on_the_host):
        with pytest.raises(ContractError) as found:
            check_planner(planner)
        line = found.value.log[0]
        names: dict[str, Any] = {}
        exec(f"from gpumem.trace import Buffers, Ops\nfrom gpumem.trace import Trace\n{line}", names)
        assert len(names["trace"].buffers) <= 2
        with pytest.raises(CheckError, match=str(found.value.reason.split(":")[0])):
            check.placement(names["trace"], planner(names["trace"]))


@pytest.mark.parametrize("rule", ["deterministic", "unchanged"])
def test_a_planner_may_be_allowed_to_break(rule: str) -> None:
    planner = {"deterministic": faulty.at_random, "unchanged": faulty.sorts_in_place}[rule]
    check_planner(planner, skip=[rule], examples=20)
