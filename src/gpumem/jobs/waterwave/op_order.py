"""The order in which a job's ops run: as recorded, or by their depth in the graph, as Waterwave sorts them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.trace import I64, Trace


@strict
def depth(trace: Trace) -> I64:
    """Return how many ops come before each op on the longest path to it, int64[n].

    Notes
    -----
    An op follows another where both touch one buffer and one of them writes. The op with which a lifetime starts and
    the one with which it ends count as if they wrote the buffer: they stay before and behind all that touch it. The
    paper takes the depth of a breadth-first search, in which an op may come before one that it depends on.
    O(accesses).

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0], [], [1, 2]], [[0], [1], [2], []])
    >>> depth(Trace(Buffers.make([8, 8, 8], [0, 1, 2], [2, 4, 4]), ops))
    array([0, 1, 0, 2])
    """
    wrote, read = [-1] * len(trace.buffers), [-1] * len(trace.buffers)  # of each buffer: depth of its last write, reads
    depths = []
    for touched, written in zip(*_touches(trace)):
        level = 1 + max(
            (max(wrote[buffer], read[buffer]) if buffer in written else wrote[buffer] for buffer in touched), default=-1
        )
        depths.append(level)
        for buffer in touched:
            if buffer in written:
                wrote[buffer], read[buffer] = level, -1
            else:
                read[buffer] = max(read[buffer], level)
    return np.array(depths, np.int64)


def _touches(trace: Trace) -> tuple[list[set[int]], list[set[int]]]:
    """What each op touches, and what of that it writes; the ends of a lifetime count as writes."""
    buffers, count = trace.buffers, trace.n
    reads, writes = ([set(row) for row in rows.tolist()] for rows in (trace.ops.reads, trace.ops.writes))
    mortal = np.flatnonzero(~trace.eternal)
    for buffer, start, last in zip(
        mortal.tolist(), buffers.start[mortal].tolist(), ((buffers.end[mortal] - 1) % count).tolist()
    ):
        writes[start].add(buffer)
        writes[last].add(buffer)
    return [read | written for read, written in zip(reads, writes)], writes


@strict
def by_depth(trace: Trace) -> I64:
    """Return the ops in ascending order of depth, those of one depth as recorded, int64[n].

    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0], [], [1, 2]], [[0], [1], [2], []])
    >>> by_depth(Trace(Buffers.make([8, 8, 8], [0, 1, 2], [2, 4, 4]), ops))
    array([0, 2, 1, 3])

    References
    ----------
    Shi et al., Waterwave, section 4.4.
    """
    return np.argsort(depth(trace), kind="stable")


@strict
def reordered(trace: Trace, order: I64) -> Trace:
    """Return the trace with its ops in another order, int64[n].

    A lifetime starts and ends with the same ops as before. That no two ops change places of which one depends on the
    other is up to the caller. Raises a ValueError where `order` does not name each op once.

    >>> trace = Trace.from_lifetimes([8], [0], [2])
    >>> reordered(trace, np.array([1, 1]))
    Traceback (most recent call last):
    ValueError: order: not the ops of trace '', each once
    """
    count, buffers = trace.n, trace.buffers
    if len(order) != count or (np.sort(order) != np.arange(count)).any():
        raise ValueError(f"order: not the ops of trace {trace.name!r:.60}, each once")
    position = np.argsort(order)
    start, last = position[buffers.start], position[(buffers.end - 1) % count]
    end = np.where(buffers.end > count, count, 0) + last + 1
    forever = trace.eternal
    kept = buffers.persistent & (
        forever | (end - start < count)
    )  # one that ends where it starts anew does not live for ever
    table = replace(
        buffers, start=np.where(forever, buffers.start, start), end=np.where(forever, buffers.end, end), persistent=kept
    )
    return Trace(table, trace.ops.take(order), name=trace.name)
