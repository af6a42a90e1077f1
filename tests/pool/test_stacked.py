"""Stacks: valid placements that are low whenever little is held."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import best_fit, bundled, check
from gpumem.pool import stacked
from gpumem.trace import Placement, Trace
from tests.strategies import nets, steps, traces

pytestmark = pytest.mark.jit


def heights(trace: Trace, placed: Placement) -> list[int]:
    """The highest byte in use at each op, buffer by buffer."""
    b, n = trace.buffers, trace.n
    found = [0] * n
    for i in range(len(b)):
        if not b.host[i]:
            for at in range(int(b.start[i]), int(b.end[i])):
                found[at % n] = max(found[at % n], int(placed.offset[i] + b.size[i]) if b.size[i] else 0)
    return found


@given(st.one_of(nets(), steps(), traces()), st.sampled_from([1, 8, 256]))
def test_it_is_a_placement_with_what_crosses_the_boundary_at_the_bottom(trace: Trace, alignment: int):
    placed = stacked(trace, alignment=alignment)
    check.placement(trace, placed)
    assert placed.height == max(heights(trace, placed), default=0)
    b, crossing = trace.buffers, trace.crossing & ~trace.buffers.host
    room = -(-b.size[crossing] // alignment) * alignment
    assert (placed.offset + b.size)[crossing].max(initial=0) <= room.sum()


@pytest.mark.parametrize("name", ["vgg16", "resnet18"])
def test_two_of_them_in_antiphase_need_less_than_by_best_fit(name: str):
    trace = bundled(name)

    def least(planner: Callable[[Trace], Placement]) -> float:
        height = np.array(heights(trace, planner(trace)))
        return (height + np.roll(height, trace.n // 2)).max() / trace.peak_live_bytes

    assert least(stacked) < 0.85 * least(best_fit)


def test_what_is_held_to_the_end_lies_below_what_is_not():
    trace = Trace.from_lifetimes([10, 10, 1, 5], [0, 1, 2, 3], [4, 3, 6, 4], n=6)
    assert stacked(trace, alignment=1).offset[2] == 0


def test_alignments_that_are_none():
    for wrong in (0, 2**41):
        with pytest.raises(ValueError, match=rf"alignment: {wrong} is not in \[1, 2\*\*40\]"):
            stacked(bundled("mlp3"), alignment=wrong)
