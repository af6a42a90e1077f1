"""Random programs for a device: what they read has bytes, they settle, and every deviation is drawn."""

from __future__ import annotations

import pytest

from gpumem.testing import Compute, Drop, Look, Malloc, Put, Wrong, live_program

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
    calls, (first, period) = program.calls, (program.steady_from, program.period)
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


def test_bad_numbers() -> None:
    with pytest.raises(ValueError, match="phases: -1, iterations: 10"):
        live_program(0, phases=-1)
    with pytest.raises(ValueError, match="phases: 3, iterations: 0"):
        live_program(0, iterations=0)
