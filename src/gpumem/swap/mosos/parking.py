"""What the program keeps although there is no room for it: parameters and the like, swapped around the tightest ops."""

from __future__ import annotations

import numpy as np

from gpumem.columns import I64, Bool
from gpumem.machine import Machine
from gpumem.swap.accounts import Times
from gpumem.swap.gaps import Gaps, gaps, without
from gpumem.swap.plan import Swap
from gpumem.trace import Trace

TINY = 50_000  # of the peak load: what is smaller stays


def parking(trace: Trace, machine: Machine, outputs: I64, limit: int, *, room: float) -> list[Swap]:
    """Return swaps of buffers that are no outputs, so that ops need at most a part of the limit.

    Parameters
    ----------
    trace : Trace
        With the smallest workspaces.
    machine : Machine
        Its link says when the copies end, one after another.
    outputs : int64[o]
        The buffers that the program decides about.
    limit : int
        Bytes.
    room : float
        What ops may need of the limit beside outputs that they do not use; all that can be is parked where 0.

    Notes
    -----
    The largest first. An op is tight where it needs more than that; a buffer is away over all tight ops, and for as
    long around them as its copies let it. Wei et al. keep all of this, so their program has no plan below what it
    takes.
    """
    found, size, n = gaps(trace), trace.buffers.size, trace.n
    mine = np.isin(found.buffer, outputs)
    free = found.where(mine)
    needs = without(trace.load(), free, size[free.buffer])
    tight = np.flatnonzero(needs > room * limit) if room > 0 else np.array([int(np.argmax(needs))])
    if not len(tight):
        return []
    first, last, chosen = int(tight[0]), int(tight[-1]), np.zeros(len(found), np.bool_)
    around = _around(found, int(np.argmax(needs)), n) & ~mine & (size[found.buffer] >= trace.peak_load // TINY)
    for k in sorted(np.flatnonzero(around).tolist(), key=lambda k: -int(size[found.buffer[k]])):
        if room > 0 and needs.max() <= room * limit:
            break
        chosen[k] = True
        one = found.where(np.array([k]))
        needs = without(needs, one, size[one.buffer])
    return _timed(trace, machine, found.where(chosen), first, last)


def _around(found: Gaps, op: int, n: int) -> Bool:
    """Which gaps have `op` inside, in this iteration or behind the boundary."""
    inside: Bool = ((found.after < op) & (op < found.before)) | ((found.before >= n) & (op + n < found.before))
    return inside


def _timed(trace: Trace, machine: Machine, chosen: Gaps, first: int, last: int) -> list[Swap]:
    """Copies out as soon as they can be, in as late; over the ops `first` to `last` all buffers are away."""
    n, size = trace.n, trace.buffers.size[chosen.buffer]
    times = Times.in_a_row(machine.durations(trace))
    out, into = machine.out.copy_ns(size), machine.into.copy_ns(size)
    release, prefetch = np.empty(len(size), np.int64), np.empty(len(size), np.int64)
    clock = 0
    for k in np.argsort(chosen.after, kind="stable").tolist():
        clock = max(clock, int(times.end[chosen.after[k]])) + int(out[k])
        release[k] = int(times.begins(clock))
    clock = 2**62
    for k in np.argsort(-chosen.before, kind="stable").tolist():
        clock = min(clock, int(times.start[chosen.before[k]])) - int(into[k])
        prefetch[k] = int(times.started(max(clock, 0)))
    turn = np.where((chosen.after >= first) & (chosen.before >= n), n, 0)
    release = np.maximum(np.minimum(release, first + turn), chosen.after + 1)
    prefetch = np.minimum(np.maximum(prefetch, last + 1 + turn), chosen.before)
    return Swap.each(chosen, np.minimum(release, prefetch), prefetch)
