"""Is a placement one? What `gpumem.check.placement` asks, where the offsets are on the device already."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _placement
from gpumem.kernels._numba import cuda, each, kernel, launch
from gpumem.kernels.overlap import overlap

_NONE = np.int64(2**63 - 1)
_ON_HOST, _MISPLACED, _TOO_HIGH = (
    np.int64(code) for code in (_placement.ON_HOST, _placement.MISPLACED, _placement.TOO_HIGH)
)
_OVERLAP, _FINE, _CODES = np.int64(_placement.OVERLAP), np.int64(_placement.FINE), np.int64(_placement.OVERLAP)


@kernel
def _nothing(found: Any) -> None:
    found[0] = _NONE


@kernel
def _alone(offset: Any, size: Any, host: Any, alignment: Any, height: Any, found: Any) -> None:
    for j in range(cuda.grid(1), offset.size, cuda.gridsize(1)):
        code = _FINE
        if host[j]:
            if offset[j] != -1:
                code = _ON_HOST
        elif offset[j] < 0 or offset[j] % alignment != 0:
            code = _MISPLACED
        elif size[j] > height - offset[j]:
            code = _TOO_HIGH
        if code != _FINE:
            cuda.atomic.min(found, 0, j * _CODES + code)  # the least j, whatever the order


@kernel
def _verdict(found: Any) -> None:
    key = found[0]
    if key != _NONE:
        found[0], found[1], found[2] = key % _CODES, key // _CODES, -1
    else:
        found[0] = _FINE if found[1] < 0 else _OVERLAP


def placement(
    stream: object,
    offset: Any,
    size: Any,
    start: Any,
    end: Any,
    host: Any,
    steps: int,
    alignment: int,
    height: int,
    found: Any,
) -> None:
    """Set found to (0, -1, -1) where a placement is one, else to what is wrong and with whom.

    (1, j, -1): on the host, but at an offset other than -1; (2, j, -1): the offset is negative or no multiple of the
    alignment; (3, j, -1): ends above the height; of all these the least j. Where there is none, (4, i, j): two overlap,
    the least pair. offset, size, start, end int64 (B,), host bool (B,), found int64 (3,).
    """
    count = _placement.placement(offset, size, start, end, host, steps, alignment, height, found)
    overlap(stream, offset, size, start, end, steps, found[1:])
    launch(_nothing, 1, 1, stream, found)
    each(_alone, count, stream, offset, size, host, np.int64(alignment), np.int64(height), found)
    launch(_verdict, 1, 1, stream, found)
