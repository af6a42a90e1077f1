"""What a device needs of an iteration: a program keeps blocks for longer than its ops use them.

::

    program   [ malloc .......................................... free ]
    ops               write     read          read
    whole             [======================================]          as the trace has it
    used              [=====================]                           as little as there must be
                                             ^ the host may have it from here on, in case somebody reads it after all
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.jit import jit
from gpumem.trace.columns import I64
from gpumem.trace.csr import Csr
from gpumem.trace.trace import Trace


@strict
def without_idle(trace: Trace) -> Trace:
    """Return a trace without the buffers that no op touches: they may be on the host for good.

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([8, 4], [0, 0], [1, 1]), Ops.make([[]], [[1]]))
    >>> without_idle(trace).buffers.size
    array([4])
    """
    keep = np.flatnonzero(np.diff(trace.accesses().op.ptr) > 0)
    if len(keep) == len(trace.buffers):
        return trace
    number = np.full(len(trace.buffers), -1, np.int64)
    number[keep] = np.arange(len(keep))
    ops = trace.ops
    reads, writes = (Csr(row.ptr, number[row.idx]) for row in (ops.reads, ops.writes))
    return Trace(trace.buffers.take(keep), replace(ops, reads=reads, writes=writes), name=trace.name)


@strict
def used(trace: Trace) -> Trace:
    """Return a trace whose buffers end with their last access; those that are alive all the time stay so.

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([8], [0], [3]), Ops.make([[], [0], [], []], [[0], [], [], []]))
    >>> used(trace).buffers.end
    array([2])
    """
    return _from(trace, trace.buffers.start)


@strict
def touched(trace: Trace) -> Trace:
    """Return a trace whose buffers live from their first access through their last: those in which ops may meet.

    What is alive all the time, or never touched, stays so. By the address-aware simulation a plan is bound by no more
    than that.

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([8], [0], [3]), Ops.make([[], [], [], []], [[], [0], [], []]))
    >>> touched(trace).buffers.start, touched(trace).buffers.end
    (array([1]), array([2]))
    """
    buffers, who = trace.buffers, trace.accesses().op
    first = np.full(len(buffers), trace.n, np.int64)
    np.minimum.at(first, who.rows(), (who.idx - buffers.start[who.rows()]) % trace.n)
    return _from(trace, buffers.start + np.where(trace.eternal | (first == trace.n), 0, first))


def _from(trace: Trace, start: I64) -> Trace:
    """Let buffers live from some steps, which may be of the next turn, through their last access."""
    buffers, n = trace.buffers, trace.n
    last = trace.last_touch()
    end = np.where(trace.eternal | (last < 0), buffers.end, buffers.start + last + 1)
    turn = np.where(start < n, 0, n)
    crosses = trace.eternal | (end - turn > n)
    lives = replace(buffers, start=start - turn, end=end - turn, persistent=buffers.persistent & crosses)
    return Trace(lives, trace.ops, name=trace.name)


@strict
def tails(whole: Trace, short: Trace, limit: int) -> list[int]:
    """Return the buffers that end later in `whole` than in `short`, and are in the way of a limit until they do.

    >>> from gpumem.trace import Buffers, Ops
    >>> whole = Trace(Buffers.make([8, 8], [0, 2], [4, 4]), Ops.make([[], [0], [], []], [[0], [], [1], []]))
    >>> tails(whole, used(whole), 8), tails(whole, used(whole), 16)
    ([0, 1], [])
    """
    over, n = whole.live_bytes() > limit, whole.n
    shorter = np.flatnonzero(short.buffers.end < whole.buffers.end).tolist()
    spans = zip(shorter, short.buffers.end[shorter].tolist(), whole.buffers.end[shorter].tolist())
    return [buffer for buffer, lo, hi in spans if over[np.arange(lo, hi) % n].any()]


@jit
def meet(start: int, end: int, other_start: int, other_end: int, n: int) -> bool:
    """Whether the arcs [a, b) and [c, d) of a circle of `n` steps have a step in common; `n` < `end` wraps.

    >>> meet(0, 2, 2, 3, 4), meet(0, 2, 3, 5, 4)
    (False, True)
    """
    return bool(
        (start < other_end and other_start < end) or start + n < other_end or other_start + n < end
    )  # as they stand, or one of them a turn later


@strict
def released(trace: Trace) -> Trace:
    """Return `trace` with the tails of its lifetimes cut: a buffer ends with the last op that touches it.

    What is persistent, on the host or never touched keeps its lifetime.

    Notes
    -----
    O(accesses). Recorded frameworks hold on to some buffers, gradients above all, until the iteration is over. A plan
    drops such a tail by a `Hold`; most planners do so only where some op could not keep to the limit else. Whoever
    wants all of them gone, in every plan, rewrites the trace first.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0], []], [[0], [], []])
    >>> released(Trace(Buffers.make([8], [0], [3]), ops)).buffers.end
    array([2])

    References
    ----------
    Zhang et al., TENSILE, section 4.5.
    """
    buffers, last = trace.buffers, trace.last_touch()
    short = (last >= 0) & ~buffers.persistent & ~buffers.host
    return replace(trace, buffers=replace(buffers, end=np.where(short, buffers.start + last + 1, buffers.end)))
