"""Swaps of what the program holds all the time, parameters and the like, around the ops that need most memory."""

from __future__ import annotations

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.swap.facts import Times, segment_tree
from gpumem.swap.facts.biggest import Biggest, biggest
from gpumem.swap.facts.times import queued
from gpumem.swap.plan import Swap
from gpumem.swap.plan.gaps import Gaps, gaps, straddle, without
from gpumem.trace import I64, Bool, Trace

# Buffers below this part of the peak live bytes are not swapped, as their copies free next to nothing; unless ops may
# need all of the limit, where every byte may count. Not tuned.
TINY_PART = 50_000


def parking(trace: Trace, machine: Machine, outputs: I64, limit: int, *, share: float) -> list[Swap]:
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
    share : float
        What ops may need of the limit beside outputs that they do not use.

    Notes
    -----
    While an op needs more, the largest buffer is swapped that has a gap around it. It is off the device over all ops
    that needed more, and for as long around them as its copies let it. Wei et al. keep all of this on the device, so
    their program has no plan below what it takes. O((n + gaps) log(n + gaps)).
    """
    candidates = gaps(trace)
    is_output = np.isin(candidates.buffer, outputs)
    needed, smallest = (
        without(trace.live_bytes(), candidates.where(is_output)),
        trace.peak_live_bytes // TINY_PART if share < 1 else 1,
    )
    candidates = candidates.where(
        ~is_output & (candidates.size >= smallest) & (candidates.before > candidates.after + 1)
    )
    chosen = _largest_first(candidates, needed, share * limit)
    return _timed(trace, machine, candidates.where(chosen), needed > share * limit)


def _largest_first(candidates: Gaps, needs: I64, most_bytes: float) -> Bool:
    """Which gaps go: while the first op of the highest need has more than that, the largest around it, bool[m]."""
    order, n = np.argsort(-candidates.size, kind="stable"), len(needs)
    first, stop = (candidates.after + 1)[order], candidates.before[order]
    around, (top, add) = Biggest.of(first, stop, n), segment_tree.build(needs)
    is_swapped = np.zeros(len(order), np.bool_)
    while top[1] > most_bytes and (gap := biggest(around, segment_tree.first_largest(top, add))) >= 0:
        is_swapped[order[gap]], around.length[gap] = True, 0
        segment_tree.add_around(top, add, n, first[gap], stop[gap], -candidates.size[order[gap]])
    return is_swapped


def crowded(trace: Trace, limit: int, *, share: float) -> I64:
    """Return the buffers with a gap around an op that needs more than a part of the limit, whatever is swapped.

    Beside such an op there is no memory to bring them back in time, so that some op has to wait for them.
    """
    all_gaps = gaps(trace)
    is_full = without(trace.live_bytes(), all_gaps) > share * limit
    return np.unique(all_gaps.buffer[straddle(all_gaps, is_full)])


def _timed(trace: Trace, machine: Machine, chosen: Gaps, tight: Bool) -> list[Swap]:
    """Copies out as soon as they can be, in as late; at ops that are `tight`, bool[n], buffers are off the device."""
    size, ops = chosen.size, np.flatnonzero(np.tile(tight, 2))
    times = Times.in_a_row(machine.durations(trace))
    release, prefetch = np.empty((2, len(size)), np.int64)
    outs, ins = np.argsort(chosen.after, kind="stable"), np.argsort(-chosen.before, kind="stable")
    release[outs] = times.begins(queued(times.end[chosen.after[outs]], machine.out.copy_ns(size[outs])))
    begins = -queued(-times.start[chosen.before[ins]], machine.into.copy_ns(size[ins]))  # backwards, the last one first
    prefetch[ins] = times.started(np.maximum(begins, 0))
    begin, end = np.searchsorted(ops, chosen.after, side="right"), np.searchsorted(ops, chosen.before)
    around = begin < end
    first = np.where(around, np.append(ops, 0)[begin], chosen.before)
    last = np.where(around, np.append(0, ops)[end], chosen.after)
    release = np.maximum(np.minimum(release, first), chosen.after + 1)
    prefetch = np.minimum(np.maximum(prefetch, last + 1), chosen.before)
    return Swap.each(chosen, np.minimum(release, prefetch), prefetch)
