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


def overlap(machine: Machine, chosen: Gaps, live: LiveBytes, line: Timeline) -> list[Swap]:
    """Move the copies of the chosen gaps, the largest first, to where they overlap computation.

    `line`: the unswapped iteration; `live`: the live bytes with each gap off the device over all its ops, from which
    on this counts. The swaps come in the order of `chosen`.

    Notes
    -----
    Issue order decides which copy goes first on the link, so a copy that shall start late is issued late. Bytes that
    are free below the limit go to copies in first, then to the buffers whose copies out end last: an op that
    needs bytes had better wait for a copy that ends soon. O(m log n) for m gaps, plus the copies that lie in each
    other's way on the link.
    """
    times, size, order = Times.of(line), chosen.size, largest_first(chosen, line).tolist()
    out_begins, out_ends, in_begins = _reserve(machine, chosen, order, times)
    release, prefetch = chosen.after + 1, chosen.before.copy()
    for gap in order:
        if in_begins[gap] >= 0:
            trigger = max(int(times.started(in_begins[gap])), int(release[gap]))
            prefetch[gap] = live.fetch(min(trigger, prefetch[gap]), prefetch[gap], size[gap])
    until = np.clip(times.begins(out_ends), release, prefetch)
    for gap in np.argsort(-out_ends, kind="stable").tolist():
        release[gap] = live.hold(release[gap], until[gap], size[gap])
    out = np.clip(times.ended(out_begins), chosen.after, release - 1)
    return Swap.each(chosen, release, prefetch, out)


def largest_first(spans: Gaps, line: Timeline) -> I64:
    """Return the order by size, of equal gaps the longer in time first."""
    return np.lexsort((-lasts(spans, line), -spans.size))


def _reserve(machine: Machine, chosen: Gaps, order: list[int], times: Times) -> tuple[I64, I64, I64]:
    """Take link time for each gap: when its copy-out begins and ends, and its copy-in begins; -1 where none is free."""
    ready, due, size = times.end[chosen.after], times.start[chosen.before], chosen.size
    out_ns = np.where(needs_copy_out(chosen), machine.out.copy_ns(size), 0)
    in_ns = machine.into.copy_ns(size)
    outs = LinkTimes(times.period)
    ins = LinkTimes(times.period) if machine.duplex else outs
    out_begins, in_begins, out_ends = np.full(len(size), -1), np.full(len(size), -1), ready + out_ns
    for gap in order:
        if out_ns[gap]:
            out_begins[gap] = outs.earliest(int(ready[gap]), int(due[gap] - in_ns[gap]), int(out_ns[gap]))
            if out_begins[gap] >= 0:
                outs.take(int(out_begins[gap]), int(out_ns[gap]))
            out_ends[gap] = max(int(out_begins[gap]), int(ready[gap])) + out_ns[gap]
        in_begins[gap] = ins.latest(int(out_ends[gap]), int(due[gap]), int(in_ns[gap]))
        if in_begins[gap] >= 0:
            ins.take(int(in_begins[gap]), int(in_ns[gap]))
    return out_begins, out_ends, in_begins
