"""Decisions: swaps of many gaps at once, and those that count on over iterations."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from gpumem.swap.plan import Swap, Variant
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import Buffers, Ops, Trace


def test_each_gap_is_swapped() -> None:
    # A is made by op 0, read by ops 2 and 5; B is made by op 1, read by op 4
    ops = Ops.make([[], [], [0], [], [1], [0]], [[0], [1], [], [], [], []])
    found = gaps(Trace(Buffers.make([8, 8], [0, 1], [6, 5]), ops))
    release, prefetch, out = (np.array(row) for row in ([2, 4, 3], [2, 5, 4], [0, 3, 2]))
    given = [Swap(0, 0, 2, 2, 2, 0), Swap(0, 2, 5, 4, 5, 3), Swap(1, 1, 4, 3, 4, 2)]
    assert Swap.each(found, release, prefetch, out) == given
    at_once = [Swap(0, 0, 2, 2, 2), Swap(0, 2, 5, 4, 5), Swap(1, 1, 4, 3, 4)]
    assert Swap.each(found, release, prefetch) == at_once and [d.out for d in at_once] == [0, 2, 1]
    for name in ("release", "prefetch", "out"):
        columns = {"release": release, "prefetch": prefetch, "out": out}
        with pytest.raises(ValueError, match=f"{name}: 2 of them for 3 gaps"):
            Swap.each(found, **columns | {name: columns[name][:2]})


@pytest.mark.parametrize("turn", [0, 1, 3])
@pytest.mark.parametrize("after", [0, 4])
def test_a_swap_that_counts_on_is_one_of_the_iteration(turn: int, after: int) -> None:
    steps = (after, after + 5, after + 3, after + 4, after + 1)
    assert astuple(Swap(7, *(step + 5 * turn for step in steps)).within(5)) == (7, *steps)


def test_what_is_left_out() -> None:
    assert (Swap(0, 3, 6, 4, 5).out, Swap(0, 3, 6, 4, 5, 0).out, Variant(0, "fast", 1, 1).at) == (3, 0, -1)
