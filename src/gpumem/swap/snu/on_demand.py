"""Swapping on demand: no plan, no prefetching; before an op, make its operands resident and evict for room.

A buffer has two copies, and three states once it is on the device or the host::

    state     on the device   on the host      evicted
    INVALID   no              yes
    CLEAN     yes             yes              dropped, nothing to copy
    DIRTY     yes             no, or older     copied out first
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict, strict_fields
from gpumem.base.display import Shown
from gpumem.base.errors import NotReached
from gpumem.base.names import one_of
from gpumem.base.units import human
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.facts.options import check_numbers, option
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.plan import Plan
from gpumem.swap.plan.gaps import Gaps
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.swap.snu.residents import Residents, swaps
from gpumem.trace import I64, Trace

VICTIMS = ("lru", "snu")
COUNTS = ("copies_in", "copies_out", "bytes_in", "bytes_out", "copies_ns", "dropped", "short")  # of a `Tally`


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OnDemandRun(Shown):
    """What swapping on demand does in one iteration."""

    gaps: Gaps  # all gaps of the trace
    evicted: I64  # of each gap the op that needed the room, as in `Swap.release`; -1 where the buffer stayed
    copies_in: int
    copies_out: int
    bytes_in: int
    bytes_out: int
    copies_ns: int  # of all copies, one after the other: what they cost if each blocks and the ops have one stream
    dropped: int  # evictions of CLEAN buffers
    short: int  # ops for which there was no room whatever was evicted
    iterations: int  # how many were followed
    period: int  # iterations after which all repeats; 0 where that was not seen


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand(PlannerRecord):
    """The planner `on_demand`, which says what its options are."""

    victim: str = option("lru", VICTIMS)
    iterations: int = option(16)
    blocking: bool = True

    @property
    def name(self) -> str:
        """What tables call it: by whether copies block."""
        return "on-demand" if self.blocking else "on-demand-nonblocking"


@plans(OnDemand)
def on_demand(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    victim: str = "lru",
    iterations: int = 16,
    seconds: float | None = None,
    blocking: bool = True,
) -> Plan:
    """Return as a plan what swapping on demand does in the steady state within `limit` bytes.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    victim : str
        `lru`: the least recently used. `snu`: the least recently used of those with at least the bytes that
        are missing; where none is that large, least recently used ones until they suffice.
    iterations : int
        How many to follow at most before the state repeats.
    seconds : float, optional
        The whole time; see `gpumem.swap`.
    blocking : bool
        Whether the host waits for each copy, as the thesis' does: it hands a copy over when all before it has ended,
        and the op when the copy has. Without it the same copies are issued at the same places, and nobody waits for
        them but who needs what they move.

    Returns
    -------
    Plan
        Copies out are issued right before the op that needs the room, copies in right before the access.

    Raises
    ------
    NotReached
        The pinned-host budget is too small for the copies that this way of swapping makes.
    ValueError
        An unknown victim, a limit or a number of iterations below 1.

    Notes
    -----
    O(accesses + evictions x buffers) an iteration at worst, mostly O(accesses). With enough pinned memory
    every limit from `floor` on is reached.

    On one stream an iteration takes its computation and all copies, one after the other. A plan whose copies do not
    block prefetches, as it were: a copy starts when the link and its memory are free, at the earliest after the copies
    issued before it, however much later the op for which it is issued. The decisions are the same.

    Departures. A load limit has no addresses, so SNU's *contiguous* run of residents is a run in LRU order, and free
    bytes count wherever they are; `gpumem.swap.snu.by_address` has addresses. A buffer without a later access in its
    lifetime, or before its first one, is no victim: a rewrite shortens lifetimes by their gaps only. Where the state
    repeats after several iterations only, or not at all, a plan cannot say so: the last iteration is taken, and where
    its load exceeds the limit more is evicted, the least recently used first. A victim that the pinned-host budget
    has no room for is passed over.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> limit = trace.peak_live_bytes * 7 // 10
    >>> plan = on_demand(trace, machine, limit)
    >>> plan.apply(trace).peak_live_bytes <= limit
    True

    References
    ----------
    Zhang et al. 2019, section V; J. Lee's thesis, Seoul National University, sections 5.3 and 5.4.
    """
    if fits(trace, limit):
        return Plan.of(trace)
    if work.over():
        raise NotReached(trace.peak_live_bytes, limit, hint=work.LATE)
    seen = follow(trace, machine, limit, victim=victim, iterations=iterations)
    evicted, room = _repair(trace, seen.gaps, seen.evicted, limit, machine.pinned)
    if room.over:
        raise NotReached(room.peak, limit, hint=work.hint(f"the pinned-host budget is {human(machine.pinned)}"))
    return Plan.of(trace, swaps(seen.gaps, evicted), blocking=blocking)


@strict
def follow(trace: Trace, machine: Machine, limit: int, *, victim: str = "lru", iterations: int = 16) -> OnDemandRun:
    """Follow swapping on demand from one iteration to the next until its state repeats; see `on_demand`.

    What the last iteration did is returned; it is the last one that there is time for, the first at least. What cannot
    be evicted stays, even above the limit: `short` counts that. The first iteration begins with all on the device that
    crosses the boundary, where it fits. Errors as in `on_demand`.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> seen = follow(trace, machine, trace.peak_live_bytes * 7 // 10)
    >>> seen.period, seen.short
    (1, 0)
    """
    if limit < 1:
        raise ValueError(f"limit: {limit} bytes is below 1")
    one_of("victim", victim, VICTIMS)
    check_numbers(iterations=iterations)
    state, known, period = _Bytes(trace, machine, limit, victim == "snu"), dict[object, int](), 0
    for turn in range(iterations):
        tally = state.advance()
        period = turn - known.setdefault(state.key(), turn)
        if period or work.over():
            break
    counts = {name: getattr(tally, name) for name in COUNTS}
    evicted = tally.evicted(state.gaps, trace.n)
    return OnDemandRun(state.gaps, evicted, **counts, iterations=turn + 1, period=period)


class _Bytes(Residents):
    """Swapping on demand where bytes count wherever they are."""

    def __init__(self, trace: Trace, machine: Machine, limit: int, snu: bool) -> None:
        self.limit, self.snu = limit, snu
        self.held = int(trace.buffers.size[~trace.buffers.host & trace.crossing].sum())
        super().__init__(trace, machine, ascending=True)

    def begin(self, staying: Iterable[int]) -> None:
        self.used |= {b: None for b in self.gap if self.size[b]}

    def place(self, b: int, op: int) -> None:
        self.held += self.size[b]
        if self.snu and self.held > self.limit:  # one buffer that is large enough, if there is one
            self._evict_one(self.held - self.limit, op)
        while self.held > self.limit and self._evict_one(0, op):
            pass

    def _evict_one(self, least: int, op: int) -> bool:
        """Evict the least recently used with at least `least` bytes that the host has room for, if there is one."""
        victim = next((b for b in self.used if self.size[b] >= least and self.may_go(b)), None)
        if victim is not None:
            self.evict(victim, op)
        return victim is not None

    def give_back(self, b: int) -> None:
        self.held -= self.size[b]

    def is_short(self) -> bool:
        return self.held > self.limit


def _repair(trace: Trace, found: Gaps, evicted: I64, limit: int, pinned: int) -> tuple[I64, LiveBytes]:
    """Evict more where the decisions of one iteration, repeated, exceed the limit; return them and what they leave.

    They are kept if the host has room for them, else this begins with none.
    """
    size, host = found.size, Pinned(trace, found, pinned)
    release = np.where(evicted >= 0, evicted, found.before)
    taken = np.flatnonzero(evicted >= 0).tolist()
    if not all(host.take(k, int(release[k]) - 1, int(found.before[k])) for k in taken):
        host, release = Pinned(trace, found, pinned), found.before.copy()
    room, waiting = LiveBytes.of(trace, limit, (release, found.before, size)), _Waiting(found, size, trace.n)
    for i in work.each(np.flatnonzero(room.load > limit).tolist()):
        passed = []
        for since, k in waiting.longest(i, release):
            if not room.helps(i, i + 1):
                passed.append((since, k))
                break
            at = int(found.after[k]) + i - since
            if host.take(k, at - 1, int(found.before[k])):
                room.leave(at, int(release[k]), int(size[k]))
                release[k] = at
            else:
                passed.append((since, k))
        waiting.put_back(passed)
        if room.helps(i, i + 1):  # no plan will come out of this
            break
    return np.where(release < found.before, release, -1), room


class _Waiting:
    """Who could be evicted at an op, the one that was used longest ago first: a heap of when that was, and the gap."""

    def __init__(self, found: Gaps, size: I64, n: int) -> None:
        solid = np.flatnonzero(size > 0)
        wraps = solid[found.before[solid] > n]  # they begin before op 0 as well
        self._heap = sorted(zip((found.after[wraps] - n).tolist(), wraps.tolist()))
        order = solid[np.argsort(found.after[solid], kind="stable")]
        self._coming = list(zip(found.after[order].tolist(), order.tolist()))[::-1]
        self._after = found.after

    def longest(self, i: int, release: I64) -> Iterator[tuple[int, int]]:
        """Take those that wait at op `i` off the heap one by one; ops are asked for in order."""
        while self._coming and self._coming[-1][0] < i:
            heappush(self._heap, self._coming.pop())
        while self._heap:
            since, k = heappop(self._heap)
            if i - since < release[k] - self._after[k]:
                yield since, k

    def put_back(self, rows: Iterable[tuple[int, int]]) -> None:
        """Let them wait again."""
        for row in rows:
            heappush(self._heap, row)
