"""Which is the biggest of the gaps over an op?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import jit
from gpumem.trace import I64, Bool


class Biggest(NamedTuple):
    """Columns over gaps, the biggest first; one that is `dead` is never found again.

    Examples
    --------
    >>> rows = Biggest.of(np.array([2, 7]), np.array([4, 11]), 8)
    >>> biggest(rows, 2), biggest(rows, 2), biggest(rows, 2), biggest(rows, 4)
    (0, 1, -1, -1)
    >>> rows.dead[0] = True
    >>> biggest(rows, 3), biggest(rows, 1)
    (-1, 1)
    """

    first: I64  # the ops `[first, first + length)` of the circle of `n` that each is over
    length: I64
    n: int
    dead: Bool
    tried: I64  # at which op each was found last

    @classmethod
    def of(cls, first: I64, stop: I64, n: int) -> Biggest:
        """Take gaps over the ops `[first, stop)`, `stop - first <= n`."""
        return cls(first % n, stop - first, n, np.zeros(len(first), np.bool_), np.full(len(first), -1))


@jit
def biggest(v: Biggest, op: int) -> int:
    """Return the biggest row over `op` that was not found at it last time, -1 if there is none; O(rows)."""
    for k in range(len(v.dead)):
        since = op - v.first[k]
        if since + (v.n if since < 0 else 0) < v.length[k] and not v.dead[k] and v.tried[k] != op:
            v.tried[k] = op
            return k
    return -1
