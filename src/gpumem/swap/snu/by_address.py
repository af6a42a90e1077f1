"""Swapping on demand where bytes have addresses: what has room in sum may have no room in one piece.

The thesis has one OpenCL buffer for all memory, and its tensors are sub-buffers, each at an offset (section 5.3). Who
is where decides who goes::

    hole is large enough          take it
    no hole                       evict the least recently used of the residents that are large enough
    no such resident either       evict a run of neighbours
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
    """Follow swapping on demand, in the SNU thesis' way, in a pool of `capacity` bytes with addresses.

    Parameters
    ----------
    trace, machine
        As for planners.
    capacity : int
        Bytes of the pool.
    fit : str
        Which hole a buffer gets, `best` or `first`. The thesis' page on its allocator is lost; with `first` the
        addresses settle more often.
    alignment : int
        Bytes that every offset is a multiple of.
    iterations : int
        How many to follow at most before the state repeats, two or more.

    Returns
    -------
    ByAddress
        Its plan passes the placed clock on its placement, whose height is `capacity` at most.

    Raises
    ------
    Infeasible
        Some op must hold more than `capacity` bytes, whatever is swapped.
    NotReached
        No hole can be made for a buffer: the residents that would have to go are operands of the op, or have no later
        access in their lifetime, or the pinned-host budget has no room for them. `reached`: a pool in which the
        largest hole at that moment would be large enough.
    ValueError
        An unknown fit; a capacity or an alignment below 1, a number of iterations below 2.

    Notes
    -----
    Before an op, its new buffers get their pieces, then those of its operands that are away, in the order of the
    trace. Of several runs of neighbours the one goes whose most recently used member was used longest ago; the
    holes between and beside them count. Who can be a victim, and how long the host keeps a copy: as in
    `gpumem.swap.snu.on_demand`. Nothing is moved within the pool. The iterations begin with an empty one, into which
    all that crosses the boundary is brought, first what cannot leave then.

    O(p) for a new or returning buffer, p pieces in the pool, and O(p r) for a run of r. Pure Python: 0.01 s an
    iteration for 600 ops.

    Examples
    --------
    >>> from gpumem.trace import rebatch
    >>> from gpumem.io import bundled
    >>> trace, machine = rebatch(bundled("resnet18"), 10), Machine.named("rx5700xt")
    >>> capacity = trace.peak_live_bytes * 7 // 10
    >>> found = by_address(trace, machine, capacity)
    >>> found.turns[0].copies_in, found.turns[0].scattered  # five times there were bytes, in several pieces
    (6, 5)
    >>> line = simulate(found.plan.apply(trace), machine, found.placement)
    >>> found.placement.height <= capacity, line.makespan == found.iteration_ns
    (True, True)

    References
    ----------
    J. Lee's thesis, Seoul National University, section 5.3.
    """
    one_of("fit", fit, FITS)
    at_least(1, capacity=capacity, alignment=alignment)
    at_least(2, iterations=iterations)
    fits(trace, capacity)  # what no eviction helps
    run = _Run(trace, machine, Pieces(capacity - capacity % alignment, fit), alignment)
    known: dict[object, int] = {}
    turns, period = list[Tally](), 0
    while len(turns) < iterations and not period:
        turns.append(run.advance())
        period = len(turns) - known.setdefault(run.key(), len(turns))
    computation = simulate(trace, machine).makespan
    seen = ByAddress(tuple(turns[-period:] if period else turns[1:]), period, computation)
    if period != 1:
        return seen
    plan = Plan.of(trace, swaps(run.gaps, turns[-1].evicted(run.gaps, trace.n)), blocking=True)
    return replace(seen, plan=plan, placement=_placement(trace, plan, run, turns[-1], alignment))


class _Run(Residents):
    """Swapping on demand in pieces of a pool."""

    def __init__(self, trace: Trace, machine: Machine, pool: Pieces, alignment: int) -> None:
        self.pool, self.wide = pool, (-(-trace.buffers.size // alignment) * alignment).tolist()
        super().__init__(trace, machine)

    def begin(self, staying: Iterable[int]) -> None:
        for b in (*staying, *self.gap):
            self.place(b, 0)
            if b in self.gap and self.size[b]:
                self.used[b] = None

    def key(self) -> object:
        return tuple(self.pool.rows), super().key()

    def place(self, b: int, op: int) -> None:
        size, pool = self.wide[b], self.pool
        if not size:
            return
        if (at := pool.find(size)) < 0:
            free = pool.largest()[1]
            if free >= size:
                self.turn.scattered += 1
                self.turn.most_scattered = max(self.turn.most_scattered, free)
            for victim in self._victims(size):
                self.evict(victim, op)
            at = pool.find(size)
        if at < 0:
            missing = size - pool.largest()[0]
            hint = f"op {op} needs {human(size)} in one piece, and nobody who is in the way can go"
            raise NotReached(pool.capacity + missing, pool.capacity, "a pool", hint)
        pool.take(b, at, size)
        self.turn.placed[b, op] = at

    def _victims(self, size: int) -> list[int]:
        """The least recently used resident of at least `size` bytes, or else a run of neighbours."""
        if (one := next((b for b in self.used if self.wide[b] >= size and self.may_go(b)), None)) is not None:
            return [one]
        dirty = {b: 0 if b in self.on_host else self.size[b] for b in self.used}
        run = self.pool.run(size, self.used, dirty, self.room)
        self.turn.runs += bool(run)
        return run

    def give_back(self, b: int) -> None:
        if self.size[b]:
            self.pool.give_back(b)


def _placement(trace: Trace, plan: Plan, run: _Run, turn: Tally, alignment: int) -> Placement:
    """The pieces of the buffers of the rewritten trace: each got its own when it was made or came back."""
    carried = plan.carried(trace)
    swapped = carried.trace
    offset = np.where(swapped.buffers.host, NOWHERE, 0)
    for b, at in run.pool.at.items():
        offset[b] = at  # crosses the boundary, and keeps its piece over it
    for (b, op), at in turn.placed.items():
        if op == trace.buffers.start[b] and not trace.eternal[b]:
            offset[b] = at
    back: I64 = swapped.ops.writes.idx[swapped.ops.writes.ptr[carried.back]]  # what each copy-in writes
    for new, swap in zip(back.tolist(), plan.swaps):
        offset[new] = turn.placed[swap.buffer, swap.before % trace.n]
    return Placement.at(swapped, offset, alignment=alignment)
