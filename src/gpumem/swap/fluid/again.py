"""What making a value again takes at least, whatever else a plan does: the run time of its own chain.

An op's time is split over the buffers that it can make again, by bytes::

    chain of X    w (writes X 30, Y 10)    c (changes X in place)
    time          8 ns                     2 ns
    X             6                        2                        8 ns
    Y             2                                                 2 ns

Reruns are united at a place only, each op once, and a buffer comes back there once. So the shares that come due at a
place are no more than the reruns there take.
"""

from __future__ import annotations

import numpy as np

from gpumem.swap.plan.values import FINE, Origins
from gpumem.swap.windows import Windows
from gpumem.trace import F64, I64, Trace


def least_again(trace: Trace, duration: I64, w: Windows) -> F64:
    """Return the nanoseconds that each gap of `w` costs at least if it is dropped; infinite where it cannot be.

    `duration`, int64[n]: ns of each op. Inputs cost nothing, whether they are there or not. O(ops of all chains).
    """
    v, n = Origins.of(trace), trace.n
    key = np.repeat(np.arange(len(trace.buffers)), np.diff(v.access_ptr)) * n + v.access
    row = np.searchsorted(key, w.buffer * n + w.after % n)
    can = (v.left.why[row] == FINE) & (w.after % n + w.before - w.after < n)
    first, count = v.left.first[row], np.where(can, v.left.stop[row] - v.left.first[row], 0)
    gap = np.repeat(np.arange(len(w)), count)
    op = v.writer[np.repeat(first - np.cumsum(count) + count, count) + np.arange(len(gap))]
    one = np.unique(op * len(trace.buffers) + w.buffer[gap])  # every buffer that an op can make again, once
    whole = np.bincount(one // len(trace.buffers), trace.buffers.size[one % len(trace.buffers)], n)
    share = duration[op] * w.size[gap] / whole[op]
    cost: F64 = np.where(can, np.bincount(gap, share, len(w)), np.inf)
    return cost
