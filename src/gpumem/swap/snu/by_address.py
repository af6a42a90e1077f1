"""Swapping on demand where bytes have addresses: what has room in sum may have no room in one piece.

The thesis has one OpenCL buffer for all memory, and its tensors are sub-buffers, each at an offset (section 5.3). Who
is where decides who goes::

    hole is large enough          take it
    no hole                       evict the least recently used of the residents that are large enough
    no such resident either       evict a run of neighbours
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.base.errors import NotReached
from gpumem.base.names import one_of
from gpumem.base.units import human
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.limits import fits
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.plan.gaps import Gaps, gaps
from gpumem.swap.snu.addresses import FITS, Pieces
from gpumem.trace import I64, Trace
from gpumem.trace.placement import NOWHERE, Placement


@dataclass(slots=True)
class Tally:
    """What one iteration did, and where."""

    copies_in: int = 0
    copies_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    copies_ns: int = 0  # one after the other
    dropped: int = 0  # evictions of CLEAN buffers
    runs: int = 0  # evictions of neighbours, where no single resident was large enough
    scattered: int = 0  # buffers for which somebody had to go although there were bytes enough, not in one piece
    most_scattered: int = 0  # the most bytes that were free at such a moment
    final: dict[int, int] = field(default_factory=dict)  # gap -> the op for which its buffer was evicted
    placed: dict[tuple[int, int], int] = field(default_factory=dict)  # buffer and op -> its offset from then on

    @property
    def copies(self) -> int:
        """Both ways."""
        return self.copies_in + self.copies_out

    @property
    def bytes(self) -> int:
        """Both ways."""
        return self.bytes_in + self.bytes_out


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
    >>> capacity = trace.peak_load * 7 // 10
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
    for name, value, least in (("capacity", capacity, 1), ("alignment", alignment, 1), ("iterations", iterations, 2)):
        if value < least:
            raise ValueError(f"{name}: {value} is below {least}")
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
    plan = _plan(trace, run.gaps, turns[-1])
    return replace(seen, plan=plan, placement=_placement(trace, plan, run, turns[-1], alignment))


class _Run:
    """Who is where, and what the host has."""

    def __init__(self, trace: Trace, machine: Machine, pool: Pieces, alignment: int) -> None:
        b, n = trace.buffers, trace.n
        self.trace, self.pool, self.gaps = trace, pool, gaps(trace)
        self.size, self.wide = b.size.tolist(), (-(-b.size // alignment) * alignment).tolist()
        self.out_ns, self.in_ns = machine.out.copy_ns(b.size).tolist(), machine.into.copy_ns(b.size).tolist()
        self.begins = self.gaps.rows(n)  # (buffer, op) -> the gap that begins there
        mortal = np.flatnonzero(~b.host & ~trace.eternal)
        self.starts: list[list[int]] = [[] for _ in range(n)]
        self.ends: list[list[int]] = [[] for _ in range(n)]
        for j in mortal.tolist():
            self.starts[b.start[j]].append(j)
            self.ends[(b.end[j] - 1) % n].append(j)
        self.touched = [[j for j in dict.fromkeys((*op.reads, *op.writes)) if not b.host[j]] for op in trace.ops]
        self.writes = [set(op.writes) for op in trace.ops]
        self.used: dict[int, None] = {}  # who can go, the least recently used first
        self.away: dict[int, int] = {}  # buffer -> the op for which it was evicted
        self.gap: dict[int, int] = {}  # buffer -> the gap that it is in
        self.on_host: set[int] = set()
        self.room = machine.pinned
        self.turn = Tally()
        self._begin()

    def _begin(self) -> None:
        """Bring in what crosses the boundary, first what has no gap there."""
        wraps = np.flatnonzero(self.gaps.before >= self.trace.n)
        wraps = wraps[np.argsort(self.gaps.after[wraps], kind="stable")]
        self.gap = {int(self.gaps.buffer[k]): int(k) for k in wraps}
        inside = np.flatnonzero(self.trace.crossing & ~self.trace.buffers.host).tolist()
        for b in (*(b for b in inside if b not in self.gap), *self.gap):
            self._place(b, 0)
            if b in self.gap and self.size[b]:
                self.used[b] = None

    def key(self) -> object:
        """Return all that the next iteration depends on."""
        away = tuple(sorted(self.away.items()))
        return tuple(self.pool.rows), tuple(self.used), away, frozenset(self.on_host)

    def advance(self) -> Tally:
        """Follow one iteration op by op."""
        self.turn = Tally()
        for i, operands in enumerate(self.touched):
            for b in operands:
                self.used.pop(b, None)
            for b in self.starts[i]:
                self._place(b, i)
            for b in operands:
                if b in self.away:
                    self._place(b, i)
                    self.turn.copies_in += 1
                    self.turn.bytes_in += self.size[b]
                    self.turn.copies_ns += self.in_ns[b]
            for b in operands:
                self._touch(b, i)
            for b in self.ends[i]:
                self.used.pop(b, None)
                self._forget(b)
                if self.size[b]:
                    self.pool.give_back(b)
        return self.turn

    def _touch(self, b: int, op: int) -> None:
        """The op has used `b`: a gap ends, another may begin."""
        ended, away = self.gap.pop(b, None), self.away.pop(b, -1)
        if ended is not None and away >= 0:
            self.turn.final[ended] = away
        if b in self.writes[op]:
            self._forget(b)
        if (begun := self.begins.get((b, op))) is not None:
            self.gap[b] = begun
            if self.size[b]:
                self.used[b] = None

    def _place(self, b: int, op: int) -> None:
        """Give `b` a piece of the pool, and evict whom that takes."""
        size, pool = self.wide[b], self.pool
        if not size:
            return
        if (at := pool.find(size)) < 0:
            free = pool.largest()[1]
            if free >= size:
                self.turn.scattered += 1
                self.turn.most_scattered = max(self.turn.most_scattered, free)
            for victim in self._victims(size):
                self._evict(victim, op)
            at = pool.find(size)
        if at < 0:
            missing = size - pool.largest()[0]
            hint = f"op {op} needs {human(size)} in one piece, and nobody who is in the way can go"
            raise NotReached(pool.capacity + missing, pool.capacity, "a pool", hint)
        pool.take(b, at, size)
        self.turn.placed[b, op] = at

    def _victims(self, size: int) -> list[int]:
        """The least recently used resident of at least `size` bytes, or else a run of neighbours."""
        dirty = {b: 0 if b in self.on_host else self.size[b] for b in self.used}
        for b in self.used:
            if self.wide[b] >= size and dirty[b] <= self.room:
                return [b]
        run = self.pool.run(size, self.used, dirty, self.room)
        self.turn.runs += bool(run)
        return run

    def _evict(self, b: int, op: int) -> None:
        """Take `b` off the device for `op`; a DIRTY buffer is copied out first, a CLEAN one dropped."""
        del self.used[b]
        self.away[b] = op
        self.pool.give_back(b)
        if b in self.on_host:
            self.turn.dropped += 1
            return
        self.turn.copies_out += 1
        self.turn.bytes_out += self.size[b]
        self.turn.copies_ns += self.out_ns[b]
        self.room -= self.size[b]
        self.on_host.add(b)

    def _forget(self, b: int) -> None:
        """Give back what the host keeps of `b`: the value is gone."""
        if b in self.on_host:
            self.on_host.remove(b)
            self.room += self.size[b]


def _plan(trace: Trace, found: Gaps, turn: Tally) -> Plan:
    """The evictions of one iteration, in the order in which they come about."""
    chosen = found.where(np.array(sorted(turn.final), np.int64))
    evicted = np.array([turn.final[k] for k in sorted(turn.final)], np.int64)
    release = chosen.after + 1 + (evicted - chosen.after - 1) % trace.n
    order = np.lexsort((chosen.buffer, chosen.after, release))
    chosen, release = chosen.where(order), release[order]
    return Plan.of(trace, Swap.each(chosen, release, chosen.before, release - 1), blocking=True)


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
