"""The lowest limit that a swap planner reaches at (almost) no overhead, next to what is possible at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.names import name_of
from gpumem.base.units import human, percent
from gpumem.base.work import now
from gpumem.pipeline.report import columns
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap.plan import Plan
from gpumem.trace import Trace

FREE = 0.005  # an overhead up to this counts as none
MIB = 2**20

Planner = Callable[[Trace, Machine, int], Plan]


@dataclass(frozen=True, slots=True, repr=False)
class ZeroOverheadLimit(Shown):
    """The lowest limit at which a planner costs nothing, in bytes.

    Parameters
    ----------
    trace, machine, planner : str
        Names.
    peak_live_bytes : int
        Of the trace without a plan.
    limit : int
        The lowest limit that was tried and cost at most `free`.
    unbroken : int
        Down to here every limit that was tried cost at most `free`; above `limit` where the overhead is not monotone.
    overhead : float
        At `limit`, by the byte-counting simulation, as a fraction.
    plan : Plan
        For `limit`.
    seconds : float
        Spent on all limits together.
    bound : int, optional
        The certified limit below which every plan stalls.
    """

    trace: str
    machine: str
    planner: str
    peak_live_bytes: int
    limit: int
    unbroken: int
    overhead: float
    plan: Plan
    seconds: float
    bound: int | None = None

    def _facts(self) -> Facts:
        part = self.limit / self.peak_live_bytes if self.peak_live_bytes else 0.0
        facts = {
            "": f"{self.planner} on {self.trace}",
            "limit": f"{human(self.limit)} ({percent(part)} of the peak live bytes)",
        }
        return facts | {
            "overhead": percent(self.overhead),
            "bound": "none" if self.bound is None else human(self.bound),
        }

    @property
    def reduction(self) -> float:
        """What is saved, as a fraction of the peak live bytes."""
        return 1 - self.limit / self.peak_live_bytes if self.peak_live_bytes else 0.0

    @property
    def achieved(self) -> float | None:
        """What is saved, as a fraction of what the bound leaves room for; None without a bound, or without room."""
        return achieved(self.limit, self.bound, self.peak_live_bytes)

    def row(self) -> dict[str, Any]:
        """Return all figures but the plan: bytes, fractions, seconds."""
        fields = ("trace", "machine", "planner", "peak_live_bytes", "limit", "unbroken", "overhead", "bound", "seconds")
        row = {name: getattr(self, name) for name in fields}
        return row | {"reduction": self.reduction, "achieved": self.achieved}


def achieved(limit: int, bound: int | None, peak: int) -> float | None:
    """Return `(1 - limit / peak) / (1 - bound / peak)`: the part of the possible reduction that a limit is.

    It may exceed 1 a little, since a plan may cost `FREE` and the bound nothing.

    >>> achieved(60, 50, 100)
    0.8
    """
    if bound is None or bound >= peak:
        return None
    return (peak - limit) / (peak - bound)


@strict
def overhead_at(trace: Trace, machine: Machine, planner: Planner, limit: int) -> float | None:
    """Return what a planner costs at a load limit.

    Parameters
    ----------
    trace : Trace
    machine : Machine
    planner : callable
        `planner(trace, machine, limit) -> Plan`; give options by `functools.partial`.
    limit : int
        Bytes, of the load.

    Returns
    -------
    float or None
        By byte-counting simulation at it, as a fraction of the unswapped iteration; None where the planner raises
        `Infeasible` or `NotReached`.

    Raises
    ------
    ValueError
        What the planner says of bad options; a plan whose load exceeds the limit.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.swap import autoswap
    >>> trace = bundled("vgg16")
    >>> overhead_at(trace, Machine.named("gtx1080ti"), autoswap, trace.peak_live_bytes * 7 // 10)
    0.0
    """
    found = _attempt(trace, machine, planner, limit, simulate(trace, machine))
    return found[1] if isinstance(found, tuple) else None


@strict
def lowest_limit(
    trace: Trace,
    machine: Machine,
    planner: Planner,
    *,
    free: float = FREE,
    step: float = 0.005,
    patience: int = 10,
    name: str = "",
    bound: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> ZeroOverheadLimit:
    """Return the lowest load limit at which a planner costs at most `free`.

    Parameters
    ----------
    trace, machine, planner
        As in `overhead_at`.
    free : float
        An overhead, by the byte-counting simulation at the limit.
    step : float
        Limits are tried downwards from the peak live bytes, this fraction of it apart.
    patience : int
        The scan ends after so many limits in a row that cost more or are not reached.
    name : str
        Of the planner, for people; that of the function where left out.
    bound : int, optional
        What `achieved` compares with: `swap.bound.zero_stall_limit(trace, machine).limit`.
    progress : callable
        Told which limit is tried.

    Returns
    -------
    ZeroOverheadLimit
        At worst of the peak live bytes and the empty plan.

    Raises
    ------
    ValueError
        A `step` outside (0, 1], a negative `free`, a `patience` below 1; what the planner says.

    Notes
    -----
    At most 2 / step plans and simulations. Overheads are not monotone (Zhang et al. 2019, section VI-B2), hence `limit`
    and `unbroken`; and since only limits a step apart are tried, a lower one in between may exist. Where the planner
    says how far it got (`NotReached.reached`), that limit is tried as well: static planners have no other.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.swap import autoswap
    >>> found = lowest_limit(bundled("vgg16"), Machine.named("gtx1080ti"), autoswap, step=0.1)
    >>> found.planner, round(found.reduction, 3), found.limit == found.unbroken
    ('autoswap', 0.3, True)
    """
    _check(free, step, patience)
    begin, base, peak = now(), simulate(trace, machine), trace.peak_live_bytes
    nothing = Plan.of(trace)
    best = peak, _judged(trace, machine, nothing, peak, base), nothing
    unbroken, misses, broken = peak, 0, False
    for limit in _limits(peak, step):
        if misses == patience:
            break
        progress(f"trying a limit of {limit / peak:.1%} of the peak live bytes")
        found = _attempt(trace, machine, planner, limit, base)
        if isinstance(found, Infeasible):
            break
        missed = isinstance(found, NotReached)
        if isinstance(found, NotReached) and limit < found.reached < best[0]:
            limit, found = found.reached, _attempt(trace, machine, planner, found.reached, base)
        if isinstance(found, tuple) and found[1] <= free:
            best, misses = (limit, found[1], found[0]), 0
            unbroken = unbroken if broken else limit
        else:
            missed = True
        misses, broken = misses + missed, broken or missed
    seconds = now() - begin
    limit, cost, plan = best
    return ZeroOverheadLimit(
        trace.name, machine.name, name or name_of(planner), peak, limit, unbroken, cost, plan, seconds, bound
    )


@strict
def lowest_limit_of(
    trace: Trace,
    machine: Machine,
    lowest: Callable[[Trace, Machine], tuple[Plan, int]],
    *,
    name: str = "",
    bound: int | None = None,
) -> ZeroOverheadLimit:
    """Return the lowest zero-overhead limit of a planner that looks for the lowest limit itself.

    Parameters
    ----------
    lowest : callable
        `lowest(trace, machine) -> (plan, limit)`, say `functools.partial(swap.search.lowest, stall=0.005)`.
    trace, machine, name, bound
        As in `lowest_limit`.

    Returns
    -------
    ZeroOverheadLimit
        Its overhead is measured here, not taken on trust; one limit is known, so `unbroken` is that limit.

    Raises
    ------
    ValueError
        A plan whose load exceeds the limit.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.swap import autoswap
    >>> def seventy(trace, machine):
    ...     limit = trace.peak_live_bytes * 7 // 10
    ...     return autoswap(trace, machine, limit), limit
    >>> round(lowest_limit_of(bundled("vgg16"), Machine.named("gtx1080ti"), seventy).reduction, 3)
    0.3
    """
    begin = now()
    plan, limit = lowest(trace, machine)
    seconds = now() - begin
    cost = _judged(trace, machine, plan, limit, simulate(trace, machine))
    name, peak = name or name_of(lowest), trace.peak_live_bytes
    return ZeroOverheadLimit(trace.name, machine.name, name, peak, limit, limit, cost, plan, seconds, bound)


@strict
def table(limits: Iterable[ZeroOverheadLimit]) -> str:
    """Return a line for each limit; `all above` is said where a lower limit is free as well, but not all down to it."""
    head = ["trace", "planner", "peak MiB", "limit MiB", "limit", "all above", "overhead", "bound", "achieved"]
    rows = [[*head, "seconds"]]
    for k in limits:
        part = partial(_part, whole=k.peak_live_bytes)
        got = "" if k.achieved is None else f"{k.achieved:.1%}"
        above = part(k.unbroken) if k.unbroken != k.limit else ""
        sizes = [f"{size / MIB:.1f}" for size in (k.peak_live_bytes, k.limit)]
        shares = [part(k.limit), above, f"{k.overhead:.2%}", part(k.bound), got]
        rows.append([f"{k.trace}", k.planner, *sizes, *shares, f"{k.seconds:.1f}"])
    return columns(rows)


def _part(size: int | None, whole: int) -> str:
    return "" if size is None or not whole else f"{size / whole:.1%}"


def _check(free: float, step: float, patience: int) -> None:
    if not 0 < step <= 1:
        raise ValueError(f"step: {step} is not in (0, 1]")
    if not free >= 0:
        raise ValueError(f"free: {free} is no overhead >= 0")
    if patience < 1:
        raise ValueError(f"patience: {patience} is below 1")


def _limits(peak: int, step: float) -> list[int]:
    """Limits below the peak, the highest first."""
    found = [round(peak * (1 - step * k)) for k in range(1, int(1 / step) + 1)]
    return [limit for limit in dict.fromkeys(found) if 0 < limit < peak]


def _judged(trace: Trace, machine: Machine, plan: Plan, limit: int, base: Timeline) -> float:
    swapped = plan.apply(trace)
    return simulate(swapped, machine, capacity=limit).overhead(baseline(trace, machine, swapped, known=base))


def _attempt(
    trace: Trace, machine: Machine, planner: Planner, limit: int, base: Timeline
) -> tuple[Plan, float] | NotReached | Infeasible:
    try:
        plan = planner(trace, machine, limit)
        return plan, _judged(trace, machine, plan, limit, base)
    except (NotReached, Infeasible) as stop:
        return stop
