"""Placing in a hurry: slots, each of which serves one buffer after another.

Slots of as many bytes as their largest buffer has lie side by side; those of one power of two are shared::

    address ^   | a ====  c =====   e ==   |     e takes the slot of c, which is free by then
            |   | b =========  d ========= |
            +------------------------------> time
"""

from __future__ import annotations

from heapq import heappop, heappush

from gpumem.trace import I64


def stack(size: I64, start: I64, end: I64, *, steps: int, rest: I64, bottom: int, offset: I64) -> None:
    """Fill `offset` of the buffers `rest`, all of it from address `bottom` on.

    Lifetimes are arcs of a circle of `steps`; one that wraps has a slot of its own. O(B log B). Bytes: at most twice
    those that are alive at once of each power of two, beside those that wrap.

    >>> import numpy as np
    >>> size, start, end, offset = np.array([6, 5, 7]), np.array([0, 1, 2]), np.array([2, 3, 4]), np.zeros(3, np.int64)
    >>> stack(size, start, end, steps=4, rest=np.arange(3), bottom=100, offset=offset)
    >>> offset
    array([100, 107, 100])
    """
    classes: dict[int, list[int]] = {}
    for buffer in rest[start[rest].argsort(kind="stable")].tolist():
        classes.setdefault(int(size[buffer]).bit_length(), []).append(buffer)
    for buffers in classes.values():
        width, free = int(size[buffers].max()), list[tuple[int, int]]()
        for buffer, begin, until in zip(buffers, start[buffers].tolist(), end[buffers].tolist()):
            if until <= steps and free and free[0][0] <= begin:
                offset[buffer] = heappop(free)[1]
            else:
                offset[buffer], bottom = bottom, bottom + width
            if until <= steps:
                heappush(free, (until, int(offset[buffer])))
