"""AutoSwap's schedule: copies out in the order of their accesses, copies in planned backwards from theirs."""

from __future__ import annotations

import numpy as np

from gpumem.columns import I64
from gpumem.machine import Machine
from gpumem.simulate import simulate
from gpumem.swap.gaps import Gaps, needs_copy_out
from gpumem.swap.plan import Swap
from gpumem.timeline import Timeline
from gpumem.trace import Trace


def schedule(trace: Trace, machine: Machine, chosen: Gaps, load: I64, limit: int) -> list[Swap]:
    """Return a swap for each chosen gap (section IV-E).

    Parameters
    ----------
    trace, machine
    chosen : Gaps
        In the order of `gaps`.
    load : int64[n]
        Bytes held at each op with all of them absent over their whole gaps; at most `limit`.

    Notes
    -----
    Times are those of the unswapped iteration. A copy-out starts after its access and after the copy-out
    before it; its buffer is released at the first op expected to start after it has ended. Backwards from
    the last, a copy-in ends at its access or where the next one starts, whichever is earlier. Where the
    load would exceed the limit, a buffer is released earlier or fetched later: then ops will wait. Both
    queues are followed twice round the circle, since they spill over the boundary.
    """
    line = simulate(trace, machine)
    size = trace.buffers.size[chosen.buffer]
    out_ns = np.where(needs_copy_out(chosen), machine.out.copy_ns(size), 0)
    in_ns = machine.into.copy_ns(size)
    gone = _copies_out(line, chosen, out_ns)
    lead = _copies_in(line, chosen, in_ns)
    n, load = trace.n, load.copy()
    begins = np.maximum.accumulate(np.concatenate([line.start, line.start + line.makespan]))
    release, prefetch = chosen.after + 1, chosen.before.copy()
    for k in np.argsort(gone, kind="stable").tolist():
        wanted = int(np.searchsorted(begins, gone[k]))
        release[k] = _hold(load, chosen.after[k] + 1, min(wanted, chosen.before[k]), size[k], limit)
    for k in np.argsort(chosen.before % n, kind="stable").tolist():
        due = begins[chosen.before[k]]
        wanted = int(np.searchsorted(begins, due - lead[k], side="right")) - 1
        prefetch[k] = _fetch(load, max(wanted, release[k]), chosen.before[k], size[k], limit)
    return [Swap(*(int(x) for x in row)) for row in zip(chosen.buffer, chosen.after, chosen.before, release, prefetch)]


def _copies_out(line: Timeline, chosen: Gaps, out_ns: I64) -> I64:
    """When each copy-out ends, in ns of the iteration it starts in."""
    gone = np.zeros(len(chosen), np.int64)
    free = 0
    for turn in range(2):
        for k in np.argsort(line.end[chosen.after], kind="stable").tolist():
            if out_ns[k]:
                free = max(free, int(line.end[chosen.after[k]]) + turn * line.makespan) + int(out_ns[k])
                gone[k] = free - turn * line.makespan
            else:
                gone[k] = line.end[chosen.after[k]]
    return gone


def _copies_in(line: Timeline, chosen: Gaps, in_ns: I64) -> I64:
    """How long before its access each copy-in must start."""
    due = line.start[chosen.before % len(line)]
    lead = np.zeros(len(chosen), np.int64)
    busy = 2**62
    for turn in (1, 0):
        for k in np.argsort(-due, kind="stable").tolist():
            at = int(due[k]) + turn * line.makespan
            busy = min(busy, at) - int(in_ns[k])
            lead[k] = at - busy
    return lead


def _hold(load: I64, at: int, until: int, size: int, limit: int) -> int:
    """Hold `size` bytes from op `at` on, up to `until` or to where the load would exceed the limit."""
    while at < until and load[at % len(load)] + size <= limit:
        load[at % len(load)] += size
        at += 1
    return at


def _fetch(load: I64, earliest: int, before: int, size: int, limit: int) -> int:
    """Hold `size` bytes before op `before`, back to `earliest` or to where the load would exceed the limit."""
    at = before
    while at > earliest and load[(at - 1) % len(load)] + size <= limit:
        at -= 1
        load[at % len(load)] += size
    return at
