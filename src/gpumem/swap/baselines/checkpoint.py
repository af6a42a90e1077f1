"""Checkpointing: keep some values, recompute the others before they are read.

Read `_checkpoint_rollout` beside this file, one pass through the trace that keeps to the limit, then
`_checkpoint_evict`, the search over such passes. `_checkpoint_segments` cuts one forward pass into segments on two
levels. The paper's own rule, segments of equal size, is `_equal_segments` below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict_fields
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap.baselines._checkpoint_evict import EvictionSearch
from gpumem.swap.baselines._checkpoint_segments import SegmentSearch
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.options import option
from gpumem.swap.facts.recompute import Recomputable, backward_start, barred, kept_over, recomputable, takes_unknown
from gpumem.swap.facts.recompute_cost import RecomputableGaps
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.trace import I64, Bool, Trace

# Share of an iteration that recomputation by rule `evict` takes before segments are tried as well. Not tuned.
DEAR = 0.25
RULES = ("evict", "cuts", "sqrt")


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(PlannerRecord):
    """The planner `checkpoint` and its options."""

    rule: str = option("evict", RULES)
    segments: int | None = option(None)
    hold: bool = True

    def __post_init__(self) -> None:
        PlannerRecord.__post_init__(self)  # slots make another class of this one, so `super()` would not know it
        if self.segments is not None and self.rule != "sqrt":
            which = f"rule {self.rule!r}, which has no such number; rule 'sqrt' has one"
            raise ValueError(f"segments: {self.segments} of them with {which}")


@plans(Checkpoint)
def checkpoint(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    rule: str = "evict",
    segments: int | None = None,
    hold: bool = True,
    seconds: float | None = None,
) -> Plan:
    """Plan recomputation alone: keep some values, recompute the others right before they are read, or earlier.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    rule : str
        `evict`: go through the trace and drop what is worth least whenever the live bytes exceed the limit; search for
        what it is worth. For any number of forward and backward passes. `cuts`: segments of one forward pass on two
        levels, their cuts searched for. `sqrt`: as printed, one level of about equal segments.
    segments : int, optional
        With `sqrt`, how many. Default: the square root of the number of values that can be dropped; where that does
        not reach the limit, the number that gives the lowest peak.
    hold : bool
        With `evict` and `cuts`, whether values that would die may be held for recomputations.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Returns
    -------
    Plan
        Of `Recompute` decisions, and of `Hold` where that saves time.

    Notes
    -----
    `sqrt` rewrites the trace for each number tried (about 2 log2 of the values). `evict` goes through the trace some
    hundreds of times, O(ops + drops x values on the device + recomputed ops) each, `cuts` prices some thousands of
    plans, both fewer on long traces; by `recompute_cost`, which is exact: a few seconds. The same plan each time,
    unless `seconds` cut it short. Where `evict` does not reach the limit, or takes a quarter longer, `cuts` is tried
    too. No plan recomputes more than a million ops, on long traces 16 times as many as there are, so that memory is
    linear.

    Departures of `evict`: it is no rule of the paper, which knows one chain of layers and its backward pass; what is
    worth least is as in DTR, with the next reads known. A value computed from a parameter is recomputed before that is
    updated.

    Departures of the other two: segments begin with the same number of bytes, not of layers, since there are no
    layers in a trace. A value that is used in a later segment than its own is a boundary. A change in place belongs to
    the value that it changes, so no cut divides the two. The paper recomputes the whole forward pass of a segment; here
    only what is missing.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("resnet18")
    >>> plan = checkpoint(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes // 2)
    >>> plan.apply(trace).peak_live_bytes <= trace.peak_live_bytes // 2
    True

    References
    ----------
    Chen, Xu, Zhang and Guestrin 2016, Training deep nets with sublinear memory cost, sections 4.1 and 4.2. Kirisame et
    al. 2021, Dynamic tensor rematerialization, section 2 (what is worth least).
    """
    if segments is not None and segments > max(trace.n, 1):
        raise ValueError(f"segments: {segments} of them, but the iteration has {trace.n} ops")
    if fits(trace, limit):
        return Plan.of(trace)
    request = _Request(trace, machine, limit, barred(trace, machine), hold)
    if rule == "evict":
        peak, plan = _best_of_both(request)
    else:
        chosen = _droppable(request)
        peak, plan = _two_levels(request, chosen) if rule == "cuts" else _equal_segments(request, chosen, segments)
    if peak > limit:
        raise NotReached(peak, limit, hint=work.hint("a planner that swaps may get lower"))
    return plan


class _Request(NamedTuple):
    """What is to be planned; `barred`, bool[n]: ops that must not run twice."""

    trace: Trace
    machine: Machine
    limit: int
    barred: Bool
    hold: bool


def _best_of_both(request: _Request) -> tuple[int, Plan]:
    """The peak and the plan by passes, or by cuts where passes find none within the limit, or a dear one."""
    trace, machine, limit = request.trace, request.machine, request.limit
    duration = machine.durations(trace)
    by_passes = _by_passes(request)

    def added_ns(plan: Plan) -> int:
        after = plan.apply(trace)
        return int(machine.durations(after).sum() - duration.sum())

    if work.over() or (by_passes[0] <= limit and added_ns(by_passes[1]) <= DEAR * duration.sum()):
        return by_passes
    by_cuts = _two_levels(request, _droppable(request))
    return min(by_passes, by_cuts, key=lambda result: (max(result[0], limit), added_ns(result[1])))


def _by_passes(request: _Request) -> tuple[int, Plan]:
    """The peak and the plan by passes through the trace."""
    trace, spans = request.trace, gaps(request.trace)
    inside = spans.where((spans.before < trace.n) & (spans.before > spans.after + 1) & (spans.size > 0))
    must_not_run = request.barred | takes_unknown(trace)
    account = RecomputableGaps.of(trace, request.machine.durations(trace), inside, must_not_run)
    search = EvictionSearch.of(trace, account, limit=request.limit)
    best = search.search(hold=request.hold)
    return best.costs.peak, Plan.of(trace, search.decisions(best))


class _Droppable(NamedTuple):
    """The gaps over the turn from forward to backward, and `rows` of those whose values can be dropped.

    `rows` are in the order in which the values are made.
    """

    all: Recomputable
    rows: I64


def _droppable(request: _Request) -> _Droppable:
    trace, spans = request.trace, gaps(request.trace)
    over_turn = spans.where(kept_over(spans, backward_start(trace), trace.n))
    values = recomputable(trace, request.machine, over_turn, earlier=False)
    rows = np.flatnonzero(values.ok & (values.ops.sums(request.barred) == 0))
    return _Droppable(values, rows[np.argsort(values.op[rows], kind="stable")])


def _two_levels(request: _Request, chosen: _Droppable) -> tuple[int, Plan]:
    """The peak and the plan by two levels of segments, whose cuts are searched for."""
    trace, values, rows = request.trace, chosen.all, chosen.rows
    costly = values.ops.sums(trace.ops.flops > 0) > 0
    rows = rows[values.gaps.before[rows] > values.gaps.after[rows] + 1]  # else there is nothing to drop
    duration = request.machine.durations(trace)
    account = RecomputableGaps.of(trace, duration, values.gaps.where(rows), request.barred)
    search = SegmentSearch.of(trace, account, values.op[rows], costly[rows], limit=request.limit)
    best = search.search(hold=request.hold)
    return best.costs.peak, Plan.of(trace, search.decisions(best))


def _equal_segments(request: _Request, chosen: _Droppable, segments: int | None) -> tuple[int, Plan]:
    """The peak and the plan of the first number of segments that reaches the limit, or of the lowest peak.

    The paper's rule (Chen et al. 2016): about sqrt(n) segments (section 4.1), or as many as a budget asks for (4.2).
    """
    trace = request.trace
    best = trace.peak_live_bytes, Plan.of(trace)
    for count in work.each([segments] if segments is not None else _counts(len(chosen.rows))):
        plan = Plan.of(trace, _dropped(trace, chosen, count))
        after = plan.apply(trace)
        pinned = int(after.live_bytes(host=True).max(initial=0))
        if after.peak_live_bytes < best[0] and pinned <= request.machine.pinned:
            best = after.peak_live_bytes, plan
        if best[0] <= request.limit:
            break
    return best


def _counts(values: int) -> list[int]:
    """The square root first, then powers of 2 and their means: each count is at most 1.5 times the one below it."""
    powers = [2**exponent for exponent in range(max(values, 1).bit_length())]
    means = (3 * power // 2 for power in powers if power > 1)
    return list(dict.fromkeys([max(math.isqrt(values), 1), *powers, *means]))


def _dropped(trace: Trace, chosen: _Droppable, count: int) -> list[Recompute]:
    """Drop the values that are used only within their own of `count` segments of about equal bytes."""
    values, rows = chosen.all, chosen.rows
    size = values.gaps.size[rows]
    through = np.cumsum(size)
    segment = np.minimum((through - size) * count // max(int(size.sum()), 1), count - 1)
    first = np.append(values.op[rows], trace.n)[np.searchsorted(segment, np.arange(1, count + 1))]
    inner = values.gaps.after[rows] < first[segment]  # its last forward use comes before the next segment begins
    decisions: list[Recompute] = []
    for number in range(count):  # recompute all of a segment right before its first backward use, as it was made
        members = rows[inner & (segment == number)]
        at = int(values.gaps.before[members].min(initial=trace.n))
        dropped = values.gaps.where(members[values.gaps.after[members] + 1 < at])
        accesses = zip(dropped.buffer.tolist(), dropped.after.tolist(), dropped.before.tolist())
        decisions += [Recompute(*access, at) for access in accesses]
    return decisions
