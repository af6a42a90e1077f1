"""Placing in a hurry: slots, each of which serves one buffer after another.

Slots of as many bytes as their largest buffer has lie side by side; those of one power of two are shared::

    address ^   | a ====  c =====   e ==   |     e takes the slot of c, which is free by then
            |   | b =========  d ========= |
            +------------------------------> time
"""

from __future__ import annotations

from heapq import heappop, heappush

from gpumem.trace import I64


def stack(size: I64, start: I64, end: I64, steps: int, rest: I64, floor: int, offset: I64) -> None:
    """Fill `offset` of the buffers `rest`, all of it from address `floor` on.

    Lifetimes are arcs of a circle of `steps`; one that wraps has a slot of its own. O(B log B). Bytes: at most twice
    those that are alive at once of each power of two, beside those that wrap.

    >>> import numpy as np
    >>> offset = np.zeros(3, np.int64)
    >>> stack(np.array([6, 5, 7]), np.array([0, 1, 2]), np.array([2, 3, 4]), 4, np.arange(3), 100, offset)
    >>> offset
    array([100, 107, 100])
    """
    classes: dict[int, list[int]] = {}
    for b in rest[start[rest].argsort(kind="stable")].tolist():
        classes.setdefault(int(size[b]).bit_length(), []).append(b)
    for mine in classes.values():
        width, free = int(size[mine].max()), list[tuple[int, int]]()
        for b, s, e in zip(mine, start[mine].tolist(), end[mine].tolist()):
            if e <= steps and free and free[0][0] <= s:
                offset[b] = heappop(free)[1]
            else:
                offset[b], floor = floor, floor + width
            if e <= steps:
                heappush(free, (e, int(offset[b])))
