"""The load of an iteration at its ops and at the places between them, where a plan inserts its copies."""

from __future__ import annotations

import numpy as np

from gpumem.swap.plan.gaps import around
from gpumem.trace import I64, Trace


def at_places(trace: Trace, *, host: bool = False) -> I64:
    """Return the bytes held at 2 n positions: `2 i` is the place before op `i`, `2 i + 1` is op `i`.

    What lives over a place is held there: a buffer is not there yet before its first op.

    >>> at_places(Trace.from_lifetimes([4, 2], [0, 1], [2, 3]))
    array([0, 4, 4, 6, 2, 2])
    """
    b = trace.buffers
    begin = np.where(trace.eternal, b.start, b.start + 1)
    mine = (b.host == host) & (begin < b.end)
    both = np.empty(2 * trace.n, np.int64)
    both[::2], both[1::2] = around(begin[mine], b.end[mine], b.size[mine], trace.n), trace.load(host=host)
    return both
