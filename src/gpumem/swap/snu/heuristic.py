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
    2. Pairs of a copy-out and a copy-in, the largest first, until the load fits. Of equal ones the longer gap first.
    3. Overlap, the largest first: the copy-out takes the earliest free time of the link after its access and holds
       the buffer meanwhile, the copy-in the latest before its access, both as far as the load allows.

    The scan says no more than the order of these steps. Ours are: times of the unswapped iteration; gaps too
    short for their copies come last (a recurrent net has many, and they would stop every op); a gap that helps
    no op above the limit at its turn is passed over, and so is one that exceeds the pinned-host budget; a copy
    for which the link has no time left in its gap stays at its access; who gets the room under the limit (see
    `gpumem.swap.snu.overlap`). With enough pinned memory every limit from `floor` on is reached.

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
    chosen, room, host = select(trace, machine, limit, line)
    if room.over:
        raise NotReached(room.peak, limit, hint=work.hint(f"the pinned-host budget is {human(machine.pinned)}"))
    return Plan.of(trace, host.settle(overlap(machine, chosen, room, line)))


def select(trace: Trace, machine: Machine, limit: int, line: Timeline) -> tuple[Gaps, LiveBytes, Pinned]:
    """Take free re-reads, then pairs, the largest first, until the load fits.

    Return them in the order of `gaps`, the live bytes that they leave, each absent over its whole gap, and what they
    hold on the host. `line` is the unswapped iteration; the others as in `heuristic`.
    """
    room, found = LiveBytes.of(trace, limit), gaps(trace)
    found = found.where(straddle(found, trace.live_bytes() > limit) & (found.size > 0))
    host, order = Pinned(trace, found, machine.pinned), largest_first(found, line)
    free, value = found.constant, found.value
    again = Csr.grouped(value, np.arange(len(value)), int(value.max(initial=-1)) + 1)  # the gaps of each value
    time, in_ns = lasts(found, line), machine.into.copy_ns(found.size)
    pair_ns = in_ns + np.where(free, 0, machine.out.copy_ns(found.size))
    for short in (False, True):  # gaps that are too short for their copies only where the others do not do
        now = order[short | (time >= pair_ns)[order]]
        for k in work.each([*now[free[now]].tolist(), *now[~free[now]].tolist()]):
            if _take(host, k, room):
                for other in again[value[k]].tolist():
                    if short or time[other] >= in_ns[other]:
                        _take(host, other, room)
    return found.where(host.columns.taken), room, host


def _take(host: Pinned, k: int, room: LiveBytes) -> bool:
    """Take gap `k` if it helps an op that is above the limit still, and the host has room."""
    after, before = int(host.found.after[k]), int(host.found.before[k])
    if host.columns.taken[k] or not room.helps(after + 1, before) or not host.take(k, after, before):
        return False
    room.leave(after + 1, before, int(host.columns.size[k]))
    return True
