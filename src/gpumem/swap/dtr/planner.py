"""The planner: DTR's runtime, simulated over one iteration, and what it did as a plan."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.base import work
from gpumem.base.arguments import finite, strict, strict_fields
from gpumem.base.names import one_of
from gpumem.simulator.machine import Machine
from gpumem.swap.dtr._eviction import POLICIES, RAN, RunLimits
from gpumem.swap.dtr.online import OnlineRun, follow
from gpumem.swap.dtr.scores import HEURISTICS
from gpumem.swap.dtr.storages import DtrStorages
from gpumem.swap.dtr.translate import decisions
from gpumem.swap.facts.limits import FAR, Judge, fits, floor
from gpumem.swap.facts.options import option
from gpumem.swap.plan import Plan
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.trace import Trace

# Recomputations may take as long as all ops; then a run ends as `TOO_LONG`, as the paper's do.
OVERHEAD = 1
# Evictions for each buffer, after which a run ends as well. Not tuned.
EVICTIONS = 100
# Budgets of the simulated runtime that are tried. Not tuned: a bisection of the limit to `CLOSE` needs 8.
TRIES = 12
# Budgets closer than the limit divided by this count as one; it is the least step up as well. Not tuned.
CLOSE = 200


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Dtr(PlannerRecord):
    """The planner `dtr` and its options."""

    heuristic: str = option("eq", HEURISTICS)
    free: str = option("evict", POLICIES)


@strict
def online(
    trace: Trace,
    machine: Machine,
    budget: int,
    *,
    heuristic: str = "eq",
    free: str = "evict",
    overhead: float = OVERHEAD,
) -> OnlineRun:
    """Simulate DTR's runtime over one iteration, memory-limited by a budget.

    Parameters
    ----------
    trace : Trace
    machine : Machine
        Gives the time of ops; nothing is copied.
    budget : int
        Bytes that the device has.
    heuristic, free : str
        As in `dtr`.
    overhead : float
        It ends where recomputations take more than this part of the time of all ops.

    Returns
    -------
    OnlineRun
        What the recomputations took, and when each storage was on the device.

    Raises
    ------
    ValueError
        An unknown option; an overhead below 0, or that is not finite.

    Notes
    -----
    O(evictions * storages), as the paper's: each eviction looks at all storages on the device.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("vgg16")
    >>> run = online(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * 3 // 4)
    >>> run.how == RAN, run.recompute_ns > 0
    (True, True)
    """
    one_of("heuristic", heuristic, HEURISTICS)
    one_of("free", free, POLICIES)
    finite(overhead=overhead)
    storages = DtrStorages.of(trace, machine)
    return follow(storages, _limits(storages, budget, overhead), HEURISTICS[heuristic], POLICIES[free])


def _limits(storages: DtrStorages, budget: int, overhead: float) -> RunLimits:
    return RunLimits(budget, int(overhead * int(storages.duration.sum())), EVICTIONS * len(storages.size))


@plans(Dtr)
def dtr(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    heuristic: str = "eq",
    free: str = "evict",
    seconds: float | None = None,
) -> Plan:
    """Plan what DTR's runtime does within a budget: it evicts what a heuristic says, and recomputes it on demand.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    heuristic : str
        What is evicted first, by the paper's names; see `gpumem.swap.dtr.scores`. `eq`: the time to recompute a
        storage and the classes of its evicted neighbours, by its bytes and by how long it was not used. `dtr`: the
        same with the exact neighbourhood. `local`: with the storage alone. `msps`: the time of all evicted ones that
        it is made of and its own, by its bytes. `lru`: what was used longest ago. `size`: the largest.
    free : str
        What becomes of a storage that the program refers to no more. `evict`: it is evicted at once. `banish`: it is
        freed for good as soon as nothing made of it is evicted, and what was made of it is never evicted from then on.
        `ignore`: nothing.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Returns
    -------
    Plan
        Of `Recompute` decisions, and of `Hold` where recomputations read what would have been dropped.

    Notes
    -----
    A dozen simulated iterations at most. The runtime recomputes one storage after another; in a plan all that is
    recomputed before one op runs there together, and dead tails are dropped, so that the peak of the plan is above the
    runtime's budget, or below it. So budgets are tried, the limit first, until one more could not do better, and the
    plan with the shortest iteration is returned.

    Each run is O(evictions * storages).

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("resnet18")
    >>> plan = dtr(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * 2 // 3)
    >>> plan.apply(trace).peak_live_bytes <= trace.peak_live_bytes * 2 // 3
    True

    References
    ----------
    Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen and Tatlock 2021, Dynamic tensor rematerialization, ICLR.
    """
    if fits(trace, limit):
        return Plan.of(trace)
    storages, judge = DtrStorages.of(trace, machine), Judge(trace, machine, limit)
    budgets = _Budgets(floor(trace)[1], trace.peak_live_bytes, limit)
    for _ in work.each(range(TRIES)):
        limits, slack = _limits(storages, budgets.budget, OVERHEAD), FAR
        run = follow(storages, limits, HEURISTICS[heuristic], POLICIES[free])
        if run.how == RAN:
            plan = Plan.of(trace, decisions(trace, run.residency))
            swapped = plan.apply(trace)
            judge.offer(plan, swapped)
            slack = limit - swapped.peak_live_bytes
        if not budgets.go_on(slack):
            break
    if judge.best is None:
        raise judge.missed("another heuristic, or a planner that swaps, may get lower")
    return judge.plan()


@dataclass(slots=True)
class _Budgets:
    """The budgets to try: between one whose plan is within the limit, or that was too small, and one above it."""

    low: int  # the highest that was enough for a plan within the limit, or not even for an iteration
    high: int  # the lowest with a plan above the limit
    budget: int
    limit: int = 0

    def __post_init__(self) -> None:
        self.limit = self.budget

    def go_on(self, slack: int) -> bool:
        """Return whether another budget is worth trying, given the bytes that the last left below the limit."""
        if slack >= 0:
            self.low = max(self.low, self.budget)
        else:
            self.high = min(self.high, self.budget)
        least = self.limit // CLOSE
        # The plan's peak moves by about as much as the budget; outside of the bracket, halve that.
        guess = self.budget + (slack if slack < 0 else max(slack, least))
        if not self.low < guess < self.high:
            guess = (self.low + self.high) // 2
        self.budget = guess
        return self.high - self.low > max(least, 1)
