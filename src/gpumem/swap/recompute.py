"""Recomputation: which values an op can make again, why others not, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem._show import Shown
from gpumem._strict import strict
from gpumem.columns import ACT_GRAD, GRADIENT, I64, Bool, Csr
from gpumem.machine import Machine
from gpumem.swap.gaps import Gaps, gaps
from gpumem.swap.plan.replay import Device, Refused
from gpumem.swap.plan.values import FINE, REASONS as WHY, WRAPS, Origins
from gpumem.trace import Trace

NO_INPUT = WRAPS + 1
REASONS = (*WHY, "an op that makes it reads nothing, and may take its data from outside")
CONSTANTS = ("arange", "empty", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros")  # by how names begin


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
    """Columns over all gaps of a trace: whether what the gap drops can be made again at its end, and by what.

    `gaps` (m of them); `op` (the whole write of the value, -1 if there is none); `reason` (index into `REASONS`, 0 if
    it can); `until` (the last `at` that a `Recompute` may have; 0 where there is none). Of a recomputation at `until`:
    `ops` (what runs again, in order) and `cost_ns` (the time of all ops).
    """

    gaps: Gaps
    op: I64
    reason: I64
    until: I64
    cost_ns: I64
    ops: Csr

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

    `found` are the gaps in question; all of the trace where left out. The machine gives the time of ops.

    Notes
    -----
    O(accesses + ops run again). Each value counts by itself, all else being on the device; what is dead or was changed
    by then is made again as well. An op without inputs is trusted where its name says that it makes a constant, or
    where it draws random numbers, though `Plan.apply` would run others too.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> found = recomputable(bundled("vgg16"), Machine.named("gtx1080ti"))
    >>> sorted({REASONS[r] for r in found.reason.tolist()})[1:3]
    ['it is a parameter or optimizer state', 'it was made before the iteration boundary']
    """
    found, again = gaps(trace) if found is None else found, _Again.of(trace)
    rows = [again.of_gap(*gap) for gap in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist())]
    op, reason, until = (np.array([row[k] for row in rows], np.int64) for k in range(3))
    ptr = np.cumsum([0, *(len(row[3]) for row in rows)])
    ops = Csr(ptr, np.concatenate([np.zeros(0, np.int64), *(row[3] for row in rows)]))
    seen = np.concatenate([[0], np.cumsum(machine.durations(trace)[ops.idx])])
    return Recomputable(found, op, reason, until, seen[ptr[1:]] - seen[ptr[:-1]], ops)


@dataclass(frozen=True, slots=True, eq=False)
class _Again:
    """One gap after the other, all else being on the device."""

    device: Device
    unknown: Bool  # ops that may take their data from outside

    @classmethod
    def of(cls, trace: Trace) -> _Again:
        ops = trace.ops
        known = [name.removeprefix("new_").startswith(CONSTANTS) for name in ops.name]
        unknown = (np.diff(ops.reads.ptr) == 0) & ~ops.rng & ~np.array(known, np.bool_)
        return cls(Device(trace, Origins.of(trace)), unknown)

    def of_gap(self, buffer: int, after: int, before: int) -> tuple[int, int, int, I64]:
        """The whole write, why not, until when, and what runs again."""
        v, none = self.device.values, np.zeros(0, np.int64)
        row = v.after(buffer, after)
        op = int(v.writer[v.left.first[row]]) if v.left.first[row] < v.left.stop[row] else -1
        if before >= v.n:
            return op, WRAPS, 0, none
        why, at = FINE, before
        while at > after:
            try:
                ops, _ = self.device.closure({buffer: after}, at)
            except Refused as refused:
                why, at = why or refused.why, min(at - 1, refused.last)
                continue
            if self.unknown[ops].any():
                break
            return op, why, at, ops
        return op, why or NO_INPUT, 0, none
