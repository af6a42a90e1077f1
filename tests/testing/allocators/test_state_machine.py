"""The contract as a state machine of Hypothesis: it accepts right allocators, and finds every seeded bug."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed as seeded, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from gpumem.testing import ContractError, allocator_machine
from tests import faulty
from tests.testing.tried import BUGS, RIGHT, SEEDS, name


def drive(factory: Callable[[], Any], seed: int, **options: Any) -> None:
    """Run the state machine; stop at the first error, without making it small."""
    machine = seeded(seed)(allocator_machine(factory, **options))
    quick = settings(
        max_examples=200,
        stateful_step_count=30,
        derandomize=False,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=quick)
    except FlakyFailure as other:  # what is found in an allocator that cannot be repeated does not always happen again
        raise other.exceptions[0] from None


@pytest.mark.thorough
@pytest.mark.parametrize("factory", RIGHT, ids=name)
def test_the_machine_accepts_right_allocators(factory: Callable[[], Any]) -> None:
    run_state_machine_as_test(allocator_machine(factory), settings=settings(max_examples=15, deadline=None))


@pytest.mark.thorough
@pytest.mark.parametrize("factory", BUGS, ids=name)
def test_the_machine_finds_every_bug(factory: Callable[[], Any]) -> None:
    for seed in SEEDS[:1]:
        with pytest.raises(ContractError) as found:
            drive(factory, seed)
        assert found.value.rule in faulty.ALLOCATORS[factory]
