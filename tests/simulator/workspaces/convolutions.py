"""Traces of one convolution, algorithms made up for them, all columns of a trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpumem import io
from gpumem.simulator.workspaces import TABLE, Algorithm
from gpumem.trace import Buffers, Ops, Trace

BY_NAME = {algorithm.name: algorithm for algorithm in TABLE}
VGG = io.bundled("vgg16")


def step(
    x: Sequence[int], w: Sequence[int], y: Sequence[int], *, dtype: str = "float32", given: dict[str, Any] | None = None
) -> Trace:
    """A trace of one convolution and its gradients, with these shapes of image, filter and output."""
    shapes = [tuple(s) for s in (x, w, y)] * 2
    item = {"float32": 4, "bfloat16": 2}[dtype]
    size = [math.prod(shape) * item for shape in shapes]
    table = Buffers.make(size, [0] * 6, [2] * 6, shape=shapes, dtype=[dtype] * 6)
    names = ["convolution.default", "convolution_backward.default"]
    attributes = None if given is None else [given, given]
    return Trace(table, Ops.make([[0, 1], [5, 0, 1]], [[2], [3, 4]], name=names, attributes=attributes))


SMALL = step((8, 3, 32, 32), (64, 3, 3, 3), (8, 64, 32, 32))


def by_hand(*rows: tuple[str, float, int]) -> list[Algorithm]:
    return [Algorithm(name, lambda c: True, lambda c, b=b: b, lambda c, t=t: t) for name, t, b in rows]  # type: ignore[misc]


def columns(trace: Trace) -> dict[str, object]:
    """Every column of a trace, to compare."""
    table = {f"{type(t).__name__}.{name}": getattr(t, name) for t in (trace.buffers, trace.ops) for name in t.__slots__}
    return {name: column.tolist() if hasattr(column, "tolist") else column for name, column in table.items()}
