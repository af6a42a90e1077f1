"""Samples of every op of PyTorch under a limit: the bits, errors and random numbers that they have without one."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.pytorch import op_samples
from tests.pytorch.bits import Nothing
from tests.pytorch.op_samples import MODES_OWN, STRIDES_OWN, chosen, full_name, judged, owned, ran, unlike, why_none

CHUNKS = 20


@cache
def ops() -> list[Any]:
    """All ops; a reason to skip where PyTorch's samples cannot be imported."""
    if missing := why_none():
        pytest.skip(missing)
    return op_samples.ops()


def failures(chunk: int, wanted: Any) -> list[str]:
    """What differs of the cases of every twentieth op."""
    found = []
    for op in ops()[chunk::CHUNKS]:
        for case in op_samples.cases(op, wanted):
            if wrong := judged(case).wrong:
                found.append(f"{case!r}: {wrong}")
    return found


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_twentieth_of_all_samples(chunk: int) -> None:
    found = failures(chunk, chosen)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_other_samples(chunk: int) -> None:
    found = failures(chunk, lambda name: not chosen(name))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", [*MODES_OWN, *STRIDES_OWN])
def test_a_mode_alone_makes_a_difference_to_the_listed_ops(name: str) -> None:
    """One that no longer differs is to leave the list."""
    mine = [op for op in ops() if full_name(op) == name]
    if not mine:
        pytest.skip(f"this PyTorch has no {name}")
    for op in mine:
        for case in op_samples.cases(op, lambda _: True):
            differs = unlike(ran(case), ran(case, Nothing))
            if differs and owned(name, differs):
                return
    pytest.fail(f"{name}: no sample differs")
