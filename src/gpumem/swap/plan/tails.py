"""Dead tails: what a program holds after the last access of a buffer, and a plan may drop.

::

    program   [ write ... read ................ free ]
    tail                      |=======================|    nobody reads it: dropped by `Hold(buffer, last access)`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gpumem.swap.plan.decisions import Decision, Hold
from gpumem.trace import Trace


def without_tails(trace: Trace) -> Trace:
    """Return `trace` without the tails that a plan may drop; the trace itself where there are none.

    Not those of what is persistent or on the host, nor of what is alive over the boundary or all through: the program's
    caller may hold it, as it does what a step returns. O(accesses).

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([8, 4], [0, 0], [3, 4]), Ops.make([[], [0], [], []], [[0, 1], [], [], []]))
    >>> without_tails(trace).buffers.end
    array([2, 4])
    """
    b, last = trace.buffers, trace.last_touch()
    end = b.start + last + 1
    arc = ~b.persistent & ~b.host & (b.end <= trace.n) & (b.end - b.start < trace.n)
    short = (last >= 0) & arc & (end < b.end) & (b.size > 0)
    return replace(trace, buffers=replace(b, end=np.where(short, end, b.end))) if short.any() else trace


def drop_tails(trace: Trace, less: Trace, decisions: Iterable[Decision]) -> list[Decision]:
    """Return decisions for `trace` that do what these do for `less`, which it is `without_tails`.

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([8], [0], [3]), Ops.make([[], [0], [], []], [[0], [], [], []]))
    >>> drop_tails(trace, without_tails(trace), [])
    [Hold(buffer=0, until=1, after=-1, at=-1)]
    """
    chosen, last = [*decisions], trace.buffers.start + trace.last_touch()
    mine = {d.buffer for d in chosen if isinstance(d, Hold) and d.at < 0 and d.after in (-1, last[d.buffer])}
    short = np.flatnonzero(less.buffers.end < trace.buffers.end).tolist()
    ends = less.buffers.end[short].tolist()
    return [*chosen, *(Hold(b, end - 1) for b, end in zip(short, ends) if b not in mine)]
