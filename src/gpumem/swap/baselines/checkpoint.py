"""Checkpointing: keep some values, make the others again when they are needed.

Read `_checkpoint_rollout` beside this file, a run through the trace within the limit, then `_checkpoint_evict`, the
search over such runs. `_checkpoint_segments` cuts one forward pass into segments on two levels, as the paper does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict_fields
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap.baselines._checkpoint_evict import Evictions
from gpumem.swap.baselines._checkpoint_segments import Levels
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.options import option
from gpumem.swap.facts.recompute import Recomputable, backward_start, barred, kept_over, recomputable, takes_unknown
from gpumem.swap.facts.recompute_cost import MadeAgain
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.trace import I64, Bool, Trace

DEAR = 0.25  # of an iteration: what reruns take before segments are tried as well. Not tuned
RULES = ("evict", "cuts", "sqrt")


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(PlannerRecord):
    """The planner `checkpoint`, which says what its options are."""

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
    """Plan recomputation alone: keep some values, make the others again right before they are needed, or earlier.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    rule : str
        `evict`: go through the trace and drop what is worth least whenever it is above the limit; search for what
        it is worth. For any number of forward and backward passes. `cuts`: segments of one forward pass on two levels,
        their cuts searched for. `sqrt`: as printed, one level of about equal segments.
    segments : int, optional
        With `sqrt`, how many. Default: the square root of the number of values that can be dropped; where that does
        not reach the limit, the number that gives the lowest peak.
    hold : bool
        With `evict` and `cuts`, whether values that would die may be held for reruns.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Returns
    -------
    Plan
        Of `Recompute` decisions, and of `Hold` where that saves time.

    Notes
    -----
    `sqrt` rewrites the trace for each number tried (about 2 log2 of the values). `evict` goes through the trace some
    hundreds of times, O(ops + drops x values there + reruns) each, `cuts` prices some thousands of plans, both fewer
    on long traces; by `recompute_cost`, which is exact: a few seconds. The same plan each time, unless `seconds` cut
    it short. Where `evict` does not reach the limit, or takes a quarter longer, `cuts` is tried too. No plan runs
    more than a million ops again, on long traces 16 times as many as there are, so that memory is linear.

    Departures of `evict`: it is no rule of the paper, which knows one chain of layers and its backward pass; what is
    worth least is as in DTR, with a look at what comes. A value made of a parameter is back before that is updated.

    Departures of the other two: segments begin with the same number of bytes, not of layers, since there are no
    layers in a trace. A value that is used in a later segment than its own is a boundary. A change in place belongs to
    the value that it changes, so no cut divides the two. The paper runs the whole forward pass of a segment again; here
    only what is missing runs.

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
    never = barred(trace, machine)
    if rule == "evict":
        reached, plan = _best_of_both(trace, machine, never, limit, hold=hold)
    else:
        reached, plan = _in_segments(trace, machine, never, limit, rule, segments, hold=hold)
    if reached > limit:
        raise NotReached(reached, limit, hint=work.hint("a planner that swaps may get lower"))
    return plan


def _best_of_both(trace: Trace, machine: Machine, never: Bool, limit: int, *, hold: bool) -> tuple[int, Plan]:
    """The peak and the plan by runs, or by cuts, where runs find none within the limit, or a dear one."""
    duration = machine.durations(trace)
    found = _evicted(trace, machine, never, limit, hold=hold)

    def again(plan: Plan) -> int:
        after = plan.apply(trace)
        return int(machine.durations(after).sum() - duration.sum())

    if work.over() or (found[0] <= limit and again(found[1]) <= DEAR * duration.sum()):
        return found
    other = _in_segments(trace, machine, never, limit, "cuts", None, hold=hold)
    return min(found, other, key=lambda one: (max(one[0], limit), again(one[1])))


