"""A trace of two buffers, and the same with both swapped."""

from __future__ import annotations

from gpumem.swap.plan import Plan, Swap
from gpumem.trace import Buffers, Ops, Trace


def net() -> tuple[Trace, Trace]:
    """W persistent, read by 1, updated by 3; X made by 0, read by 2; both swapped, W over the boundary."""
    ops = Ops.make([[], [0], [1], [0], []], [[1], [], [], [0], []])
    trace = Trace(Buffers.make([8, 8], [0, 0], [5, 3], persistent=[True, False]), ops)
    return trace, Plan((Swap(0, 3, 6, 4, 6), Swap(1, 0, 2, 1, 2))).apply(trace)
