"""Recomputation: which values an op can make again, why others not, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.base.jit import inner, jit
from gpumem.simulator.machine import Machine
from gpumem.swap.plan.gaps import Gaps, gaps
from gpumem.swap.plan.replay import ON_DEVICE, closure, sources
from gpumem.swap.plan.values import FINE, RANDOM, REASONS as WHY, WRAPS, Origins
from gpumem.trace import I64, UNKNOWN, Bool, Csr, Trace
from gpumem.trace.kinds import ACT_GRAD, GENERATOR_BYTES, GRADIENT

NO_INPUT = RANDOM + 1
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


def barred(trace: Trace, machine: Machine) -> Bool:
    """Return the random ops, if the host has no room for the states of all their generators: none may run again."""
    room = machine.pinned - int(trace.load(host=True).max(initial=0))
    short: Bool = trace.ops.rng & (GENERATOR_BYTES * int(trace.ops.rng.sum()) > room)
    return short


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Recomputable(Shown):
    """Columns over all gaps of a trace: whether what the gap drops can be made again at its end, and by what.

    `gaps` (m of them); `op` (the whole write of the value, -1 if there is none); `reason` (index into `REASONS`, 0 if
    it can); `until` (the last `at` that a `Recompute` may have; 0 where there is none). Of a recomputation at `until`:
    `ops` (what runs again, in order), `cost_ns` (the time of all ops), `sources` (the buffers that they read on the
    device).
    """

    gaps: Gaps
    op: I64
    reason: I64
    until: I64
    cost_ns: I64
    ops: Csr
    sources: Csr

    def __len__(self) -> int:
        return len(self.op)

    @property
    def ok(self) -> Bool:
        """Which of them a `Recompute` at the end of the gap may drop."""
        fine: Bool = self.reason == FINE
        return fine

    def times(self, duration: I64) -> I64:
        """Return what `cost_ns` is where ops take `duration` ns, int64[n]."""
        return self.ops.sums(duration)


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
    found, v, ops = gaps(trace) if found is None else found, Origins.of(trace), trace.ops
    known = np.array([name.removeprefix("new_").startswith(CONSTANTS) for name in ops.name], np.bool_)
    unknown = (np.diff(ops.reads.ptr) == 0) & ~ops.rng & ~known
    row = np.array([v.after(*access) for access in zip(found.buffer.tolist(), found.after.tolist())], np.int64)
    away = np.zeros(len(trace.buffers), np.bool_)
    reason, until, *columns = _make_again(v, row, found.buffer, found.after, found.before, unknown, away)
    again, there = Csr(*columns[:2]), Csr(*columns[2:])
    made = v.left.first[row] < v.left.stop[row]
    op = np.append(v.writer, UNKNOWN)[np.where(made, v.left.first[row], -1)]
    return Recomputable(found, op, reason, until, again.sums(machine.durations(trace)), again, there)


@jit
def _make_again(
    v: Origins, row: I64, buffer: I64, after: I64, before: I64, unknown: Bool, away: Bool
) -> tuple[I64, I64, I64, I64, I64, I64]:
    """Of each gap, all else being on the device: why not, until when, what runs again, what that reads there.

    `row`: of `v.left`, after the access before the gap; `unknown`: ops that may take their data from outside; `away`:
    no buffer. The last four are the `ptr` and `idx` of two `Csr`.
    """
    reason, until = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    end, there_end = np.zeros(len(row) + 1, np.int64), np.zeros(len(row) + 1, np.int64)
    ops, there = np.zeros(len(unknown), np.int64), np.zeros(len(away), np.int64)
    again, held = np.zeros(len(unknown), np.bool_), np.full(len(away), -1, np.int64)
    seen = np.zeros(len(away), np.bool_)
    for k in range(len(row)):
        away[buffer[k]] = True
        reason[k], until[k] = _last_place(v, row[k], buffer[k], after[k], before[k], unknown, away, held, again)
        if until[k] > 0:
            ops, end[k + 1] = _noted(ops, end[k], np.flatnonzero(again))
            mine = _found_there(v, np.flatnonzero(again), until[k], away, held, seen)
            there, there_end[k + 1] = _noted(there, there_end[k], mine)
        else:
            end[k + 1], there_end[k + 1] = end[k], there_end[k]
        away[buffer[k]] = False
    return reason, until, end, ops[: end[-1]], there_end, there[: there_end[-1]]


@inner
def _last_place(
    v: Origins, row: int, buffer: int, after: int, before: int, unknown: Bool, away: Bool, held: I64, again: Bool
) -> tuple[int, int]:
    """Why not at the end of the gap, and the last place, with what runs there in `again`; 0 if there is none."""
    if before >= v.n:
        return WRAPS, 0
    if v.left.why[row] != FINE:
        return v.left.why[row], 0
    why, at = FINE, before
    while at > after:
        again[:] = False
        stuck, _ = closure(v, v.left.first[row : row + 1], v.left.stop[row : row + 1], at, away, held, again)
        if stuck < 0:
            if (again & unknown).any():
                break
            return why, at
        if why == FINE:
            why = v.found.why[stuck]
        at = min(at - 1, -1 if away[v.read[stuck]] else v.last[stuck])
    return (why if why != FINE else NO_INPUT), 0


@inner
def _found_there(v: Origins, ops: I64, place: int, away: Bool, held: I64, seen: Bool) -> I64:
    """The buffers that `ops` read on the device, each once; `seen` is False everywhere, before and after."""
    _, read, whole = sources(v, ops, place, away, held)
    count = 0
    for k in range(len(read)):
        if whole[k] == ON_DEVICE and not seen[read[k]]:
            seen[read[k]] = True
            read[count] = read[k]
            count += 1
    for k in range(count):
        seen[read[k]] = False
    return read[:count]


@inner
def _noted(column: I64, end: int, more: I64) -> tuple[I64, int]:
    """Write `more` behind `column[:end]`; a full column is copied into one twice as long."""
    stop = end + len(more)
    if stop > len(column):
        wider = np.zeros(2 * stop, np.int64)
        wider[:end] = column[:end]
        column = wider
    column[end:stop] = more
    return column, stop
