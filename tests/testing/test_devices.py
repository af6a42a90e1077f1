"""Random programs for a device, and the device that they are compared with."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from gpumem.runtime import Adaptive, InMemory
from gpumem.testing import (
    DEVICE_RULES,
    Compute,
    ContractError,
    DeviceCall,
    Drop,
    Fault,
    Look,
    Malloc,
    Mixing,
    Put,
    Unmanaged,
    Wrong,
    check_device,
    live_program,
    perform,
)

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_reads_only_what_has_bytes(seed: int) -> None:
    """Bytes that nobody has written differ from device to device."""
    live: set[int] = set()
    filled: set[int] = set()
    for call in live_program(seed).calls:
        match call:
            case Malloc(block):
                assert block not in live
                live.add(block)
            case Drop(block):
                live.remove(block)
                filled.discard(block)
            case Put(block):
                assert block in live
                filled.add(block)
            case Look(block):
                assert block in filled
            case Compute(_, reads, writes):
                assert {*reads} <= filled and {*writes} <= live
                filled |= set() if call.fails else {*writes}
            case Wrong(_, block):
                assert block not in live


@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_settles(seed: int) -> None:
    """The same ops on new blocks of the same sizes, `period` calls later; then the looks at all that is live."""
    program = live_program(seed, iterations=6)
    calls, (first, period) = program.calls, (program.settles, program.period)
    end = first + 3 * period
    assert end < len(calls)
    for one, other in zip(calls[first + period : end - period], calls[first + 2 * period : end]):
        assert type(one) is type(other)
        match one, other:
            case (Malloc(_, size), Malloc(_, same)):
                assert size == same
            case (Compute(op, _, _, duration), Compute(same, _, _, too)):
                assert (op, duration) == (same, too)


def test_programs_are_their_seeds() -> None:
    assert live_program(3) == live_program(3) != live_program(4)


def test_every_deviation_is_drawn() -> None:
    calls = [call for seed in range(60) for call in live_program(seed).calls]
    assert {call.fails for call in calls if isinstance(call, Compute)} == {"", "before", "after"}
    assert {call.call for call in calls if isinstance(call, Wrong)} == {"free", "read", "write", "exec"}
    assert {call.size for call in calls if isinstance(call, Malloc)} >= {0, 8, 2048, 4096, 8192, 50}


def seen(calls: list[DeviceCall], device: Unmanaged) -> list[bytes]:
    return [found.tobytes() for found in perform(calls, device)]


@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_byte_anywhere_shows(seed: int) -> None:
    calls = [call for call in live_program(seed).calls if not isinstance(call, Look)]
    looks = live_program(seed).calls[-3:]

    class Forgetful(Unmanaged):
        """Loses a bit of what an op writes, once."""

        left = 20

        def exec(self, op, reads=(), writes=(), *, call=None, duration=0):  # type: ignore[no-untyped-def]
            super().exec(op, reads, writes, call=call, duration=duration)
            self.left -= any(self.blocks[block].size for block in writes)
            if self.left == 0 and "update" in op:
                self.blocks[writes[0]][-1] ^= 1
            self.left += self.left == 0 and "update" not in op

    right = seen([*calls, *looks], Unmanaged())
    assert right == seen([*calls, *looks], Unmanaged()) != seen([*calls, *looks], Forgetful())


@pytest.mark.parametrize("call", ["free", "read", "write", "exec"])
def test_what_should_be_refused_is_asked_for(call: str) -> None:
    calls = [Malloc(0, 4), Drop(0), Wrong(call, 0)]
    assert perform(calls, Unmanaged()) == []

    class Patient(Unmanaged):
        def _live(self, block: int) -> np.ndarray:
            return self.blocks.setdefault(block, np.zeros(4, np.uint8))

    with pytest.raises(AssertionError, match=f"Wrong.*{call}.*no ValueError came of it"):
        perform(calls, Patient())


def test_a_fault_comes_out_of_exec() -> None:
    calls = [Malloc(0, 4), Put(0, 1), Compute("op", (0,), (0,), fails="before"), Look(0)]
    after = [*calls[:2], Compute("op", (0,), (0,), fails="after"), Look(0)]
    works = [*calls[:2], Compute("op", (0,), (0,)), Look(0)]
    untouched, changed, right = (seen(some, Unmanaged()) for some in (calls, after, works))
    assert untouched != changed == right

    class Silent(Unmanaged):
        def exec(self, *arguments, **options):  # type: ignore[no-untyped-def]
            return None

    with pytest.raises(AssertionError, match="no Fault came of it"):
        perform(calls, Silent())


def test_the_order_of_what_is_read_counts() -> None:
    x, y = (np.arange(4, dtype=np.uint8) + k for k in range(2))
    outs = []
    for arrays in ((x, y), (y, x)):
        out = np.zeros(4, np.uint8)
        Mixing()([0, 1], [2])(None, *arrays, out)
        outs.append(out.tolist())
    assert outs[0] != outs[1]


def test_bad_numbers() -> None:
    with pytest.raises(ValueError, match="phases: -1, iterations: 10"):
        live_program(0, phases=-1)
    with pytest.raises(ValueError, match="phases: 3, iterations: 0"):
        live_program(0, iterations=0)


def broken(factory: Any, **options: Any) -> ContractError:
    with pytest.raises(ContractError) as found:
        check_device(factory, **options)
    assert found.value.rule in DEVICE_RULES
    return found.value


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
