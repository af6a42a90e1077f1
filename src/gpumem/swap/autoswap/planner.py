"""AutoSwap: score the gaps that straddle the peak, take the best until the load fits, schedule the copies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict, strict_fields
from gpumem.base.errors import NotReached
from gpumem.base.jit import jit
from gpumem.base.names import one_of
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.schedule import schedule
from gpumem.swap.autoswap.scores import SCORES, Candidates
from gpumem.swap.facts import segment_tree as _tree
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.options import option
from gpumem.swap.facts.pinned import Pinned, Values, take
from gpumem.swap.plan import Plan
from gpumem.swap.plan.gaps import gaps, lasts, straddle, without
from gpumem.swap.planner import PlannerRecord, Proposal, plans
from gpumem.trace import I64, Trace


def select(c: Candidates, order: I64, limit: int, host: Pinned, *, every: bool = False) -> tuple[I64, I64]:
    """Take candidates in `order` until the load is at most `limit`, or there are no more.

    Parameters
    ----------
    c, limit
        The gaps, and bytes on the device.
    order : int64[m]
        Positions in `c`, the best first.
    host : Pinned
        The account of `c.gaps`, with nothing taken yet; what is taken is noted there.
    every : bool
        Whether candidates that help no op above the limit are taken in their turn as well.

    Returns
    -------
    chosen : int64[...]
        The taken ones, ascending.
    load : int64[n]
        What they leave, each absent over its whole gap.

    Notes
    -----
    O((n + m) log n). `autoswap` says which candidates are passed over.
    """
    tree, budget = _tree.build(c.load), host.budget
    _take(order, c.gaps.after, c.gaps.before, c.gaps.size, *tree, host.columns, len(c.load), limit, budget, every)
    chosen = np.flatnonzero(host.columns.taken)
    return chosen, without(c.load, c.gaps.where(chosen))


@jit
def _take(
    order: I64,
    after: I64,
    before: I64,
    size: I64,
    top: I64,
    add: I64,
    host: Values,
    n: int,
    limit: int,
    pinned: int,
    every: bool,
) -> None:
    """Take candidates into the account of the host; `top`, `add` are the tree of the load."""
    for k in order:
        if top[1] <= limit:
            return
        if not every and _tree.largest_around(top, add, n, after[k] + 1, before[k]) <= limit:
            continue
        if take(host, n, pinned, k, after[k], before[k]):
            _tree.add_around(top, add, n, after[k] + 1, before[k], -size[k])


ALL = "all"  # scores: the quickest plan counts
PEAKS = ("first", "all")
TARGETS = (1.0, 0.85, 0.7)
PRINTED = (1.0,)  # targets: the paper stops selecting where the load is at the limit (IV-D)


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class AutoSwap(PlannerRecord):
    """The planner `autoswap`, which says what its options are."""

    score: str = option("swdoa", (*SCORES, ALL))
    peaks: str = option("first", PEAKS)
    threshold: int = option(2**20)
    targets: tuple[float, ...] = option(TARGETS)
    as_printed: bool = False


@plans(AutoSwap)
def autoswap(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    score: str = "swdoa",
    peaks: str = "first",
    threshold: int = 2**20,
    targets: tuple[float, ...] = TARGETS,
    as_printed: bool = False,
    seconds: float | None = None,
) -> Plan:
    """Plan swaps that bring the load of `trace` down to `limit` bytes.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    score : str
        `doa`, `aoa`, `wdoa` or `swdoa`; `all`: the plan of that whose iteration is shortest counts.
    peaks : str
        `first`: candidates straddle the first op of largest load, as in the paper. `all`: they straddle
        any op whose load is above the limit; without it some nets cannot reach 90 %.
    threshold : int
        Smallest candidate in bytes.
    targets : tuple of float
        Fractions of the limit, in (0, 1]. The selection goes on until the load is that low; the plan whose
        iteration is shortest by the capacity clock counts, the first of several. `(1,)` is the paper's rule.
    as_printed : bool
        The paper's selection: candidates straddle the first peak, and are taken one after the other, whether they help
        or not, until the load is at the limit. `peaks` and `targets` are not looked at.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Raises
    ------
    NotReached
        All candidates that the pinned budget allows leave a load above `limit` (`reached`: that load; with
        pinned memory to spare it is the paper's load_min).

    Notes
    -----
    Near-linear: O((n + m) log n) for m candidates, and for each target that is tried a rewrite and a simulation;
    with one target there is neither, and the first plan without overhead ends the search. Scores see the time line
    without swapping. A gap that straddles no op above the target at its turn is passed over (the paper takes it, see
    `as_printed`, and moves its bytes for nothing), and so is one that would exceed the pinned-host budget. The schedule
    is the paper's as we read it: copies in the order of their accesses, one after the other, and where the load would
    exceed the limit an op waits until enough of those handed over have ended.

    Why targets: a load that just fits leaves no room for the copies under way, and ops wait for them.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> limit = trace.peak_live_bytes * 7 // 10
    >>> plan = autoswap(trace, machine, limit)
    >>> plan.apply(trace).peak_live_bytes <= limit
    True

    References
    ----------
    Zhang et al. 2019, section IV.
    """
    if fits(trace, limit):
        return Plan.of(trace)
    if as_printed:
        peaks, targets = PEAKS[0], PRINTED
    found = candidates(trace, machine, limit, peaks=peaks, threshold=threshold)
    best, missed = list[Proposal](), list[NotReached]()
    for name in [*SCORES] if score == ALL else [score]:
        order, judge = np.argsort(-SCORES[name](found), kind="stable"), len(targets) > 1 or score == ALL
        try:
            best.append(
                best_plan(trace, machine, limit, found, order, work.each(targets), judge=judge, every=as_printed)
            )
        except NotReached as stop:
            missed.append(stop)
    if not best:
        raise min(missed, key=lambda stop: stop.reached)
    return min(best, key=lambda proposal: proposal.makespan).plan


def best_plan(
    trace: Trace,
    machine: Machine,
    limit: int,
    found: Candidates,
    order: I64,
    targets: Iterable[float] = TARGETS,
    *,
    judge: bool = True,
    every: bool = False,
) -> Proposal:
    """Return the best plan that takes candidates in `order`, and its makespan by the capacity clock.

    Parameters and errors as in `autoswap` and `select`; where `judge` is False the plan of the first target is as good
    as any (its makespan is given as 0).
    """
    best: Proposal | None = None
    seen: set[bytes] = set()
    for target in targets:
        host = Pinned(trace, found.gaps, machine.pinned)
        chosen, load = select(found, order, int(limit * target), host, every=every)
        reached = int(load.max())
        if reached > limit:
            raise NotReached(reached, limit, hint=_hint(found, reached, machine))
        if chosen.tobytes() in seen:  # there are no more to take
            continue
        seen.add(chosen.tobytes())
        plan = Plan.of(trace, schedule(trace, machine, found.gaps.where(chosen), load, limit, found.line))
        makespan = simulate(plan.apply(trace), machine, capacity=limit).makespan if judge else 0
        if best is None or makespan < best.makespan:
            best, holds = Proposal(plan, makespan), host
        if makespan <= found.line.makespan:
            break
    if best is None:
        raise NotReached(trace.peak_live_bytes, limit, hint=work.LATE)
    holds.settle(best.plan.swaps)
    return best


@strict
def candidates(
    trace: Trace, machine: Machine, limit: int, *, peaks: str = "first", threshold: int = 2**20
) -> Candidates:
    """Return the gaps that AutoSwap considers (section IV-A); parameters as in `autoswap`."""
    one_of("peaks", peaks, PEAKS)
    load, found = trace.live_bytes(), gaps(trace)
    high = np.arange(trace.n) == trace.peak[0] if peaks == "first" else load > limit
    found = found.where(straddle(found, high) & (found.size >= max(threshold, 1)))
    line = simulate(trace, machine)
    return Candidates(
        found,
        lasts(found, line),
        machine.out.copy_ns(found.size),
        machine.into.copy_ns(found.size),
        load,
        machine.durations(trace),
        line,
        peaks,
    )


def _hint(found: Candidates, reached: int, machine: Machine) -> str:
    if reached > load_min(found):
        return f"{machine.pinned} bytes of pinned memory hold no more"
    return "peaks `all` has more candidates" if found.peaks == "first" else ""


def load_min(c: Candidates) -> int:
    """Return the peak with every candidate absent over its whole gap (section VI-B1)."""
    return int(without(c.load, c.gaps).max())
