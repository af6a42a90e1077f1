"""The SNU heuristic's last step: move copies to where the link has time, so that they overlap computation."""

from __future__ import annotations

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.simulator.timeline import Timeline
from gpumem.swap.facts.link import LinkTimes
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.facts.times import Times
from gpumem.swap.plan import Swap
from gpumem.swap.plan.gaps import Gaps, lasts, needs_copy_out
from gpumem.trace import I64


def overlap(machine: Machine, chosen: Gaps, room: LiveBytes, line: Timeline) -> list[Swap]:
    """Move the copies of the chosen gaps, the largest first, to where they overlap computation.

    Parameters as in AutoSwap's `schedule`; the swaps come in the order of `chosen`.

    Notes
    -----
    Issue order decides who goes first on the link, so a copy that shall start late is issued late. What the load
    leaves free goes to copies in first, then to the buffers whose copies out end last: an op that
    needs room had better wait for a copy that ends soon. O(m log n) for m gaps, plus the copies that lie in each
    other's way on the link.
    """
    times, size, order = Times.of(line), chosen.size, largest_first(chosen, line).tolist()
    leaves, gone, comes = _reserve(machine, chosen, order, times)
    release, prefetch = chosen.after + 1, chosen.before.copy()
    for k in order:
        if comes[k] >= 0:
            wanted = max(int(times.started(comes[k])), int(release[k]))
            prefetch[k] = room.fetch(min(wanted, prefetch[k]), prefetch[k], size[k])
    until = np.clip(times.begins(gone), release, prefetch)
    for k in np.argsort(-gone, kind="stable").tolist():
        release[k] = room.hold(release[k], until[k], size[k])
    out = np.clip(times.ended(leaves), chosen.after, release - 1)
    return Swap.each(chosen, release, prefetch, out)


def largest_first(found: Gaps, line: Timeline) -> I64:
    """Return the order by size, of equal gaps the longer in time first."""
    return np.lexsort((-lasts(found, line), -found.size))


def _reserve(machine: Machine, chosen: Gaps, order: list[int], times: Times) -> tuple[I64, I64, I64]:
    """Take link time for each gap: when its copy-out begins and ends, and its copy-in begins; -1 where none is free."""
    ready, due, size = times.end[chosen.after], times.start[chosen.before], chosen.size
    out_ns = np.where(needs_copy_out(chosen), machine.out.copy_ns(size), 0)
    in_ns = machine.into.copy_ns(size)
    outs = LinkTimes(times.period)
    ins = LinkTimes(times.period) if machine.duplex else outs
    leaves, comes, gone = np.full(len(size), -1), np.full(len(size), -1), ready + out_ns
    for k in order:
        if out_ns[k]:
            leaves[k] = outs.earliest(int(ready[k]), int(due[k] - in_ns[k]), int(out_ns[k]))
            if leaves[k] >= 0:
                outs.take(int(leaves[k]), int(out_ns[k]))
            gone[k] = max(int(leaves[k]), int(ready[k])) + out_ns[k]
        comes[k] = ins.latest(int(gone[k]), int(due[k]), int(in_ns[k]))
        if comes[k] >= 0:
            ins.take(int(comes[k]), int(in_ns[k]))
    return leaves, gone, comes
