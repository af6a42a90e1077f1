"""Recomputation: which values an op can make again, why others not, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem._show import Shown
from gpumem._strict import strict
from gpumem.columns import ACT_GRAD, GRADIENT, I64, Bool
from gpumem.machine import Machine
from gpumem.swap.gaps import Gaps, gaps
from gpumem.swap.plan.rerun import COPY, FINE, Producers
from gpumem.trace import Trace

WRAPS, NO_INPUT, INPUT_LOST = range(COPY + 1, COPY + 4)
REASONS = (  # those of `rerun` first
    "",
    "no op of its lifetime makes it",
    "it was made before the iteration boundary",
    "an op changed it in place",
    "its producer draws random numbers",
    "it came by a copy",
    "the gap wraps the iteration boundary",
    "its producer reads nothing: its data comes from outside",
    "an input of its producer is overwritten or freed",
)


@strict
def backward_start(trace: Trace) -> int:
    """Return the first op of the backward pass, as far as a trace tells.

    Notes
    -----
    The first rule that applies: the first op where a buffer of kind `act_grad` begins, or one of kind
    `gradient`; the first op with `backward` in its name; the first op of the largest load. What straddles
    this op was made for the backward pass.

    >>> from gpumem.io import bundled
    >>> trace = bundled("vgg16")
    >>> trace.ops.name[backward_start(trace) + 1]
    'nll_loss_backward.default'
    """
    b = trace.buffers
    for kind in (ACT_GRAD, GRADIENT):
        begins = [int(start) for start, k, p in zip(b.start, b.kind, b.persistent) if k == kind and not p]
        if begins:
            return min(begins)
    return next((i for i, name in enumerate(trace.ops.name) if "backward" in name), trace.peak[0])


def kept_over(found: Gaps, op: int, n: int) -> Bool:
    """Return which gaps begin before op `op` and end at it or later, in the same iteration."""
    inside: Bool = (found.after < op) & (found.before >= op) & (found.before < n)
    return inside


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Recomputable(Shown):
    """Columns over all gaps of a trace: whether what the gap drops can be made again at its end.

    `gaps` (m of them); `op` (the producer, -1 if there is none); `reason` (index into `REASONS`, 0 if it can);
    `until` (the last `at` that a `Recompute` may have; 0 where there is none); `cost_ns` (time of the producer).
    """

    gaps: Gaps
    op: I64
    reason: I64
    until: I64
    cost_ns: I64

    def __len__(self) -> int:
        return len(self.op)

    @property
    def ok(self) -> Bool:
        """Which of them a `Recompute` at the end of the gap may drop."""
        fine: Bool = self.reason == FINE
        return fine


@strict
def recomputable(trace: Trace, machine: Machine, found: Gaps | None = None) -> Recomputable:
    """Say of each gap whether its value can be computed once more, why not, and what it costs.

    `found` are the gaps in question; all of the trace where left out. The machine gives the time of the producers.

    Notes
    -----
    O(accesses). Each value counts by itself, its producer's inputs being on the device; a planner that drops an
    input as well makes it again first. An op without inputs is not trusted to make its value again (a batch
    arrives that way), though `Plan.apply` would run it.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> found = recomputable(bundled("vgg16"), Machine.named("gtx1080ti"))
    >>> sorted({REASONS[r] for r in found.reason.tolist()})[1:3]
    ['an input of its producer is overwritten or freed', 'an op changed it in place']
    """
    found, makers = gaps(trace) if found is None else found, Producers.of(trace)
    rows = [
        _row(trace, makers, *row) for row in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist())
    ]
    op, reason, until = (np.array(column, np.int64) for column in (zip(*rows) if rows else ([], [], [])))
    return Recomputable(found, op, reason, until, np.where(op >= 0, machine.durations(trace)[op], 0))


def _row(trace: Trace, makers: Producers, buffer: int, after: int, before: int) -> tuple[int, int, int]:
    """The producer, why not, and until when."""
    op = makers.made_by(buffer, after)
    why = WRAPS if before >= trace.n else makers.never(buffer, op, after)
    if why == FINE and not makers.reads[op]:
        why = NO_INPUT
    if why:
        return op, why, 0
    until = min(makers.until(op), before)
    return op, FINE if until == before else INPUT_LOST, until if until > after else 0
