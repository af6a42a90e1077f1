"""The planner: DTR's runtime, simulated over one iteration, and what it did as a plan."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.base import work
from gpumem.base.arguments import finite, strict, strict_fields
from gpumem.base.names import one_of
from gpumem.simulator.machine import Machine
from gpumem.swap.dtr.online import POLICIES, RAN, OnlineRun, follow
from gpumem.swap.dtr.scores import HEURISTICS
from gpumem.swap.dtr.storages import Remade
from gpumem.swap.dtr.translate import decisions
from gpumem.swap.facts.limits import FAR, Judge, fits, floor
from gpumem.swap.facts.options import option
from gpumem.swap.plan import Plan
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.trace import Trace

OVERHEAD = 1  # reruns may take as long as all ops, then it gives up, as the paper does
EVICTIONS = 100  # for each buffer, and then it gives up as well (not tuned)
TRIES = 12  # budgets of the simulated runtime
CLOSE = 200  # budgets closer than this part of the limit are the same (not tuned)


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Dtr(PlannerRecord):
    """The planner `dtr`, which says what its options are."""

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
    """Simulate DTR's runtime over one iteration within a budget.

    Parameters
    ----------
    trace : Trace
    machine : Machine
        Gives the time of ops; copies are never made.
    budget : int
        Bytes that the device has.
    heuristic, free : str
        As in `dtr`.
    overhead : float
        It gives up where reruns take more than this part of the time of all ops.

    Returns
    -------
    OnlineRun
        What the reruns took, and when each storage was on the device.

    Raises
    ------
    ValueError
        An option that is none.

    Notes
    -----
    O(evictions * storages), as the paper's: each eviction looks at all storages on the device.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("vgg16")
    >>> run = online(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * 3 // 4)
    >>> run.how == RAN, run.again > 0
    (True, True)
    """
    one_of("heuristic", heuristic, HEURISTICS)
    one_of("free", free, POLICIES)
    finite(overhead=overhead)
    return _within(Remade.of(trace, machine), budget, heuristic, free, overhead)


def _within(s: Remade, budget: int, heuristic: str, free: str, overhead: float) -> OnlineRun:
    """Run through an iteration within a budget, its options checked."""
    most, room = int(overhead * int(s.duration.sum())), EVICTIONS * len(s.size)
    return follow(s, budget, HEURISTICS[heuristic], POLICIES[free], most, room)


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
    """Plan what DTR's runtime does within a budget: it evicts what a heuristic says, and makes it again on demand.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    heuristic : str
        What is evicted first, by the paper's names; see `gpumem.swap.dtr.scores`. `eq`: the time to make a storage and
        the classes of its evicted neighbours again, by its bytes and by how long it was not used. `dtr`: the same with
        the exact neighbourhood. `local`: with the storage alone. `msps`: the time of all evicted ones that it is made
        of and its own, by its bytes. `lru`: what was used longest ago. `size`: the largest.
    free : str
        What becomes of a storage that the program refers to no more. `evict`: it is evicted at once. `banish`: it is
        freed for good as soon as nothing made of it is evicted, and what was made of it is never evicted from then on.
        `ignore`: nothing.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Returns
    -------
    Plan
        Of `Recompute` decisions, and of `Hold` where reruns read what would be gone.

    Notes
    -----
    A dozen simulated iterations at most. The runtime makes one thing after another; in a plan all that is made at one
    place runs there together, and dead tails are dropped, so that the load of the plan is above the runtime's budget,
    or below it. So budgets are tried, the limit first, until one more could not do better, and the plan that takes the
    least is returned.

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
    s, judge = Remade.of(trace, machine), Judge(trace, machine, limit)
    tried = _Budgets(floor(trace)[1], trace.peak_live_bytes, limit)
    for _ in work.each(range(TRIES)):
        run, slack = _within(s, tried.budget, heuristic, free, OVERHEAD), FAR
        if run.how == RAN:
            plan = Plan.of(trace, decisions(trace, run.stays))
            swapped = plan.apply(trace)
            judge.offer(plan, swapped)
            slack = limit - swapped.peak_live_bytes
        if not tried.go_on(slack):
            break
    if judge.best is None:
        raise judge.missed("another heuristic, or a planner that swaps, may get lower")
    return judge.plan()


@dataclass(slots=True)
class _Budgets:
    """The budgets to try: between one whose plan is within the limit, or that was too little, and one above it."""

    low: int  # the highest that was enough for a plan within the limit, or not even for an iteration
    high: int  # the lowest with a plan above the limit
    budget: int
    limit: int = 0

    def __post_init__(self) -> None:
        self.limit = self.budget

    def go_on(self, slack: int) -> bool:
        """Say whether another budget is worth trying, by the bytes that the last left below the limit."""
        if slack >= 0:
            self.low = max(self.low, self.budget)
        else:
            self.high = min(self.high, self.budget)
        least = self.limit // CLOSE
        guess = self.budget + (slack if slack < 0 else max(slack, least))
        if not self.low < guess < self.high:
            guess = (self.low + self.high) // 2
        self.budget = guess
        return self.high - self.low > max(least, 1)
