"""What the program keeps although there is no room for it: parameters and the like, swapped around the tightest ops."""

from __future__ import annotations

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.swap.facts import Times
from gpumem.swap.plan import Swap
from gpumem.swap.plan.gaps import Gaps, gaps, straddle, without
from gpumem.trace import I64, Bool, Trace

TINY = 50_000  # of the peak load: what is smaller stays, unless ops need all of the limit


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
        What ops may need of the limit beside outputs that they do not use.

    Notes
    -----
    While an op needs more, the largest buffer goes that has a gap around it. It is away over all ops that needed more,
    and for as long around them as its copies let it. Wei et al. keep all of this, so their program has no plan below
    what it takes. O(gaps chosen * (n + gaps)).
    """
    found, size, n = gaps(trace), trace.buffers.size, trace.n
    mine = np.isin(found.buffer, outputs)
    free, bytes_ = found.where(mine), size[found.buffer]
    needs = without(trace.load(), free, size[free.buffer])
    tight, chosen = needs > room * limit, np.zeros(len(found), np.bool_)
    may = ~mine & (bytes_ >= (trace.peak_load // TINY if room < 1 else 1))
    while needs.max() > room * limit:
        around = may & ~chosen & straddle(found, np.arange(n) == np.argmax(needs))
        if not around.any():
            break
        k = int(np.argmax(np.where(around, bytes_, -1)))
        chosen[k] = True
        needs = without(needs, found.where(np.array([k])), bytes_[k : k + 1])
    return _timed(trace, machine, found.where(chosen), tight)


def crowded(trace: Trace, limit: int, *, room: float) -> I64:
    """Return the buffers with a gap around an op that needs more than a part of the limit, whatever is swapped.

    Beside such an op there is no memory to bring them back in time, so that some op has to wait for them.
    """
    found, size = gaps(trace), trace.buffers.size
    full = without(trace.load(), found, size[found.buffer]) > room * limit
    return np.unique(found.buffer[straddle(found, full)])


def _timed(trace: Trace, machine: Machine, chosen: Gaps, tight: Bool) -> list[Swap]:
    """Copies out as soon as they can be, in as late; at ops that are `tight`, bool[n], buffers are away."""
    size, ops = trace.buffers.size[chosen.buffer], np.flatnonzero(np.tile(tight, 2))
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
    begin, end = np.searchsorted(ops, chosen.after, side="right"), np.searchsorted(ops, chosen.before)
    around = begin < end
    first = np.where(around, np.append(ops, 0)[begin], chosen.before)
    last = np.where(around, np.append(0, ops)[end], chosen.after)
    release = np.maximum(np.minimum(release, first), chosen.after + 1)
    prefetch = np.minimum(np.maximum(prefetch, last + 1), chosen.before)
    return Swap.each(chosen, np.minimum(release, prefetch), prefetch)
