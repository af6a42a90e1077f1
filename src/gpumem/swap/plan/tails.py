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
    caller may hold it, as it does what a step returns. A value that is read, and cannot be recomputed, has its tail as
    well unless `every` goes: recomputations may read it once more. O(accesses log accesses).

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([8, 4], [0, 0], [3, 4]), Ops.make([[], [0], [], []], [[0, 1], [], [], []]))
    >>> without_tails(trace).buffers.end
    array([2, 4])
    """
    table, last = trace.buffers, trace.last_touch()
    end = table.start + last + 1
    may_end_early = ~table.persistent & ~table.host & (table.end <= trace.n) & (table.end - table.start < trace.n)
    has_tail = (last >= 0) & may_end_early & (end < table.end) & (table.size > 0)
    if has_tail.any() and not every:
        has_tail &= _of_no_use(trace, has_tail)
    return replace(trace, buffers=replace(table, end=np.where(has_tail, end, table.end))) if has_tail.any() else trace


def _of_no_use(trace: Trace, candidates: Bool) -> Bool:
    """Which of some buffers are never read, or hold a last value that can be recomputed."""
    origins, useless = Origins.of(trace), np.zeros(len(candidates), np.bool_)
    useless[np.setdiff1d(np.flatnonzero(candidates), origins.read)] = True
    for buffer in np.flatnonzero(candidates & ~useless).tolist():
        useless[buffer] = origins.left.why[origins.access_ptr[buffer + 1] - 1] == FINE
    return useless


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
        """Return a plan for `less` of one for the trace: it does the same, as far as recomputations can tell."""
        return self._until(plan, self.trace)

    def dropped(self, plan: Plan) -> Plan:
        """Return a plan for the trace of one for `less`."""
        return self._until(plan, self.less)

    def trimmed(self, plan: Plan) -> Plan:
        """Return a plan for `less` of one for the trace, without what only drops the same tails."""
        ends = self.less.buffers.end
        others = (
            decision
            for decision in plan.decisions
            if not (
                isinstance(decision, Hold)
                and drops_tail(decision, self.trace)
                and decision.until == ends[decision.buffer] - 1
            )
        )
        return replace(plan, decisions=tuple(others))

    def _until(self, plan: Plan, like: Trace) -> Plan:
        """Let buffers with a tail of which no decision says how long they stay end as in a trace."""
        decided = {
            decision.buffer
            for decision in plan.decisions
            if isinstance(decision, Hold) and decision.at < 0 and is_last(decision, self.trace)
        }
        undecided = [buffer for buffer in np.flatnonzero(self.ends >= 0).tolist() if buffer not in decided]
        return replace(
            plan,
            decisions=(*plan.decisions, *(Hold(buffer, int(like.buffers.end[buffer]) - 1) for buffer in undecided)),
        )


def drops_tail(decision: Decision, trace: Trace) -> bool:
    """Return whether a decision of a plan for `trace` ends a buffer before its lifetime does."""
    if not isinstance(decision, Hold) or decision.at >= 0:
        return False
    return bool(decision.until < trace.buffers.end[decision.buffer]) and is_last(decision, trace)


def is_last(hold: Hold, trace: Trace) -> bool:
    """Return whether a decision holds what its buffer has after its last access."""
    return hold.after == -1 or hold.after == max(trace.accesses().op[hold.buffer].tolist(), default=-1)
