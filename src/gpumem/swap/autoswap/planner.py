"""AutoSwap: score the gaps that straddle the peak, take the best until the live bytes fit, schedule the copies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

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


def select(eligible: Candidates, order: I64, limit: int, host: Pinned, *, every: bool = False) -> tuple[I64, I64]:
    """Take candidates in `order` until the live bytes are at most `limit`, or there are no more (section IV-D).

    Parameters
    ----------
    eligible, limit
        The gaps, and bytes on the device.
    order : int64[m]
        Positions in `eligible`, the best first.
    host : Pinned
        The account of `eligible.gaps`, with nothing taken yet; what is taken is noted there.
    every : bool
        Whether candidates that help no op above the limit are taken in their turn as well.

    Returns
    -------
    chosen : int64[...]
        The taken ones, ascending.
    load : int64[n]
        The live bytes that they leave, each off the device over its whole gap.

    Notes
    -----
    O((n + m) log n). `autoswap` says which candidates are passed over.
    """
    spans, (top, add) = eligible.gaps, _tree.build(eligible.load)
    selection = _Selection(
        spans.after, spans.before, spans.size, top=top, add=add, host=host.columns, n=len(eligible.load)
    )
    _take(order, selection, limit, pinned=host.budget, every=every)
    chosen = np.flatnonzero(host.columns.taken)
    return chosen, without(eligible.load, spans.where(chosen))


class _Selection(NamedTuple):
    """What taking gaps reads and writes: the columns of the gaps, the tree of live bytes, the account of the host."""

    after: I64
    before: I64
    size: I64
    top: I64
    add: I64
    host: Values
    n: int  # ops


ROOT = 1  # in segment_tree node p has the children 2 p and 2 p + 1, so that 1 has the largest of all


@jit
def _take(order: I64, gaps: _Selection, limit: int, pinned: int, every: bool) -> None:
    """Take gaps into the account of the host until the peak is at most `limit`."""
    top, add, n = gaps.top, gaps.add, gaps.n
    for gap in order:
        if top[ROOT] <= limit:
            return
        start, stop = gaps.after[gap] + 1, gaps.before[gap]
        # Unless `every`: no op of the gap exceeds the limit any more, so its copies would be for nothing.
        if not every and _tree.largest_around(top, add, n, start, stop) <= limit:
            continue
        if take(gaps.host, n, pinned, gap, gaps.after[gap], gaps.before[gap]):
            _tree.add_around(top, add, n, start, stop, -gaps.size[gap])


ALL = "all"  # scores: the quickest plan counts
PEAKS = ("first", "all")
# Shares of the limit at which the selection stops; `benchmarks/speed/autoswap.py` compares them with the paper's rule.
TARGETS = (1.0, 0.85, 0.7)
PRINTED = (1.0,)  # the paper's target: it stops selecting where the live bytes are at the limit (section IV-D)


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class AutoSwap(PlannerRecord):
    """The planner `autoswap` and its options."""

    score: str = option("swdoa", (*SCORES, ALL))
    peaks: str = option("first", PEAKS)
    threshold: int = option(2**20)
    targets: tuple[float, ...] = option(TARGETS)
    as_printed: bool = False


@plans(AutoSwap)
def autoswap(  # noqa: PLR0913  a planner's options are its interface
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
    """Plan swaps that bring the peak live bytes of `trace` down to `limit`.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    score : str
        `doa`, `aoa`, `wdoa` or `swdoa`; `all`: the plan of that whose iteration is shortest counts.
    peaks : str
        `first`: candidates straddle the first op of the peak, as in the paper. `all`: they straddle
        any op whose live bytes exceed the limit; without it some nets cannot reach 90 %.
    threshold : int
        Smallest candidate in bytes.
    targets : tuple of float
        Fractions of the limit, in (0, 1]. The selection goes on until the live bytes are that low; the plan whose
        iteration is shortest in the byte-counting simulation counts, the first of several. `(1,)` is the paper's rule.
    as_printed : bool
        The paper's selection: candidates straddle the first peak, and are taken one after the other, whether they help
        or not, until the live bytes are at the limit. `peaks` and `targets` are ignored.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Raises
    ------
    NotReached
        All candidates that the pinned budget allows leave a peak above `limit` (`reached`: that peak; with
        pinned memory to spare it is the paper's load_min).

    Notes
    -----
    Near-linear: O((n + m) log n) for m candidates, and for each target that is tried a rewrite and a simulation;
    with one target there is neither, and the first plan without overhead ends the search. Scores see the time line
    without swapping. A gap that straddles no op above the target at its turn is passed over (the paper takes it, see
    `as_printed`, and moves its bytes for nothing), and so is one that would exceed the pinned-host budget. The schedule
    is the paper's as we read it: copies in the order of their accesses, one after the other, and where the live bytes
    would exceed the limit an op waits until enough of the enqueued copies have ended.

    Why targets: live bytes that just fit leave no free bytes for the copies in flight, and ops wait for them.

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
    eligible = candidates(trace, machine, limit, peaks=peaks, threshold=threshold)
    proposals, missed = list[Proposal](), list[NotReached]()
    simulates = len(targets) > 1 or score == ALL
    for name in [*SCORES] if score == ALL else [score]:
        order = np.argsort(-SCORES[name](eligible), kind="stable")
        tried = work.each(targets)
        try:
            proposals.append(
                best_plan(
                    trace, machine, limit, eligible, order=order, targets=tried, judge=simulates, every=as_printed
                )
            )
        except NotReached as stop:
            missed.append(stop)
    if not proposals:
        raise min(missed, key=lambda stop: stop.reached)
    return min(proposals, key=lambda proposal: proposal.makespan).plan


def best_plan(
    trace: Trace,
    machine: Machine,
    limit: int,
    eligible: Candidates,
    *,
    order: I64,
    targets: Iterable[float] = TARGETS,
    judge: bool = True,
    every: bool = False,
) -> Proposal:
    """Return the best plan that takes candidates in `order`, and its makespan in the byte-counting simulation.

    Parameters and errors as in `autoswap` and `select`; where `judge` is False nothing is simulated, and the plan of
    the first target is returned with makespan 0.
    """
    best: Proposal | None = None
    seen: set[bytes] = set()
    for target in targets:
        host = Pinned(trace, eligible.gaps, machine.pinned)
        chosen, load = select(eligible, order, int(limit * target), host, every=every)
        reached = int(load.max())
        if reached > limit:
            raise NotReached(reached, limit, hint=_hint(eligible, reached, machine))
        if chosen.tobytes() in seen:  # a lower target has no more gaps to take: the plan would be the same
            continue
        seen.add(chosen.tobytes())
        taken = eligible.gaps.where(chosen)
        plan = Plan.of(trace, schedule(trace, machine, taken, load=load, limit=limit, line=eligible.line))
        makespan = simulate(plan.apply(trace), machine, capacity=limit).makespan if judge else 0
        if best is None or makespan < best.makespan:
            best, best_host = Proposal(plan, makespan), host
        if makespan <= eligible.line.makespan:  # no overhead: no plan is better
            break
    if best is None:
        raise NotReached(trace.peak_live_bytes, limit, hint=work.LATE)
    best_host.place_copies(best.plan.swaps)
    return best


@strict
def candidates(
    trace: Trace, machine: Machine, limit: int, *, peaks: str = "first", threshold: int = 2**20
) -> Candidates:
    """Return the gaps that AutoSwap considers (section IV-A); parameters as in `autoswap`."""
    one_of("peaks", peaks, PEAKS)
    load, spans = trace.live_bytes(), gaps(trace)
    high = np.arange(trace.n) == trace.peak[0] if peaks == "first" else load > limit
    spans = spans.where(straddle(spans, high) & (spans.size >= max(threshold, 1)))
    line = simulate(trace, machine)
    return Candidates(
        gaps=spans,
        gap_ns=lasts(spans, line),
        out_ns=machine.out.copy_ns(spans.size),
        in_ns=machine.into.copy_ns(spans.size),
        load=load,
        duration=machine.durations(trace),
        line=line,
        peaks=peaks,
    )


def _hint(eligible: Candidates, reached: int, machine: Machine) -> str:
    if reached > load_min(eligible):
        return f"{machine.pinned} bytes of pinned memory hold no more"
    return "peaks `all` has more candidates" if eligible.peaks == "first" else ""


def load_min(eligible: Candidates) -> int:
    """Return the peak with every candidate off the device over its whole gap (section VI-B1)."""
    return int(without(eligible.load, eligible.gaps).max())
