"""Devices are held to their contract: right ones pass, and what is told of a wrong one is short."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from gpumem.runtime import Adaptive, InMemory
from gpumem.testing import DEVICE_RULES, ContractError, Fault, Unmanaged, check_device


def broken(factory: Any, **options: Any) -> ContractError:
    with pytest.raises(ContractError) as found:
        check_device(factory, **options)
    assert found.value.rule in DEVICE_RULES
    return found.value


@pytest.mark.jit
def test_devices_that_are_right() -> None:
    check_device(lambda needs: Unmanaged(), examples=5)
    closed = []

    class Limited(Adaptive):
        def close(self) -> None:
            closed.append(self)
            super().close()

    check_device(lambda needs: Limited(InMemory(), needs, wait=True), examples=3, seed=1, phases=1)
    assert len(closed) == 3


@pytest.mark.thorough
def test_what_a_wrong_device_is_told() -> None:
    class Deaf(Unmanaged):
        def exec(self, *arguments: Any, **options: Any) -> None:
            with suppress(Fault):
                super().exec(*arguments, **options)

    class Small(Unmanaged):
        def malloc(self, size: int, **options: Any) -> int:
            if self.held + size > 1000:
                raise MemoryError("no room")
            return super().malloc(size, **options)

    deaf = broken(lambda needs: Deaf(), phases=1)
    assert deaf.rule == "refusal" and "no Fault came of it" in deaf.reason and deaf.log[-1].endswith("its work")
    small = broken(lambda needs: Small())
    assert small.rule == "error" and small.reason == "MemoryError: no room" and len(small.log) == 1
    with pytest.raises(ValueError, match="examples: 0 is below 1"):
        check_device(lambda needs: Unmanaged(), examples=0)


def test_what_one_op_needs_is_told() -> None:
    needs = []
    check_device(lambda least: needs.append(least) or Unmanaged(), examples=2)
    assert len(needs) == 2 and min(needs) > 1
