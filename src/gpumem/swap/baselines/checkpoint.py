"""Checkpointing by segments of the forward pass.

Four segments, boundaries kept (o), everything else dropped (.) and made again when its segment's backward begins::

    forward    o . . o . . o . . o . .
    backward                           [seg 4][. . seg 3][. . seg 2][. . seg 1]
"""

from __future__ import annotations

import math

import numpy as np

from gpumem._strict import strict
from gpumem.columns import I64
from gpumem.deadline import Deadline
from gpumem.errors import NotReached
from gpumem.machine import Machine
from gpumem.swap.limits import fits
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.recompute import Recomputable, backward_start, kept_over, recomputable
from gpumem.trace import Trace


@strict
def checkpoint(
    trace: Trace, machine: Machine, limit: int, *, segments: int | None = None, seconds: float | None = None
) -> Plan:
    """Plan recomputation by segments: keep their boundaries, make the rest again when their backward begins.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    segments : int, optional
        Of the forward pass. Default: the square root of the number of values that can be dropped; where that does
        not reach the limit, the number that gives the lowest peak.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Returns
    -------
    Plan
        Of `Recompute` decisions only.

    Notes
    -----
    One rewrite for each number tried (about 2 log2 of the values). Departures: segments hold the same number
    of bytes, not of layers, since there are no layers in a trace. What no op can make again (random numbers,
    values changed in place, batch normalisation, which updates its running statistics) is kept; so is a
    value used in a later segment than its own: the boundary. The paper runs the forward pass of a segment
    again; here only what was dropped is.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("resnet18")
    >>> plan = checkpoint(trace, Machine.named("gtx1080ti"), trace.peak_load * 9 // 10)
    >>> plan.apply(trace).peak_load <= trace.peak_load * 9 // 10
    True

    References
    ----------
    Chen, Xu, Zhang and Guestrin 2016, Training deep nets with sublinear memory cost, sections 4.1 and 4.2.
    """
    if segments is not None and segments < 1:
        raise ValueError(f"segments: {segments} is below 1")
    until = Deadline.within(seconds)
    if fits(trace, limit):
        return Plan.of(trace)
    found = recomputable(trace, machine)
    start, load = backward_start(trace), trace.peak_load
    mine = np.flatnonzero(kept_over(found.gaps, start, trace.n) & (found.until >= start))
    mine = mine[np.argsort(found.op[mine], kind="stable")]
    tried: list[tuple[int, Plan]] = []
    for count in until.each([segments] if segments is not None else _counts(len(mine))):
        plan = Plan.of(trace, _dropped(trace, found, mine, count))
        tried.append((plan.apply(trace).peak_load, plan))
        if tried[0][0] <= limit:
            return plan
    load, plan = min(tried, key=lambda pair: pair[0], default=(load, Plan()))
    if load > limit:
        raise NotReached(load, limit, hint=until.hint("swapping drops what no op can make again"))
    return plan


def _counts(values: int) -> list[int]:
    """The square root first, then powers of 2 and their means."""
    powers = [2**k for k in range(max(values, 1).bit_length())]
    return list(dict.fromkeys([max(math.isqrt(values), 1), *powers, *(3 * p // 2 for p in powers if p > 1)]))


def _dropped(trace: Trace, found: Recomputable, mine: I64, count: int) -> list[Recompute]:
    """Drop what lies within each of `count` segments; `mine` are the gaps in question, in producing order."""
    size = trace.buffers.size[found.gaps.buffer[mine]]
    through = np.cumsum(size)
    part = np.minimum((through - size) * count // max(int(size.sum()), 1), count - 1)
    first = np.append(found.op[mine], trace.n)[np.searchsorted(part, np.arange(1, count + 1))]
    inner = found.gaps.after[mine] < first[part]  # used in its own segment only, which ends where the next begins
    decisions: list[Recompute] = []
    for s in range(count):  # right before its first backward use, in producing order
        rows = mine[inner & (part == s)]
        at = int(found.gaps.before[rows].min(initial=trace.n))
        gone = found.gaps.where(rows[(found.until[rows] >= at) & (found.gaps.after[rows] + 1 < at)])
        accesses = zip(gone.buffer.tolist(), gone.after.tolist(), gone.before.tolist())
        decisions += [Recompute(*row, at) for row in accesses]
    return decisions
