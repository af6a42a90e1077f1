"""Two buffers that share a byte during a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _placement
from gpumem.kernels._numba import cuda, device, each, kernel, launch

_NONE = np.int64(2**63 - 1)


@device
def _share(offset: Any, size: Any, start: Any, end: Any, steps: Any, i: Any, j: Any) -> Any:
    """Say whether buffers i and j share a byte during a step."""
    above = offset[j] - offset[i]  # of two offsets >= 0, so nothing overflows
    if offset[j] < 0 or above >= size[i] or -above >= size[j] or size[i] == 0 or size[j] == 0:
        return False
    if start[i] < end[j] and start[j] < end[i]:
        return True
    return start[i] + steps < end[j] or start[j] + steps < end[i]


@kernel
def _nothing(least: Any) -> None:
    least[0] = _NONE


@kernel
def _overlap(offset: Any, size: Any, start: Any, end: Any, steps: Any, least: Any) -> None:
    count = offset.size
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        if offset[i] >= 0:
            for j in range(i + 1, count):
                if _share(offset, size, start, end, steps, i, j):
                    cuda.atomic.min(least, 0, i * count + j)  # the least, whatever the order
                    break


@kernel
def _pair(least: Any, count: Any) -> None:
    key = least[0]
    least[0] = -1 if key == _NONE else key // count
    least[1] = -1 if key == _NONE else key % count


def overlap(stream: object, offset: Any, size: Any, start: Any, end: Any, steps: int, pair: Any) -> None:
    """Set pair to the least (i, j), i < j, of buffers that share a byte during a step, to (-1, -1) where none do.

    offset, size, start, end int64 (B,): lifetimes are arcs `[start, end)` of a circle; pair int64 (2,). Zero bytes
    overlap nothing, nor do buffers at a negative offset, which are on the host. A thread for each i looks at all j.
    """
    count = _placement.overlap(offset, size, start, end, steps, pair)
    launch(_nothing, 1, 1, stream, pair)
    each(_overlap, count, stream, offset, size, start, end, np.int64(steps), pair)
    launch(_pair, 1, 1, stream, pair, np.int64(count))
