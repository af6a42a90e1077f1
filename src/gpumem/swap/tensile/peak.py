"""What a job holds over its tensor access sequence with swap tasks (TENSILE's algorithm 2): when a tensor counts.

Time goes to the right; the bytes of a swapped tensor are there (#) or not::

    op          [ out ]        [release]              [prefetch]         [before]
    copies             |-- out --|                        |--- in ---|
    exact      ##################|                      ##########################
    paper      ##################|                                   #############   a swap-in counts at its end

What a job holds changes between ops only: what leaves during an op counts through it, what comes in during an op
counts from its beginning. So `exact` is the load of the rewritten trace, to the byte.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import jit
from gpumem.trace import I64

ACCOUNTING = ("exact", "paper")
NO_COPY = -1


@jit
def ops_between(
    start: I64, end: I64, after: int, before: int, out_at: int, out_ns: int, in_at: int
) -> tuple[int, int, int]:
    """Return `out`, `release` and `prefetch` of a swap with copies at these times; no `prefetch`, -1, if no op fits."""
    leaves, release = after, after + 1
    if out_at != NO_COPY:
        release = min(max(int(np.searchsorted(start, out_at + out_ns)), after + 1), before)
        leaves = min(max(int(np.searchsorted(end, out_at, side="right")) - 1, after), release - 1)
    prefetch = min(int(np.searchsorted(end, in_at, side="right")), before)
    return leaves, release, prefetch if release < prefetch else -1


@jit
def away(start: I64, before: int, prefetch: int, ends: int, exact: bool) -> int:
    """Return the op from which on a buffer counts again whose copy-in `ends` at a time, by one of `ACCOUNTING`."""
    return prefetch if exact else min(max(int(np.searchsorted(start, ends)), prefetch), before)
