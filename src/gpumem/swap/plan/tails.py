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
from gpumem.swap.plan.values import FINE, Origins
from gpumem.trace import Bool, Trace


def without_tails(trace: Trace, *, every: bool = False) -> Trace:
    """Return `trace` without its dead tails; the trace itself where there are none.

    Not those of what is persistent or on the host, nor of what is alive over the boundary or all through: the program's
    caller may hold it, as it does what a step returns. A value that is read, and cannot be made again, has its tail as
    well unless `every` goes: reruns may read it once more. O(accesses log accesses).

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([8, 4], [0, 0], [3, 4]), Ops.make([[], [0], [], []], [[0, 1], [], [], []]))
    >>> without_tails(trace).buffers.end
    array([2, 4])
    """
    b, last = trace.buffers, trace.last_touch()
    end = b.start + last + 1
    arc = ~b.persistent & ~b.host & (b.end <= trace.n) & (b.end - b.start < trace.n)
    short = (last >= 0) & arc & (end < b.end) & (b.size > 0)
    if short.any() and not every:
        short &= _of_no_use(trace, short)
    return replace(trace, buffers=replace(b, end=np.where(short, end, b.end))) if short.any() else trace


def _of_no_use(trace: Trace, some: Bool) -> Bool:
    """Which of some buffers are never read, or hold a last value that can be made again."""
    v, found = Origins.of(trace), np.zeros(len(some), np.bool_)
    found[np.setdiff1d(np.flatnonzero(some), v.read)] = True
    for b in np.flatnonzero(some & ~found).tolist():
        found[b] = v.left.why[v.access_ptr[b + 1] - 1] == FINE
    return found


def drop_tails(trace: Trace, less: Trace, decisions: Iterable[Decision]) -> list[Decision]:
    """Return decisions for `trace` that do what these do for `less`, which it is without tails.

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
