"""Swapping on demand: no plan, no prefetching; before an op, make its operands resident and evict for their bytes.

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
    evicted: I64  # of each gap the op that needed its bytes, as in `Swap.release`; -1 where the buffer stayed
    copies_in: int
    copies_out: int
    bytes_in: int
    bytes_out: int
    copies_ns: int  # of all copies, one after the other: what they cost if each blocks and the ops have one stream
    dropped: int  # evictions of CLEAN buffers
    short: int  # ops that exceed the limit whatever was evicted
    iterations: int  # how many were followed
    period: int  # iterations after which all repeats; 0 where that was not seen


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand(PlannerRecord):
    """The planner `on_demand` and its options."""

    victim: str = option("lru", VICTIMS)
    iterations: int = option(16)
    blocking: bool = True

    @property
    def name(self) -> str:
        """Its name in tables: by whether copies block."""
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
        Whether the host waits for each copy, as the thesis' does: it enqueues a copy when all before it has ended,
        and the op when the copy has. Without it the same copies are issued at the same places, and only ops wait for
        them that need what they move.

    Returns
    -------
    Plan
        Copies out are issued right before the op that needs the bytes, copies in right before the access.

    Raises
    ------
    NotReached
        The pinned-host budget is too small for the copies that swapping on demand makes.
    ValueError
        An unknown victim, a limit or a number of iterations below 1.

    Notes
    -----
    O(accesses + evictions x buffers) an iteration at worst, mostly O(accesses). With enough pinned memory
    every limit from `floor` on is reached.

    On one stream an iteration takes its computation and all copies, one after the other. A plan whose copies do not
    block prefetches, as it were: a copy starts when the link and its memory are free, at the earliest after the copies
    issued before it, however much later the op for which it is issued. The decisions are the same.

    Departures. A limit of live bytes have no addresses, so SNU's *contiguous* run of residents is a run in LRU
    order, and free bytes count wherever they are; `gpumem.swap.snu.by_address` has addresses. A buffer without a
    later access in its lifetime, or before its first one, is no victim: a rewrite shortens lifetimes by their gaps
    only. Where the state repeats after several iterations only, or not at all, a plan cannot say so: the last
    iteration is taken, and where its live bytes exceed the limit more is evicted, the least recently used first. A
    victim that exceeds the pinned-host budget is passed over.

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
    run = follow(trace, machine, limit, victim=victim, iterations=iterations)
    evicted, live = _evict_more(trace, run, limit, pinned=machine.pinned)
    if live.over:
        raise NotReached(live.peak, limit, hint=work.hint(f"the pinned-host budget is {human(machine.pinned)}"))
    return Plan.of(trace, swaps(run.gaps, evicted), blocking=blocking)


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
    >>> run = follow(trace, machine, trace.peak_live_bytes * 7 // 10)
    >>> run.period, run.short
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
        self.lru |= {buffer: None for buffer in self.last_gap if self.size[buffer]}

    def allocate(self, buffer: int, op: int) -> None:
        self.held += self.size[buffer]
        if self.snu and self.held > self.limit:  # one victim that is large enough, if there is one
            self._evict_one(self.held - self.limit, op)
        while self.held > self.limit and self._evict_one(0, op):
            pass

    def _evict_one(self, least: int, op: int) -> bool:
        """Evict the least recently used with at least `least` bytes that the host can take, if there is one."""
        victim = next((buffer for buffer in self.lru if self.size[buffer] >= least and self.can_evict(buffer)), None)
        if victim is not None:
            self.evict(victim, op)
        return victim is not None

    def free(self, buffer: int) -> None:
        self.held -= self.size[buffer]

    def is_short(self) -> bool:
        return self.held > self.limit


def _evict_more(trace: Trace, run: OnDemandRun, limit: int, *, pinned: int) -> tuple[I64, LiveBytes]:
    """Evict more where the evictions of one iteration, repeated, exceed the limit; return them and what they leave.

    A plan repeats one iteration; where the run's state repeats after several only, each evicted what the others left.
    The run's evictions are kept if the host can take them all, else this begins with none.
    """
    spans, size = run.gaps, run.gaps.size
    host, release = Pinned(trace, spans, pinned), np.where(run.evicted >= 0, run.evicted, spans.before)
    rows = np.flatnonzero(run.evicted >= 0).tolist()
    if not all(host.take(row, int(release[row]) - 1, int(spans.before[row])) for row in rows):
        host, release = Pinned(trace, spans, pinned), spans.before.copy()
    live, unused = LiveBytes.of(trace, limit, (release, spans.before, size)), _LeastRecentlyUsed(spans, trace.n)
    for op in work.each(np.flatnonzero(live.load > limit).tolist()):
        passed = []
        for since, row in unused.pop_each(op, release):
            if not live.helps(op, op + 1):
                passed.append((since, row))
                break
            at = int(spans.after[row]) + op - since
            if host.take(row, at - 1, int(spans.before[row])):
                live.leave(at, int(release[row]), int(size[row]))
                release[row] = at
            else:
                passed.append((since, row))
        unused.put_back(passed)
        if live.helps(op, op + 1):  # nothing is left to evict here, so that no plan reaches the limit
            break
    return np.where(release < spans.before, release, -1), live


class _LeastRecentlyUsed:
    """The gaps that could begin at an op, that of the least recently used buffer first: a heap by last use and gap."""

    def __init__(self, spans: Gaps, n: int) -> None:
        solid = np.flatnonzero(spans.size > 0)
        wraps = solid[spans.before[solid] > n]  # they begin before op 0 as well
        self._heap = sorted(zip((spans.after[wraps] - n).tolist(), wraps.tolist()))
        order = solid[np.argsort(spans.after[solid], kind="stable")]
        self._upcoming = list(zip(spans.after[order].tolist(), order.tolist()))[::-1]
        self._after = spans.after

    def pop_each(self, op: int, release: I64) -> Iterator[tuple[int, int]]:
        """Take those off the heap one by one that are on the device at `op`; ops are passed in ascending order."""
        while self._upcoming and self._upcoming[-1][0] < op:
            heappush(self._heap, self._upcoming.pop())
        while self._heap:
            since, row = heappop(self._heap)
            if op - since < release[row] - self._after[row]:
                yield since, row

    def put_back(self, rows: Iterable[tuple[int, int]]) -> None:
        """Let them be evicted at a later op."""
        for row in rows:
            heappush(self._heap, row)
