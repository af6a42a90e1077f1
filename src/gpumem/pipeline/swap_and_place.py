"""Swap and placement together: swap until the *placed* trace fits a pool, then look for a better plan around that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpumem.base import work
from gpumem.base.arguments import expect, strict
from gpumem.base.display import Shown
from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator.timeline import Timeline
from gpumem.swap.plan import Plan
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

# Load limits are tried 1/200 of the peak live bytes apart: not tuned.
STEPS = 200
FAR = 2**62  # a height that nothing has
# Steps above what halving found: of 435 runs (29 recorded traces, three limits, five planners) 11 had passed over
# a higher limit, by 2 to 8 steps.
NEAR = 8
# Steps above the first load limit that are tried as well: not tuned.
ABOVE = 2


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Combined(Shown):
    """A plan, the trace it makes, where that lies, and the load limit that the plan was made for."""

    plan: Plan
    trace: Trace
    placement: Placement
    load_limit: int


@strict
def at_load(
    trace: Trace, load_limit: int, *, swap: Callable[[Trace, int], Plan], pool: Callable[[Trace], Placement]
) -> Combined:
    """Plan for a load limit, apply, place."""
    plan = swap(trace, load_limit)
    expect("planner", "what it returned", plan, "Plan")
    swapped = plan.apply(trace)
    placement = pool(swapped)
    expect("placer", "what it returned", placement, "Placement")
    return Combined(plan, swapped, placement, load_limit)


@strict
@work.budgeted
def in_pool(
    trace: Trace,
    limit: int,
    *,
    swap: Callable[[Trace, int], Plan],
    pool: Callable[[Trace], Placement],
    load_limit: int | None = None,
    seconds: float | None = None,
    progress: work.Progress | None = None,
) -> Combined:
    """Lower the load limit until the placement fits a pool of `limit` bytes.

    Parameters
    ----------
    limit : int
        Bytes of the pool.
    swap, pool : callable
        `swap(trace, load_limit) -> Plan` and `pool(trace) -> Placement`.
    load_limit : int, optional
        Bytes to start from; `limit` where left out.
    seconds : float, optional
        When to end with what fits by then.
    progress : callable, optional
        Told what is being tried.

    Raises
    ------
    Infeasible
        Even the live bytes cannot come down to `limit`.
    NotReached
        No load limit that the planner reaches gives a placement that fits (`reached`: the lowest height).

    Notes
    -----
    The highest load limit that fits, in steps of 1/200 of the peak live bytes: down by what the placement exceeds the
    pool, then by twice as much at a time, until something fits; then halved; then those of the 8 steps above that were
    not tried, from above. A lower load limit may be harder to place than a higher one, so a higher one that fits may be
    passed over. Zhang et al. 2019, sections V and VI-C.

    Examples
    --------
    >>> from gpumem.pool import best_fit
    >>> trace = Trace.from_lifetimes([4, 2], [0, 1], [2, 3])
    >>> in_pool(trace, 1000, swap=lambda t, n: Plan(), pool=best_fit).placement.height
    258
    """
    step = max(trace.peak_live_bytes // STEPS, 1)
    limit_of_load = limit if load_limit is None else min(load_limit, limit)
    top, lowest, hint = min(limit_of_load, trace.peak_live_bytes), FAR, ""
    steps, fits = _Steps(behind=max((top - 1) // step, 0) + 1), None
    while (k := steps.next()) is not None and not (lowest < FAR and work.over()):
        lower = top - k * step if k else limit_of_load
        work.tell(f"trying a load limit of {lower / max(trace.peak_live_bytes, 1):.1%} of the peak live bytes")
        try:
            combined = at_load(trace, lower, swap=swap, pool=pool)
        except (NotReached, Infeasible) as stop:
            if lowest == FAR:
                raise
            hint = stop.hint if isinstance(stop, NotReached) else ""
            # One that gives up above what it has reached was late, or the plans are not monotone: on below it.
            steps.unreached(k) if fits is None else steps.too_much(k)
            continue
        if (height := combined.placement.height) <= limit:
            fits = combined
            steps.enough(k)
        else:
            lowest = min(lowest, height)
            steps.too_much(k, -(-(height - limit) // step))
    if fits is None:
        raise NotReached(lowest, limit, "a pool", work.hint(hint))
    return fits


@dataclass(slots=True)
class _Steps:
    """The first step down that does: by leaps as long as none is known, then halved. Steps before it do not do."""

    behind: int  # the first that does, or where there is no way on
    before: int = -1  # the last that does not
    leap: int = 1
    halved: bool = False
    look: int = STEPS  # how many steps before the one behind are tried in the end: all, where none does
    tried: set[int] = field(default_factory=set)

    def next(self) -> int | None:
        """Return which to try, None where the one behind is the first."""
        if self.before + 1 < self.behind:
            k = (self.before + self.behind) // 2 if self.halved else min(self.before + self.leap, self.behind - 1)
        else:
            left = set(range(max(self.behind - self.look, 0), self.behind)) - self.tried
            if not left:
                return None
            k = min(left)
        self.tried.add(k)
        return k

    def too_much(self, k: int, missing: int = 1) -> None:
        """Go on below: at least by the steps that are missing, and twice as far as the last time."""
        self.leap = max(2 * self.leap, missing) if self.before >= 0 else max(self.leap, missing)
        self.before = max(self.before, k)

    def unreached(self, k: int) -> None:
        """Go no further down."""
        self.behind, self.halved = k, True

    def enough(self, k: int) -> None:
        """Go no further down, and look but nearby at what was leapt over."""
        self.unreached(k)
        self.look = NEAR


@strict
def refine_limit(
    trace: Trace,
    limit: int,
    first: Combined,
    *,
    swaps: Iterable[Callable[[Trace, int], Plan]],
    pool: Callable[[Trace], Placement],
    judge: Callable[[Combined], Timeline],
    least: int = 0,
) -> Combined:
    """Look for a better plan around one that fits the pool: higher limits wait less, but are harder to place.

    Parameters
    ----------
    limit, pool
        As in `in_pool`.
    first : Combined
        A plan whose placement fits. Its load limit, and two that are up to 1/100 of the peak live bytes above it, are
        tried.
    swaps : iterable of callable
        As `swap` in `in_pool`, each with another plan for the same load limit: those that do not wait are equal swaps,
        among which the placement chooses.
    judge : callable
        Runs a plan by the clock that counts.
    least : int
        Nanoseconds that no plan can beat, so that the search ends there.

    Returns
    -------
    Combined
        The one whose iteration is shortest, of those that were tried in time; `first` where none is better.
    """
    step = max(trace.peak_live_bytes // STEPS, 1)
    best, shortest = first, judge(first).makespan
    for swap in swaps:
        for level in range(ABOVE, -1, -1):
            if shortest <= least or work.over():
                return best
            load_limit = min(first.load_limit + level * step, limit)
            work.tell(
                f"refining at a load limit of {load_limit / max(trace.peak_live_bytes, 1):.1%} of the peak live bytes"
            )
            try:
                combined = at_load(trace, load_limit, swap=swap, pool=pool)
            except (NotReached, Infeasible):
                continue
            if combined.placement.height <= limit:
                if (makespan := judge(combined).makespan) < shortest:
                    best, shortest = combined, makespan
                break
    return best


def cheapest(
    names: Iterable[str], solve: Callable[[str], Combined], judge: Callable[[Combined], Timeline], *, least: int = 0
) -> tuple[str, Combined, Timeline]:
    """Solve by each name, say of a score, and keep what has the shortest iteration; ties go to the earlier name.

    `judge` and `least` are as in `refine_limit`.

    Raises
    ------
    Infeasible, NotReached
        No way gets to the limit: what the one that came closest raised.
    """
    candidates: list[tuple[str, Combined, Timeline]] = []
    stops: list[NotReached] = []
    for name in names:
        try:
            combined = solve(name)
        except NotReached as stop:
            stops.append(stop)
            continue
        candidates.append((name, combined, judge(combined)))
        if candidates[-1][2].makespan <= least:
            break
    if not candidates:
        raise min(stops, key=lambda stop: stop.reached)
    return min(candidates, key=lambda way: way[2].makespan)
