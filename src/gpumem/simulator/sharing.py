"""What ops take that share the GPU: `Trace, Machine, slowdown -> Trace`, by the clock's rules from event to event.

Of `k` kernels that run at once each progresses at `1 / (1 + slowdown (k - 1))`: 0 if they do not disturb one another, 1
if they share the GPU. A trace with several compute streams becomes the same trace with what its ops then take::

    first    [ a: 10 ns of work      ][ c: 10 ns     ]      slowdown 1: while two run, each at half speed
    second   [ b: 5 ns of work ]                            a takes 15 ns, b 10, c 10
    ns       0         5       10     15             25
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import lcm

import numpy as np

from gpumem.base.arguments import finite, strict
from gpumem.simulator._iteration import check_runs
from gpumem.simulator._sharing_loop import SharedClock, Streams, kernels
from gpumem.simulator.host_threads import Hosts
from gpumem.simulator.machine import Machine
from gpumem.trace import I64, MAX_NS, Trace
from gpumem.trace.placement import Placement

__all__ = ["rates", "share"]


@strict
def rates(slowdown: float, most: int) -> tuple[int, list[int]]:
    """Return in how many parts of a ns work is counted, and how many each kernel does in one, by how many run.

    From 0 to `most` kernels. All are whole numbers, so sums of work are exact.

    >>> rates(0.5, 3)  # of one kernel all parts, of two each two thirds, of three half
    (6, [0, 6, 4, 3])
    """
    finite(slowdown=slowdown)
    exact = Fraction(str(slowdown))
    slower = [1 + exact * (count - 1) for count in range(1, most + 1)]
    unit = lcm(*(factor.numerator for factor in slower))
    return unit, [0, *(int(unit / factor) for factor in slower)]


@strict
def share(
    trace: Trace,
    machine: Machine,
    slowdown: float,
    placement: Placement | None = None,
    *,
    iterations: int = 100,
    sync: bool | None = None,
) -> Trace:
    """Return the trace with what its kernels take in the steady state, while others run beside them.

    Kernels are the ops that compute, as recorded or as a recomputation. Copies and syncs take their own time, slow
    nobody down and are not slowed down.

    Parameters
    ----------
    trace : Trace
        With ops; those of one stream run one at a time.
    machine : Machine
        Gives what each op takes alone, and the host.
    slowdown : float
        Of `k` kernels that run at once each progresses at `1 / (1 + slowdown (k - 1))`.
    placement : Placement, optional
        A valid one, as for the address-aware simulation: who had these bytes before must be done with them.
    iterations : int
        How many to run at most until they repeat.
    sync : bool, optional
        As for `gpumem.simulator.simulate.simulate`.

    Returns
    -------
    Trace
        The same one; `ops.duration` of its kernels in whole nanoseconds: each ends at the first one at which its work
        is done. With one stream that has kernels, or a slowdown of 0, what they take alone.

    Raises
    ------
    ValueError
        A trace without ops; a slowdown that is not finite and >= 0, or has too many digits to count exactly; ops that
        take 2**53 ns and more.

    Notes
    -----
    O(streams (n + waits)) an iteration. Run until all is as it was some iterations before: mostly after one, and then
    `simulate(share(...))` with the same placement and host shows the starts of this run. Where the regime takes several
    iterations, an op's duration is its mean over them, rounded; where none is found, over the second half of those run.

    Streams that do not wait for one another do not drift apart for ever here, as they do in `simulate`: none begins an
    iteration before all have ended the one `2 x engines` before, with an engine for each stream and each direction of
    the link. So in the long run each does one iteration in the time of one.

    The byte-counting simulation is not in this run: `simulate(share(...), capacity=...)` lets these durations wait for
    memory, an approximation where it delays ops, since others then run beside them.

    Examples
    --------
    >>> from gpumem import simulate
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [], [0, 1]], [[0], [1], [0, 1]], duration=[10, 5, 10], stream=[0, 1, 0], streams=["a", "b"])
    >>> trace, machine = Trace(Buffers.make([8, 8], [0, 1], [3, 3]), ops), Machine.named("h100")
    >>> share(trace, machine, 1.0).ops.duration.tolist()
    [15, 10, 10]
    >>> [simulate(share(trace, machine, s), machine).makespan for s in (0.0, 0.5, 1.0)]
    [20, 23, 25]
    """
    check_runs(trace, iterations)
    kernel, alone = kernels(trace), machine.durations(trace)
    streams = len(np.unique(trace.ops.stream[kernel]))
    unit, rate = rates(slowdown, streams)
    if streams <= 1 or not slowdown:
        return _taking(trace, alone)
    if int(alone[kernel].sum()) * unit >= MAX_NS * rate[streams]:
        raise ValueError(f"trace {trace.name!r}: its ops take too long to count in ns")
    if int(alone.max()) * unit >= 2**62:
        raise ValueError(f"slowdown: {slowdown} is too fine to count exactly; give it fewer digits")
    hosts = Hosts.make(trace, machine, sync)
    return _taking(trace, _steady(SharedClock(Streams.make(trace, machine, rate, placement, hosts), hosts), iterations))


def _taking(trace: Trace, duration: I64) -> Trace:
    return replace(trace, ops=replace(trace.ops, duration=np.where(kernels(trace), duration, trace.ops.duration)))


def _steady(clock: SharedClock, iterations: int) -> I64:
    """Run until iterations repeat; return what each op takes in the mean over the regime."""
    took: list[I64] = []
    cycle, last = 0, iterations
    while len(took) < last:
        start, end = clock.advance()
        took.append(end - start)
        if not cycle and (cycle := clock.cycle()):
            last = len(took) + max(cycle, len(clock.streams.start))  # by then, what began before the regime has ended
    count = cycle or (last + 1) // 2
    return (2 * sum(took[-count:], np.zeros_like(took[0])) + count) // (2 * count)
