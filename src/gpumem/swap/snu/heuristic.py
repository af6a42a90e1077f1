"""The SNU thesis' heuristic: what is free first, then the largest pairs of copies, then overlap them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.base.errors import NotReached
from gpumem.base.units import human
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.plan import Plan
from gpumem.swap.plan.gaps import Gaps, gaps, lasts, straddle
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.swap.snu.overlap import largest_first, overlap
from gpumem.trace import Csr, Trace


@dataclass(frozen=True, slots=True)
class Heuristic(PlannerRecord):
    """The planner `heuristic`, which has no options."""


@plans(Heuristic)
def heuristic(trace: Trace, machine: Machine, limit: int, *, seconds: float | None = None) -> Plan:
    """Plan swaps as the SNU thesis' heuristic does, as far as its text is legible.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Raises
    ------
    NotReached
        The pinned-host budget is too small for what the heuristic wants to swap.

    Notes
    -----
    1. Free re-reads: gaps whose value the host has anyway need no copy-out. First those of buffers that live
       for ever and are never written; later, whenever a pair is taken, the other gaps of the same value.
    2. Pairs of a copy-out and a copy-in, the largest first, until the live bytes fit. Of equal ones the longer gap
       first.
    3. Overlap, the largest first: the copy-out takes the earliest free time of the link after its access and holds
       the buffer meanwhile, the copy-in the latest before its access, both as far as the limit allows.

    The scan says no more than the order of these steps. Ours are: times of the unswapped iteration; gaps too
    short for their copies come last (a recurrent net has many, and they would stop every op); a gap that helps
    no op above the limit at its turn is passed over, and so is one that exceeds the pinned-host budget; a copy
    for which the link has no time left in its gap stays at its access; which copies get the free bytes below the
    limit (see `gpumem.swap.snu.overlap`). With enough pinned memory every limit from `floor` on is reached.

    O(n + m log n) for m gaps over an op above the limit, plus the copies that lie in each other's way on the link.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> limit = trace.peak_live_bytes * 7 // 10
    >>> heuristic(trace, machine, limit).apply(trace).peak_live_bytes <= limit
    True

    References
    ----------
    J. Lee's thesis, Seoul National University: the heuristic schedule (scanned, partly lost).
    """
    if fits(trace, limit):
        return Plan.of(trace)
    line = simulate(trace, machine)
    chosen, live, host = select(trace, machine, limit, line)
    if live.over:
        raise NotReached(live.peak, limit, hint=work.hint(f"the pinned-host budget is {human(machine.pinned)}"))
    return Plan.of(trace, host.place_copies(overlap(machine, chosen, live, line)))


def select(trace: Trace, machine: Machine, limit: int, line: Timeline) -> tuple[Gaps, LiveBytes, Pinned]:
    """Take free re-reads, then pairs, the largest first, until the live bytes fit.

    Return them in the order of `gaps`, the live bytes that they leave, each off the device over its whole gap, and what
    they hold on the host. `line` is the unswapped iteration; the others as in `heuristic`.
    """
    live, spans = LiveBytes.of(trace, limit), gaps(trace)
    spans = spans.where(straddle(spans, trace.live_bytes() > limit) & (spans.size > 0))
    host, order = Pinned(trace, spans, machine.pinned), largest_first(spans, line)
    is_free, value = spans.constant, spans.value
    of_value = Csr.grouped(value, np.arange(len(value)), int(value.max(initial=-1)) + 1)
    time, in_ns = lasts(spans, line), machine.into.copy_ns(spans.size)
    pair_ns = in_ns + np.where(is_free, 0, machine.out.copy_ns(spans.size))
    for allows_short in (False, True):  # gaps too short for their copies only where the others do not suffice
        rows = order[allows_short | (time >= pair_ns)[order]]
        for row in work.each([*rows[is_free[rows]].tolist(), *rows[~is_free[rows]].tolist()]):
            if _take(host, row, live):
                # The host has the value from now on, so its other gaps need a copy-in only.
                for other in of_value[value[row]].tolist():
                    if allows_short or time[other] >= in_ns[other]:
                        _take(host, other, live)
    return spans.where(host.columns.taken), live, host


def _take(host: Pinned, row: int, live: LiveBytes) -> bool:
    """Take a gap if it still helps an op above the limit, and the host has bytes for it."""
    after, before = int(host.gaps.after[row]), int(host.gaps.before[row])
    if host.columns.taken[row] or not live.helps(after + 1, before) or not host.take(row, after, before):
        return False
    live.leave(after + 1, before, int(host.columns.size[row]))
    return True
