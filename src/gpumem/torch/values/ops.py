"""Ops whose results are known where all elements of each operand are one number."""

from __future__ import annotations

from typing import Any

from gpumem.torch.internals import torch

aten = torch.ops.aten
POINTWISE = torch.Tag.pointwise
# Pointwise as well, though not tagged; what fills a tensor; and what moves elements and makes none: a call on one
# element gives the number that all results are.
ELEMENTWISE = frozenset(
    {
        *(aten.copy_, aten.fill_, aten.zero_, aten._to_copy, aten.masked_fill_, aten.floor_divide),
        *(aten.zeros, aten.ones, aten.full, aten.scalar_tensor, aten.zeros_like, aten.ones_like, aten.full_like),
        *(aten.new_zeros, aten.new_ones, aten.new_full, aten.contiguous, aten.repeat, aten.flip, aten.roll),
        # of one number, the largest, the mean, and whether all are so: that number
        *(aten.all, aten.any, aten.amax, aten.amin, aten.max, aten.min, aten.mean, aten.median),
    }
)
# One element of each result is the sum of as many as the operand has more of them.
SUMS = frozenset({aten.sum, aten.nansum, aten.count_nonzero})
# The first operand's elements, in another order or number; where they go and come from does not matter.
PICKS = frozenset({aten.index, aten.index_select, aten.gather, aten.embedding, aten.masked_select, aten.take})
SIZE = "size"  # the name of arguments that give the size of a result


def is_elementwise(func: Any) -> bool:
    """Whether one element can stand for all: an op on equal elements makes equal elements, of the same number."""
    return POINTWISE in func.tags or func.overloadpacket in ELEMENTWISE
