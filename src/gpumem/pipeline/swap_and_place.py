"""Swap and placement together: swap until the *placed* trace fits a pool, then look for a better plan around that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpumem.base.arguments import expect, strict
from gpumem.base.deadline import NEVER, Deadline
from gpumem.base.display import Shown
from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator.timeline import Timeline
from gpumem.swap.plan import Plan
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

STEPS = 200  # load limits are tried 1/200 of the peak load apart
ABOVE = 2  # steps above the first load limit that are tried as well


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
def in_pool(
    trace: Trace,
    limit: int,
    *,
    swap: Callable[[Trace, int], Plan],
    pool: Callable[[Trace], Placement],
    load_limit: int | None = None,
    until: Deadline = NEVER,
    progress: Callable[[str], None] = lambda text: None,
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
    until : Deadline
        When to give up. Where the time is short the load limit is lowered in larger steps.
    progress : callable
        Told what is being tried.

    Raises
    ------
    Infeasible
        Even the load cannot come down to `limit`.
    NotReached
        No load limit that the planner reaches gives a placement that fits (`reached`: the lowest height).

    Notes
    -----
    A plain search: the highest load limit that fits, in steps of 1/200 of the peak load. Zhang et al. 2019, sections V
    and VI-C.

    Examples
    --------
    >>> from gpumem.pool import best_fit
    >>> trace = Trace.from_lifetimes([4, 2], [0, 1], [2, 3])
    >>> in_pool(trace, 1000, swap=lambda t, n: Plan(), pool=best_fit).placement.height
    258
    """
    step = max(trace.peak_load // STEPS, 1)
    load_limit, lowest, tries = limit if load_limit is None else min(load_limit, limit), 2**62, 0
    above, stride, most = load_limit, 1, STEPS  # the last limit that was reached; steps from there, at most
    while load_limit > 0 and not (tries and until.over()):
        progress(f"trying a load limit of {load_limit / max(trace.peak_load, 1):.1%} of the peak load")
        try:
            found = at_load(trace, load_limit, swap=swap, pool=pool)
        except (NotReached, Infeasible) as stop:
            if lowest == 2**62:
                raise
            if stride > 1 and not until.over():  # too far at once
                most = stride = stride // 2
                load_limit = above - step * stride
                continue
            hint = stop.hint if isinstance(stop, NotReached) else ""
            raise NotReached(lowest, limit, "a pool", until.hint(hint)) from stop
        if found.placement.height <= limit:
            return found
        lowest, tries = min(lowest, found.placement.height), tries + 1
        above = min(load_limit, trace.peak_load)
        stride = min(until.stride(tries, above // step), most)
        load_limit = above - step * stride
    raise NotReached(lowest, limit, "a pool", until.hint())


@strict
def settle(
    trace: Trace,
    limit: int,
    first: Combined,
    *,
    swaps: Iterable[Callable[[Trace, int], Plan]],
    pool: Callable[[Trace], Placement],
    judge: Callable[[Combined], Timeline],
    least: int = 0,
    until: Deadline = NEVER,
    progress: Callable[[str], None] = lambda text: None,
) -> Combined:
    """Look for a better plan around one that fits the pool: higher loads wait less, but are harder to place.

    Parameters
    ----------
    limit, pool, progress
        As in `in_pool`.
    first : Combined
        A plan whose placement fits. Its load limit, and two that are up to 1/100 of the peak load above it, are tried.
    swaps : iterable of callable
        As `swap` in `in_pool`, each with another plan for the same load: those that do not wait are equal swaps, among
        which the placement chooses.
    judge : callable
        Runs a plan by the clock that counts.
    least : int
        Nanoseconds that no plan can beat, so that the search ends there.
    until : Deadline
        When to end with the best plan so far.

    Returns
    -------
    Combined
        The one whose iteration is shortest; `first` where none is better.
    """
    step = max(trace.peak_load // STEPS, 1)
    best, shortest = first, judge(first).makespan
    for swap in swaps:
        for level in range(ABOVE, -1, -1):
            if shortest <= least or until.over():
                return best
            load_limit = min(first.load_limit + level * step, limit)
            progress(f"settling at a load limit of {load_limit / max(trace.peak_load, 1):.1%} of the peak load")
            try:
                found = at_load(trace, load_limit, swap=swap, pool=pool)
            except (NotReached, Infeasible):
                continue
            if found.placement.height <= limit:
                if (makespan := judge(found).makespan) < shortest:
                    best, shortest = found, makespan
                break
    return best


def cheapest(
    names: Iterable[str], solve: Callable[[str], Combined], judge: Callable[[Combined], Timeline], *, least: int = 0
) -> tuple[str, Combined, Timeline]:
    """Solve by each name, say of a score, and keep what has the shortest iteration; ties go to the earlier name.

    `judge` and `least` are as in `settle`.

    Raises
    ------
    Infeasible, NotReached
        No way gets to the limit: what the one that came closest raised.
    """
    ways: list[tuple[str, Combined, Timeline]] = []
    stops: list[NotReached] = []
    for name in names:
        try:
            found = solve(name)
        except NotReached as stop:
            stops.append(stop)
            continue
        ways.append((name, found, judge(found)))
        if ways[-1][2].makespan <= least:
            break
    if not ways:
        raise min(stops, key=lambda stop: stop.reached)
    return min(ways, key=lambda way: way[2].makespan)
