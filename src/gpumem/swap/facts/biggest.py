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
    def of(cls, first: I64, stop: I64, n: int) -> Biggest:
        """Take gaps over the ops `[first, stop)`, `stop - first <= n`."""
        return cls(first % n, stop - first, n, np.full(len(first), -1), np.zeros(1, np.int64))


@jit
def biggest(v: Biggest, op: int) -> int:
    """Return the biggest row over `op` that was not found at it last time, -1 if there is none; O(rows)."""
    first, length, n = v.first, v.length, v.n
    while v.head[0] < len(length) and length[v.head[0]] == 0:
        v.head[0] += 1
    for k in range(v.head[0], len(length)):
        since = op - first[k]
        if since + (n if since < 0 else 0) < length[k] and v.tried[k] != op:
            v.tried[k] = op
            return k
    return -1
