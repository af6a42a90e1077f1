"""The checks of a placement in NumPy; `reference` exports them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.shapes import FINE, MISPLACED, ON_HOST, OVERLAP, TOO_HIGH

Ints = NDArray[np.int64]


def overlap(stream: object, offset: Ints, size: Ints, start: Ints, end: Ints, steps: int, pair: Ints) -> None:
    """Set pair to the least (i, j), i < j, of buffers that share a byte during a step, to (-1, -1) where none do.

    offset, size, start, end int64 (B,): lifetimes are arcs `[start, end)` of a circle; pair int64 (2,). Zero bytes
    overlap nothing, nor do buffers at a negative offset, which are on the host.

    >>> pair = np.zeros(2, np.int64)
    >>> columns = np.array([[0, 4, 3], [4, 4, 4], [0, 1, 1], [2, 3, 3]])  # offset, size, start, end
    >>> overlap(None, *columns, 3, pair)
    >>> pair.tolist()
    [0, 2]
    """
    count = _shapes.overlap(offset, size, start=start, end=end, steps=steps, pair=pair)
    pair[:] = -1
    solid = (offset >= 0) & (size > 0)
    for i in np.flatnonzero(solid).tolist():
        j = slice(i + 1, count)
        s, e, t, f = start[i], end[i], start[j], end[j]
        together = ((s < f) & (t < e)) | (s + steps < f) | (t + steps < e)
        above = offset[j] - offset[i]
        shares = solid[j] & together & (above < size[i]) & (-above < size[j])
        if shares.any():
            pair[:] = i, i + 1 + int(np.argmax(shares))
            return


def load_profile(stream: object, size: Ints, start: Ints, end: Ints, out: Ints) -> None:
    """Set out[t] to the bytes alive during step t: size, start, end int64 (B,), out int64 (n,) for a circle of n.

    >>> out = np.zeros(3, np.int64)
    >>> load_profile(None, np.array([4, 2]), np.array([0, 2]), np.array([2, 4]), out)  # the second one wraps
    >>> out.tolist()
    [6, 4, 2]
    """
    _, steps = _shapes.load_profile(size, start, end, out)
    out[:] = 0
    wraps = end > steps
    np.add.at(out, start, size)
    out[0] += size[wraps].sum()
    stop = np.where(wraps, end - steps, end)
    np.subtract.at(out, stop[stop < steps], size[stop < steps])
    np.cumsum(out, out=out)


def placement(
    stream: object,
    offset: Ints,
    size: Ints,
    start: Ints,
    end: Ints,
    host: NDArray[np.bool_],
    steps: int,
    alignment: int,
    height: int,
    fault: Ints,
) -> None:
    """Set fault to (0, -1, -1) where a placement is one, else to what is wrong and with whom.

    (1, j, -1): on the host, but at an offset other than -1; (2, j, -1): the offset is negative or no multiple of the
    alignment; (3, j, -1): ends above the height; of all these the least j. Where there is none, (4, i, j): two overlap,
    the least pair. offset, size, start, end int64 (B,), host bool (B,), fault int64 (3,).

    >>> fault = np.zeros(3, np.int64)
    >>> columns = np.array([[0, 2], [4, 4], [0, 1], [2, 3]])
    >>> placement(None, *columns, np.array([False, False]), 3, 2, 5, fault)
    >>> fault.tolist()
    [3, 1, -1]
    """
    columns = {"offset": offset, "size": size, "start": start, "end": end, "host": host}
    _shapes.placement(steps, alignment, height, fault, **columns)
    code = np.where(size > height - offset, TOO_HIGH, FINE)
    code[(offset < 0) | (offset % alignment != 0)] = MISPLACED
    code[host] = np.where(offset[host] != -1, ON_HOST, FINE)
    if code.any():
        first = int(np.argmax(code > 0))
        fault[:] = code[first], first, -1
        return
    overlap(None, offset, size, start, end, steps, fault[1:])
    fault[0] = OVERLAP if fault[1] >= 0 else FINE