def _evicted(trace: Trace, machine: Machine, never: Bool, limit: int, *, hold: bool) -> tuple[int, Plan]:
    """The peak and the plan by runs through the trace; `never`, bool[n]: ops that must not run again."""
    g = gaps(trace)
    inside = g.where((g.before < trace.n) & (g.before > g.after + 1) & (g.size > 0))
    account = MadeAgain.of(trace, machine.durations(trace), inside, never | takes_unknown(trace))
    search = Evictions.of(trace, account, limit=limit)
    best = search.search(hold=hold)
    return best.costs.peak, Plan.of(trace, search.decisions(best))


def _in_segments(
    trace: Trace, machine: Machine, never: Bool, limit: int, rule: str, segments: int | None, *, hold: bool
) -> tuple[int, Plan]:
    """The peak and the plan by segments of one forward pass."""
    g = gaps(trace)
    found = recomputable(trace, machine, g.where(kept_over(g, backward_start(trace), trace.n)), earlier=False)
    mine = np.flatnonzero(found.ok & (found.ops.sums(never) == 0))
    mine = mine[np.argsort(found.op[mine], kind="stable")]
    if rule == "sqrt":
        return _printed(trace, machine, found, mine, limit, segments)
    return _searched(trace, machine, found, mine, never, limit, hold=hold)


def _searched(
    trace: Trace,
    machine: Machine,
    found: Recomputable,
    mine: I64,
    barred: Bool,
    limit: int,
    *,
    hold: bool,
) -> tuple[int, Plan]:
    """The peak and the plan by two levels of segments."""
    costly = found.ops.sums(trace.ops.flops > 0) > 0
    mine = mine[found.gaps.before[mine] > found.gaps.after[mine] + 1]  # else there is nothing to drop
    account = MadeAgain.of(trace, machine.durations(trace), found.gaps.where(mine), barred)
    levels = Levels.of(trace, account, found.op[mine], costly[mine], limit=limit)
    best = levels.search(hold=hold)
    return best.costs.peak, Plan.of(trace, levels.decisions(best))


def _printed(
    trace: Trace,
    machine: Machine,
    found: Recomputable,
    mine: I64,
    limit: int,
    segments: int | None,
) -> tuple[int, Plan]:
    """The peak and the plan of the first number of segments that reaches the limit, or of the lowest peak."""
    best = trace.peak_live_bytes, Plan.of(trace)
    for count in work.each([segments] if segments is not None else _counts(len(mine))):
        plan = Plan.of(trace, _dropped(trace, found, mine, count))
        again = plan.apply(trace)
        pinned = int(again.live_bytes(host=True).max(initial=0))
        if again.peak_live_bytes < best[0] and pinned <= machine.pinned:
            best = again.peak_live_bytes, plan
        if best[0] <= limit:
            break
    return best


def _counts(values: int) -> list[int]:
    """The square root first, then powers of 2 and their means."""
    powers = [2**k for k in range(max(values, 1).bit_length())]
    return list(dict.fromkeys([max(math.isqrt(values), 1), *powers, *(3 * p // 2 for p in powers if p > 1)]))


def _dropped(trace: Trace, found: Recomputable, mine: I64, count: int) -> list[Recompute]:
    """Drop what lies within each of `count` segments; `mine` are the gaps in question, in producing order."""
    size = found.gaps.size[mine]
    through = np.cumsum(size)
    part = np.minimum((through - size) * count // max(int(size.sum()), 1), count - 1)
    first = np.append(found.op[mine], trace.n)[np.searchsorted(part, np.arange(1, count + 1))]
    inner = found.gaps.after[mine] < first[part]  # used in its own segment only, which ends where the next begins
    decisions: list[Recompute] = []
    for s in range(count):  # right before its first backward use, in producing order
        rows = mine[inner & (part == s)]
        at = int(found.gaps.before[rows].min(initial=trace.n))
        gone = found.gaps.where(rows[found.gaps.after[rows] + 1 < at])
        accesses = zip(gone.buffer.tolist(), gone.after.tolist(), gone.before.tolist())
        decisions += [Recompute(*row, at) for row in accesses]
    return decisions
