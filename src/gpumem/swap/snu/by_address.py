"""Swapping on demand where bytes have addresses: enough free bytes may lie in several pieces.

The thesis has one OpenCL buffer for all memory, and its tensors are sub-buffers, each at an offset (section 5.3). Its
rule for a buffer that needs bytes::

    hole is large enough          take it
    no hole                       evict the least recently used of the residents that are large enough
    no such resident either       evict a run of neighbours whose bytes suffice
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from gpumem.base.arguments import at_least, strict
from gpumem.base.display import Shown
from gpumem.base.errors import NotReached
from gpumem.base.names import one_of
from gpumem.base.units import human
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.limits import fits
from gpumem.swap.plan import Plan
from gpumem.swap.snu.addresses import FITS, Pieces
from gpumem.swap.snu.residents import Residents, Tally, swaps
from gpumem.trace import I64, Trace
from gpumem.trace.placement import NOWHERE, Placement


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ByAddress(Shown):
    """What swapping on demand by address does.

    `turns` are the iterations after which all repeats; where that was not seen, all but the first. `plan` and
    `placement` say the same where one iteration repeats. Otherwise they are None: a plan is one iteration, and its
    buffers are at the same addresses each time.
    """

    turns: tuple[Tally, ...]
    period: int  # iterations after which all repeats, addresses too; 0 where that was not seen
    computation_ns: int  # of one unswapped iteration
    plan: Plan | None = None
    placement: Placement | None = None  # of `plan.apply(trace)`

    @property
    def stall_ns(self) -> float:
        """What copies add to an iteration, each of them blocking, if the ops have one stream; the mean over `turns`."""
        return sum(turn.copies_ns for turn in self.turns) / len(self.turns)

    @property
    def iteration_ns(self) -> float:
        """Computation and stall."""
        return self.computation_ns + self.stall_ns


@strict
def by_address(
    trace: Trace, machine: Machine, capacity: int, *, fit: str = "first", alignment: int = 256, iterations: int = 16
) -> ByAddress:
    """Follow swapping on demand, as the SNU thesis does it, in a pool of `capacity` bytes with addresses.

    Parameters
    ----------
    trace, machine
        As for planners.
    capacity : int
        Bytes of the pool.
    fit : str
        Which hole a buffer gets, `best` or `first`. The thesis' page on its allocator is lost; with `first` the
        addresses repeat from one iteration to the next more often.
    alignment : int
        Bytes that every offset is a multiple of.
    iterations : int
        How many to follow at most before the state repeats, two or more.

    Returns
    -------
    ByAddress
        Where one iteration repeats, its plan passes the address-aware simulation on its placement, whose height
        is `capacity` at most.

    Raises
    ------
    Infeasible
        Some op must hold more than `capacity` bytes, whatever is swapped.
    NotReached
        No hole can be made for a buffer: the residents that would have to be evicted are operands of the op, or have no
        later access in their lifetime, or exceed the pinned-host budget. `reached`: a pool in which the
        largest hole at that moment would be large enough.
    ValueError
        An unknown fit; a capacity or an alignment below 1, a number of iterations below 2.

    Notes
    -----
    Before an op, its new buffers get their pieces, then those of its operands that are off the device, in the order of
    the trace. Of several runs of neighbours the one is evicted whose most recently used member was used longest ago;
    the holes between and beside them count. What can be a victim, and how long the host keeps a copy: as in
    `gpumem.swap.snu.on_demand`. Nothing is moved within the pool. The iterations begin with an empty one, into which
    all that crosses the boundary is brought, first what cannot be evicted there.

    O(p) for a new or returning buffer, p pieces in the pool, and O(p r) for a run of r. Pure Python: 0.01 s an
    iteration for 600 ops.

    Examples
    --------
    >>> from gpumem.trace import rebatch
    >>> from gpumem.io import bundled
    >>> trace, machine = rebatch(bundled("resnet18"), 10), Machine.named("rx5700xt")
    >>> capacity = trace.peak_live_bytes * 7 // 10
    >>> run = by_address(trace, machine, capacity)
    >>> run.turns[0].copies_in, run.turns[0].scattered  # five times enough bytes were free, in several pieces
    (6, 5)
    >>> line = simulate(run.plan.apply(trace), machine, run.placement)
    >>> run.placement.height <= capacity, line.makespan == run.iteration_ns
    (True, True)

    References
    ----------
    J. Lee's thesis, Seoul National University, section 5.3.
    """
    one_of("fit", fit, FITS)
    at_least(1, capacity=capacity, alignment=alignment)
    at_least(2, iterations=iterations)
    fits(trace, capacity)  # raises where no eviction helps
    run = _Run(trace, machine, Pieces(capacity - capacity % alignment, fit), alignment)
    known: dict[object, int] = {}
    turns, period = list[Tally](), 0
    while len(turns) < iterations and not period:
        turns.append(run.advance())
        period = len(turns) - known.setdefault(run.key(), len(turns))
    computation = simulate(trace, machine).makespan
    result = ByAddress(tuple(turns[-period:] if period else turns[1:]), period, computation)
    if period != 1:
        return result
    plan = Plan.of(trace, swaps(run.gaps, turns[-1].evicted(run.gaps, trace.n)), blocking=True)
    return replace(result, plan=plan, placement=_placement(trace, plan, run, turns[-1], alignment))


class _Run(Residents):
    """Swapping on demand in pieces of a pool."""

    def __init__(self, trace: Trace, machine: Machine, pool: Pieces, alignment: int) -> None:
        self.pool, self.aligned = pool, (-(-trace.buffers.size // alignment) * alignment).tolist()
        super().__init__(trace, machine)

    def begin(self, staying: Iterable[int]) -> None:
        for buffer in (*staying, *self.last_gap):
            self.allocate(buffer, 0)
            if buffer in self.last_gap and self.size[buffer]:
                self.lru[buffer] = None

    def key(self) -> object:
        return tuple(self.pool.rows), super().key()

    def allocate(self, buffer: int, op: int) -> None:
        size, pool, tally = self.aligned[buffer], self.pool, self.tally
        if not size:
            return
        if (at := pool.find(size)) < 0:
            free = pool.largest()[1]
            if free >= size:
                tally.scattered += 1
                tally.most_scattered = max(tally.most_scattered, free)
            for victim in self._victims(size):
                self.evict(victim, op)
            at = pool.find(size)
        if at < 0:
            missing = size - pool.largest()[0]
            hint = f"op {op} needs {human(size)} in one piece, and nothing that is in the way can be evicted"
            raise NotReached(pool.capacity + missing, pool.capacity, "a pool", hint)
        pool.take(buffer, at, size)
        tally.placed[buffer, op] = at

    def _victims(self, size: int) -> list[int]:
        """The least recently used resident of at least `size` bytes, or else a run of neighbours."""
        large = (buffer for buffer in self.lru if self.aligned[buffer] >= size and self.can_evict(buffer))
        if (victim := next(large, None)) is not None:
            return [victim]
        dirty = {buffer: 0 if buffer in self.on_host else self.size[buffer] for buffer in self.lru}
        run = self.pool.run(size, lru=self.lru, dirty=dirty, host_free=self.host_free)
        self.tally.runs += bool(run)
        return run

    def free(self, buffer: int) -> None:
        if self.size[buffer]:
            self.pool.free(buffer)


def _placement(trace: Trace, plan: Plan, run: _Run, turn: Tally, alignment: int) -> Placement:
    """The pieces of the buffers of the rewritten trace: each got its own when it was made or came back."""
    carried = plan.carried(trace)
    swapped = carried.trace
    offset = np.where(swapped.buffers.host, NOWHERE, 0)
    for buffer, at in run.pool.at.items():
        offset[buffer] = at  # crosses the boundary, and keeps its piece over it
    for (buffer, op), at in turn.placed.items():
        if op == trace.buffers.start[buffer] and not trace.eternal[buffer]:
            offset[buffer] = at
    returned: I64 = swapped.ops.writes.idx[swapped.ops.writes.ptr[carried.back]]  # what each copy-in writes
    for buffer, swap in zip(returned.tolist(), plan.swaps):
        offset[buffer] = turn.placed[swap.buffer, swap.before % trace.n]
    return Placement.at(swapped, offset, alignment=alignment)
