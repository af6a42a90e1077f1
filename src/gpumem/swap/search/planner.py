"""Search: which gaps to swap, in which order the engines copy, and when, by annealing towards the bound."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from gpumem._strict import strict
from gpumem.deadline import Deadline
from gpumem.errors import NotReached
from gpumem.machine import Machine
from gpumem.simulate import baseline, simulate
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.autoswap.scores import SCORES
from gpumem.swap.judge import Judge
from gpumem.swap.limits import fits, floor
from gpumem.swap.plan import Plan
from gpumem.swap.search.annealing import Annealing
from gpumem.trace import Trace

START = 0.4  # of the time, at most, for AutoSwap's plans


@strict
def search(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    placed: bool = False,
    seed: int = 0,
    effort: float = 1.0,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Plan swaps for a load limit by annealing: no stall where one such plan is found, else as little as possible.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    placed : bool
        Count a buffer from the start of the op in which its copy-in starts: for plans that will be placed.
    seed : int
        Of the random steps. The same seed and effort give the same plan.
    effort : float
        Work, not time: 1 takes up to half a minute.
    seconds : float, optional
        The whole time; see `gpumem.swap`.
    progress : callable
        Told how far it got.

    Returns
    -------
    Plan
        By the capacity clock never slower than AutoSwap's best with any one of its scores.

    Raises
    ------
    NotReached
        The pinned-host budget leaves a load above `limit`.
    ValueError
        An effort that is not positive.

    Notes
    -----
    A state says which gaps are swapped, in which order each engine copies, and how long each op waits. Its cost
    is found without a clock (see `_engines`): O(ops + gaps), 5 to 40 us. First the limit sinks from the peak,
    greedily and by annealing, no op waiting. If it does not get to the limit, AutoSwap's plan with its stalls
    is annealed at the limit. The capacity clock judges what comes out. Gaps of less than 1/5000 of the peak are
    left alone. With several compute streams, times are those of the unswapped iteration, and the clock may
    find stalls that the state does not have.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> limit = trace.peak_load * 61 // 100
    >>> plan = search(trace, machine, limit, effort=0.01)
    >>> simulate(plan.apply(trace), machine, capacity=limit).overhead(simulate(trace, machine))
    0.0
    """
    until = Deadline.within(seconds)
    if fits(trace, limit):
        return Plan.of(trace)
    progress("AutoSwap")
    judge, start = Judge(trace, machine, limit), until.part(START)
    for score in start.each(SCORES):
        with suppress(NotReached):
            judge.offer(autoswap(trace, machine, limit, score=score, peaks="all", threshold=1, seconds=start.seconds))
    found = Annealing(trace, machine, limit, effort, seed, until, progress, placed=placed)
    if not len(found.w) or judge.stall == 0 or until.over():
        return judge.plan(until)
    if found.without_stalls(0.4):
        judge.offer(found.plan())
    elif judge.line is not None:
        found.with_stalls(0.6, judge.plan(until), judge.line)
        judge.offer(found.plan())
    return judge.plan(until)


@strict
def lowest(
    trace: Trace,
    machine: Machine,
    *,
    stall: float = 0.005,
    seed: int = 0,
    effort: float = 1.0,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Plan, int]:
    """Plan for the lowest load limit that costs at most a fraction `stall` of an iteration.

    Parameters, errors and notes are those of `search`; there is always a plan, at worst the empty one.

    Returns
    -------
    plan : Plan
    limit : int
        Bytes.
    """
    until, least = Deadline.within(seconds), floor(trace)[1]
    found = Annealing(trace, machine, least, effort, seed, until, progress)
    if trace.peak_load <= least or not len(found.w):
        return Plan.of(trace), trace.peak_load
    found.without_stalls(0.6)
    reached = [(found.plan(), int(found.limits[2]))]
    if stall > 0:
        found.a_little_stall(0.4, int(stall * found.p.turn))
        reached.append((found.plan(), int(found.limits[2])))
    kept = [(Plan.of(trace), trace.peak_load)]
    for plan, limit in reached:
        swapped = plan.apply(trace)
        limit = max(limit, swapped.peak_load)
        if simulate(swapped, machine, capacity=limit).overhead(baseline(trace, machine, swapped)) <= stall:
            kept.append((plan, limit))
    return min(kept, key=lambda row: row[1])
