"""The clock that judges every plan: `Trace, Machine[, Placement] -> Timeline`.

Each op starts when its engine is free, when the ops it must wait for (`gpumem.simulator.hazards`) have ended, and
when memory is there. All of these lie earlier in issue order, so one pass in issue order gives every
start, and a trace whose live bytes fit cannot deadlock. Passes repeat until the iteration does::

    address-aware simulation   memory is a hazard: whoever had these bytes before must be done with them
    byte-counting simulation   memory is a counter: bytes are reserved in issue order, and an op waits until
                               earlier ops have given enough back

No op starts before it is *issued*: launched by its host thread. Trace order is the one order of issue. A host needs
`host_ns` for an op, and after one that blocks it goes on when that has ended::

    issued(x) = max(clock[host] + host_ns(x), issued(x - 1))
    start(x)  = max(all of the above, issued(x))
    clock[host] = end(x) if x blocks else issued(x)

Before a blocking copy the host waits for all that it has launched before. While nothing takes host time and nothing
blocks, the host is off: all is launched at once.

An op takes as long whatever runs beside it. Where kernels of several streams are to share the GPU,
`gpumem.simulator.sharing.share` says how long that is.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.units import human
from gpumem.simulator._iteration import Clock, Reservations, Steps, check_runs
from gpumem.simulator.host_threads import Hosts, hosted
from gpumem.simulator.machine import Machine
from gpumem.simulator.timeline import CAUSES, HOST, NONE, Timeline
from gpumem.trace import I64, Trace
from gpumem.trace.placement import Placement

__all__ = ["baseline", "hosted", "simulate"]


@strict
def simulate(
    trace: Trace,
    machine: Machine,
    placement: Placement | None = None,
    *,
    capacity: int | None = None,
    iterations: int = 200,
    sync: bool | None = None,
) -> Timeline:
    """Run `trace` over and over until its iterations repeat; return one of those.

    Parameters
    ----------
    trace : Trace
        With ops.
    machine : Machine
        Gives durations and says whether both directions of the link run at once.
    placement : Placement, optional
        A valid one: the address-aware simulation.
    capacity : int, optional
        Bytes of device memory: the byte-counting simulation. With neither, memory delays nothing.
    iterations : int
        How many to simulate at most.
    sync : bool, optional
        Whether the last computing op of an iteration blocks, as the one does whose loss is printed; without it a host
        may run ahead without bound. By default it does if the host is on (see `hosted`); True turns the host on.

    Returns
    -------
    Timeline
        Of the first iteration that is known to repeat.

    Raises
    ------
    ValueError
        A trace without ops; a placement and a capacity together; more live bytes than the capacity.

    Notes
    -----
    O(n) an iteration, O(n log n) with a capacity. The regime is exact: everything that can delay a later
    op is the same, relative to the end of the iteration, as `cycle` iterations before. Streams that
    share nothing may drift apart for ever; then `cycle` is 0. While nobody blocks and no op is issued too late, the
    lead of the hosts makes no difference, so long as it does not shrink.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0]], [[0], []], duration=[30, 40])
    >>> trace = Trace(Buffers.make([8], [0], [2]), ops)
    >>> simulate(trace, Machine.named("h200")).makespan
    70
    """
    _check(trace, placement, capacity, iterations)
    clock = Clock(
        Steps.make(trace, machine, placement), Reservations.make(trace, capacity), Hosts.make(trace, machine, sync)
    )
    computes = ~trace.ops.copies
    ends: list[int] = []  # T(k): when all of iterations 0..k has ended
    stalls: list[I64] = []
    leads: list[int] = []
    cycle = 0
    while not cycle and len(ends) < iterations:
        clock.advance()
        ends.append(max(int(clock.steps.end.max()), ends[-1] if ends else 0))
        stalls.append(_by_cause(clock.steps, computes))
        leads.append(clock.hosts.lead(ends[-1]))
        cycle = clock.cycle(ends[-1])
    ran, last, issued = clock.steps, len(ends) - 1, clock.hosts.issued
    since = last - cycle if cycle else last // 2  # means over one cycle, or over the second half: see `Timeline.cycle`
    causes = [cause for cause in range(len(CAUSES)) if cause != NONE and (cause != HOST or len(issued))]
    return Timeline(
        ran.start - ran.start.min(),
        ran.end - ran.start.min(),
        ran.wait.copy(),
        ran.cause.copy(),
        makespan=_mean(ends[last] - ends[since], last - since) if last else ends[0],
        first=last,
        cycle=cycle,
        stalls={
            CAUSES[cause]: _mean(int(sum(by_cause[cause] for by_cause in stalls[since + 1 :])), max(last - since, 1))
            for cause in causes
        },
        issued=issued - ran.start.min() if len(issued) else None,
        host_costs=clock.hosts.cost if len(issued) else None,
        gain=_mean(leads[last] - leads[since], last - since) if last else 0,
    )


@strict
def baseline(
    trace: Trace,
    machine: Machine,
    planned: Trace,
    placement: Placement | None = None,
    *,
    known: Timeline | None = None,
) -> Timeline:
    """Run `trace` as what the overhead of `planned`, a rewrite of it, is measured against: by the same host.

    Where the copies of a plan block, or copies alone cost the host time, the host is on in `planned` and may be off
    without the plan. Then it is on in both, so that the last computing op of an iteration blocks in both. On a single
    stream that makes no difference.

    Parameters
    ----------
    trace, machine, placement
        As in `simulate`.
    planned : Trace
        The rewritten one.
    known : Timeline, optional
        What `simulate(trace, machine, placement)` gave: returned where it has the host of `planned`,
        so that nothing is simulated twice.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.swap import on_demand
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> swapped = on_demand(trace, machine, trace.peak_live_bytes * 7 // 10).apply(trace)
    >>> line = simulate(swapped, machine, capacity=swapped.peak_live_bytes)
    >>> f"{line.overhead(baseline(trace, machine, swapped)):.1%}"
    '71.0%'
    """
    on = hosted(planned, machine)
    if known is not None and (known.issued is not None) == on:
        return known
    return simulate(trace, machine, placement, sync=on or None)


def _check(trace: Trace, placement: Placement | None, capacity: int | None, iterations: int) -> None:
    check_runs(trace, iterations)
    if capacity is None:
        return
    if placement is not None:
        raise ValueError(
            "simulate: give a placement (address-aware simulation) or a capacity (byte-counting simulation), not both"
        )
    op, live_bytes = trace.peak
    if live_bytes > capacity:
        raise ValueError(f"op {op}: the live bytes are {human(live_bytes)}, the capacity {human(capacity)}")


def _mean(total: int, count: int) -> int:
    return round(Fraction(total, count))


def _by_cause(ran: Steps, computes: np.ndarray) -> I64:
    waited = np.zeros(len(CAUSES), np.int64)
    np.add.at(waited, ran.cause[computes], ran.wait[computes])
    return waited
