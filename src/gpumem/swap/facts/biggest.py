"""Which is the biggest of the gaps over an op?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import jit
from gpumem.trace import I64


class Biggest(NamedTuple):
    """Columns over gaps, the biggest first; one that is not to be found again gets a `length` of 0.

    Examples
    --------
    >>> rows = Biggest.of(np.array([2, 7]), np.array([4, 11]), 8)
    >>> biggest(rows, 2), biggest(rows, 2), biggest(rows, 2), biggest(rows, 4)
    (0, 1, -1, -1)
    >>> rows.length[0] = 0
    >>> biggest(rows, 3), biggest(rows, 1)
    (-1, 1)
    """

    first: I64  # the ops `[first, first + length)` of the circle of `n` that each is over
    length: I64
    n: int
    tried: I64  # at which op each was found last
    head: I64  # int64[1]: all before this row are not to be found again

    @classmethod
    def of(cls, first: I64, stop: I64, ops: int) -> Biggest:
        """Take gaps over the ops `[first, stop)`, `stop - first <= n`."""
        return cls(first % ops, stop - first, ops, np.full(len(first), -1), np.zeros(1, np.int64))


@jit
def biggest(rows: Biggest, op: int) -> int:
    """Return the biggest row over `op` that was not found at it last time, -1 if there is none; O(rows)."""
    first, length, ops = rows.first, rows.length, rows.n
    while rows.head[0] < len(length) and length[rows.head[0]] == 0:
        rows.head[0] += 1
    for row in range(rows.head[0], len(length)):
        since = op - first[row]
        if since + (ops if since < 0 else 0) < length[row] and rows.tried[row] != op:
            rows.tried[row] = op
            return row
    return -1
