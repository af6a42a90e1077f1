"""A stack: a placement that is low not only at the peak, but whenever little is held.

Two jobs on one device may then grow towards each other, from both ends of the memory::

    address ^ ____________________________________
            |   B's stack, upside down:  \\      /       one job is high while the other is low, so both fit
            |  .------.                   '----'        into little more than one of them needs
            | /  A's   \\
            |/  stack   \\_________________________
            +------------------------------------> time
"""

from __future__ import annotations

import numpy as np

from gpumem.base.arguments import strict
from gpumem.pool.smartpool.offline import in_order
from gpumem.trace import I64, Trace
from gpumem.trace.placement import Placement


@strict
def stacked(trace: Trace, *, alignment: int = 256) -> Placement:
    """Place buffers so that at each op the highest byte in use is near the live bytes.

    A planner as in `gpumem.pool`, for jobs that share a device from both ends: see
    `gpumem.jobs.waterwave.Partition.in_pool`. Its height may exceed that of `best_fit`.

    Notes
    -----
    What crosses the boundary comes first; then buffers by the least live bytes during their lives, the least first; of
    those the one that lives longest. Each goes into the smallest hole that fits, else on top. So what is still held
    when little else is lies low: a gradient of a weight, made at the peak and held to the end, below what is given back
    before it ends. By size or by lifetime it would lie on top, and keep its stack high (ResNet50: two of them then need
    1.8 to 2 times what one needs, and 1.17 times with this order). O(B log B) as `best_fit`, and O(lifetimes) for the
    least live bytes.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([6, 4, 2], [0, 1, 2], [3, 3, 5])  # the last one is held for longest
    >>> from gpumem.pool import best_fit
    >>> best_fit(trace, alignment=1).offset, stacked(trace, alignment=1).offset
    (array([ 0,  6, 10]), array([2, 8, 0]))
    """
    buffers = trace.buffers
    return in_order(trace, alignment, (buffers.start - buffers.end, _least_live(trace), ~trace.crossing), smallest=True)


def _least_live(trace: Trace) -> I64:
    """The least live bytes during each buffer's life."""
    buffers, live = trace.buffers, trace.live_bytes()
    twice = np.concatenate([live, live, [0]])  # lifetimes wrap; an end may be behind the last op
    return np.asarray(np.minimum.reduceat(twice, np.stack([buffers.start, buffers.end], axis=1).ravel())[::2], np.int64)
