"""TENSILE's algorithm 2: from which op to which a swapped tensor counts as live bytes of its job.

Time goes to the right; the bytes of a swapped tensor are there (#) or not::

    op          [ out ]        [release]              [prefetch]         [before]
    copies             |-- out --|                        |--- in ---|
    exact      ##################|                      ##########################
    paper      ##################|                                   #############   a swap-in counts at its end

Live bytes change between ops only: what leaves during an op counts through it, what comes in during an op counts from
its beginning. So `exact` is the live bytes of the rewritten trace, to the byte. Line 13 of the printed algorithm counts
a swap-in at its end (`paper`), which underestimates the peak.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import jit
from gpumem.trace import I64

ACCOUNTING = ("exact", "paper")
NO_COPY = -1  # ns: the host has the value, so nothing is copied out


@jit
def ops_between(start: I64, end: I64, accesses: tuple[int, int], copies: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return `out`, `release` and `prefetch` of a swap between two accesses; -1 for `prefetch` if no op fits between.

    `start`, `end`: ns of the ops. `accesses`: ops `after` and `before`. `copies`: ns, when the copy-out starts
    (`NO_COPY`: there is none), how long it takes, when the copy-in starts.
    """
    (after, before), (out_at, out_ns, in_at) = accesses, copies
    leaves, release = after, after + 1
    if out_at != NO_COPY:
        release = min(max(int(np.searchsorted(start, out_at + out_ns)), after + 1), before)
        leaves = min(max(int(np.searchsorted(end, out_at, side="right")) - 1, after), release - 1)
    prefetch = min(int(np.searchsorted(end, in_at, side="right")), before)
    return leaves, release, prefetch if release < prefetch else -1


@jit
def counts_from(start: I64, before: int, prefetch: int, ends: int, exact: bool) -> int:
    """Return the op from which on a tensor counts whose copy-in `ends` at a time: by `exact` accounting, or paper's."""
    return prefetch if exact else min(max(int(np.searchsorted(start, ends)), prefetch), before)
