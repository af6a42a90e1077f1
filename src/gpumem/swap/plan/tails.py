"""Dead tails: what a program holds after the last access of a buffer, and a plan may drop.

::

    program   [ write ... read ................ free ]
    tail                      |=======================|    nobody reads it: dropped by `Hold(buffer, last access)`
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpumem.swap.plan.decisions import Decision, Hold
from gpumem.swap.plan.plan import Plan
from gpumem.swap.plan.values import FINE, Origins
from gpumem.trace import I64, Bool, Trace


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


@dataclass(frozen=True, slots=True, eq=False)
class Tails:
    """A trace, and `less`, which it is without tails: plans for the one as plans for the other.

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([8], [0], [3]), Ops.make([[], [0], [], []], [[0], [], [], []]))
    >>> tails = Tails(trace, without_tails(trace))
    >>> tails.dropped(Plan.of(trace)).decisions, tails.kept(Plan.of(trace)).decisions
    ((Hold(buffer=0, until=1, after=-1, at=-1),), (Hold(buffer=0, until=2, after=-1, at=-1),))
    """

    trace: Trace
    less: Trace

    @property
    def ends(self) -> I64:
        """Until when each tail can be held, int64[B]; -1 where there is none."""
        whole = self.trace.buffers.end
        return np.where(self.less.buffers.end < whole, whole - 1, -1)

    def kept(self, plan: Plan) -> Plan:
        """Return a plan for `less` of one for the trace: it does the same, as far as reruns can tell."""
        return self._until(plan, self.trace)

    def dropped(self, plan: Plan) -> Plan:
        """Return a plan for the trace of one for `less`."""
        return self._until(plan, self.less)

    def trimmed(self, plan: Plan) -> Plan:
        """Return a plan for `less` of one for the trace, without what only drops the same tails."""
        ends = self.less.buffers.end
        left = (
            d
            for d in plan.decisions
            if not (isinstance(d, Hold) and drops_tail(d, self.trace) and d.until == ends[d.buffer] - 1)
        )
        return replace(plan, decisions=tuple(left))

    def _until(self, plan: Plan, like: Trace) -> Plan:
        """Let buffers with a tail of which no decision says how long they stay end as in a trace."""
        told = {d.buffer for d in plan.decisions if isinstance(d, Hold) and d.at < 0 and is_last(d, self.trace)}
        some = [b for b in np.flatnonzero(self.ends >= 0).tolist() if b not in told]
        return replace(plan, decisions=(*plan.decisions, *(Hold(b, int(like.buffers.end[b]) - 1) for b in some)))


def drops_tail(d: Decision, trace: Trace) -> bool:
    """Return whether a decision of a plan for `trace` ends a buffer before its lifetime does."""
    if not isinstance(d, Hold) or d.at >= 0:
        return False
    return bool(d.until < trace.buffers.end[d.buffer]) and is_last(d, trace)


def is_last(d: Hold, trace: Trace) -> bool:
    """Return whether a decision holds what its buffer has after its last access."""
    return d.after == -1 or d.after == max(trace.accesses().op[d.buffer].tolist(), default=-1)
