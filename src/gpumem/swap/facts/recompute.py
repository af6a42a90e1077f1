"""Recomputation: which values an op can make again, why others not, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.base.jit import assign, inner, jit
from gpumem.simulator.machine import Machine
from gpumem.swap.plan.gaps import Gaps, gaps
from gpumem.swap.plan.replay import FREE, Closure, ascending, chase, clear, is_there, marks
from gpumem.swap.plan.values import FINE, REASONS as WHY, WRAPS, Origins
from gpumem.trace import I64, UNKNOWN, Bool, Csr, Trace
from gpumem.trace.kinds import ACT_GRAD, GENERATOR_BYTES, GRADIENT

NO_INPUT, TOO_LONG = len(WHY), len(WHY) + 1
REASONS = (
    *WHY,
    "an op that makes it reads nothing, and may take its data from outside",
    "what makes it takes longer than was asked for",
)
NO_END = 2**62  # ns that nothing takes
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
    room = machine.pinned - int(trace.live_bytes(host=True).max(initial=0))
    short: Bool = trace.ops.rng & (GENERATOR_BYTES * int(trace.ops.rng.sum()) > room)
    return short


def takes_unknown(trace: Trace) -> Bool:
    """Return which ops read nothing, and may take their data from outside: bool[n]; see `recomputable`."""
    ops = trace.ops
    known = np.array([name.removeprefix("new_").startswith(CONSTANTS) for name in ops.name], np.bool_)
    unknown: Bool = (np.diff(ops.reads.ptr) == 0) & ~ops.rng & ~known
    return unknown


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
def recomputable(
    trace: Trace, machine: Machine, found: Gaps | None = None, *, most: I64 | None = None, earlier: bool = True
) -> Recomputable:
    """Say of each gap whether its value can be computed once more, why not, and what it costs.

    Parameters
    ----------
    trace, machine
        The machine gives the time of ops.
    found : Gaps, optional
        The gaps in question; all of the trace where left out.
    most : int64[m], optional
        Nanoseconds of each gap. What takes longer is not looked at to its end: then `until` is the last place at which
        it does not.
    earlier : bool
        Whether to look for the last place where the end of the gap will not do. Without, `until` is the end or 0, and
        long chains cost less.

    Notes
    -----
    O(accesses + what the ops that run again read and write), those of a gap as far as `most`; `earlier` takes a few
    times that, O(log n) times at worst. Each value counts by itself, all else being on the device; what is dead or
    was changed by then is made again as well. An op without inputs is trusted where its name says that it makes a
    constant, or where it draws random numbers, though `Plan.apply` would run others too.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> found = recomputable(bundled("vgg16"), Machine.named("gtx1080ti"))
    >>> sorted({REASONS[r] for r in found.reason.tolist()})[1:3]
    ['it is a parameter or optimizer state', 'it was made before the iteration boundary']
    """
    found, v, unknown = gaps(trace) if found is None else found, Origins.of(trace), takes_unknown(trace)
    row = np.array([v.after(*access) for access in zip(found.buffer.tolist(), found.after.tolist())], np.int64)
    duration, spans = machine.durations(trace), (found.buffer, found.after, found.before)
    limits = np.full(len(row), NO_END) if most is None else most
    reason, until, *columns = _make_again(v, row, *spans, unknown, duration, limits, earlier, np.zeros(1, np.int64))
    again, there = Csr(*columns[:2]), Csr(*columns[2:])
    made = v.left.first[row] < v.left.stop[row]
    op = np.append(v.writer, UNKNOWN)[np.where(made, v.left.first[row], -1)]
    return Recomputable(found, op, reason, until, again.sums(duration), again, there)


class _Asked(NamedTuple):
    """What all gaps share."""

    v: Origins
    unknown: Bool  # n: ops that may take their data from outside
    duration: I64  # n: ns
    away: Bool  # B: the buffer of the gap in question
    none: I64  # B: -1, as nothing dead is held
    m: Closure
    earlier: bool  # whether to look for the last place where the end will not do


@jit
def _make_again(
    v: Origins,
    row: I64,
    buffer: I64,
    after: I64,
    before: I64,
    unknown: Bool,
    duration: I64,
    most: I64,
    earlier: bool,
    looks: I64,
) -> tuple[I64, I64, I64, I64, I64, I64]:
    """Of each gap, all else being on the device: why not, until when, what runs again, what that reads there.

    `row`: of `v.left`, after the access before the gap; `most`: what its ops may take; `looks`, int64[1]: how many
    reads and writes were looked at. The last four columns are the `ptr` and `idx` of two `Csr`.
    """
    n, buffers = v.n, len(v.access_ptr) - 1
    reason, until = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    end, there_end = np.zeros(len(row) + 1, np.int64), np.zeros(len(row) + 1, np.int64)
    ops, there = np.zeros(n, np.int64), np.zeros(buffers, np.int64)
    m, seen = marks(np.zeros(n, np.bool_), len(v.writer)), np.zeros(buffers, np.bool_)
    asked = _Asked(v, unknown, duration, np.zeros(buffers, np.bool_), np.full(buffers, -1, np.int64), m, earlier)
    for k in range(len(row)):
        end[k + 1], there_end[k + 1] = end[k], there_end[k]
        asked.away[buffer[k]] = True
        reason[k], until[k] = _last_place(asked, row[k], after[k], before[k], most[k])
        if until[k] > 0:
            again = ascending(m)
            ops, end[k + 1] = _noted(ops, end[k], again)
            there, there_end[k + 1] = _noted(there, there_end[k], _found_there(asked, again, until[k], seen))
        asked.away[buffer[k]] = False
    looks[0] = m.used[4]
    return reason, until, end, ops[: end[-1]], there_end, there[: there_end[-1]]


@inner
def _last_place(asked: _Asked, row: int, after: int, before: int, most: int) -> tuple[int, int]:
    """Why not at the end of the gap, and the last place, with what runs there marked; 0 if there is none.

    Later places find less on the device, so where one will do all before it will. The first try sinks to a place that
    will do, most often the last one; if not, the middle of what is left is tried: place by place is a square.
    """
    v = asked.v
    if before >= v.n:
        return WRAPS, 0
    if v.left.why[row] != FINE:
        return v.left.why[row], 0
    why, low, high, at, last = FINE, after, before + 1, before, -1  # `last`: the place that the marks are of
    while high - low > 1 and (last < 0 or asked.earlier):
        sunk, stuck = _tried(asked, row, at, after + 1 if last < 0 and asked.earlier else at, most)
        if why == FINE and last < 0 and stuck != FREE:
            why = v.found.why[stuck] if stuck >= 0 else TOO_LONG
        last = at if sunk == at else 0
        low, high = max(low, sunk), high if sunk == at else at
        at = sunk + 1 if sunk > after and sunk < at else (low + high) // 2
    if low == after:
        return why, 0
    if last != low:
        _tried(asked, row, low, low, most)
    for k in range(asked.m.used[0]):
        if asked.unknown[asked.m.op[k]]:
            return (why if why != FINE else NO_INPUT), 0
    return why, low


@inner
def _tried(asked: _Asked, row: int, at: int, least: int, most: int) -> tuple[int, int]:
    """Mark what runs again at a place; return the last one from `least` on that will do for all of that, 0 for none.

    And what is in the way at `at`: a read, `DEAR`, or nothing: `FREE`.
    """
    clear(asked.m)
    left, m = asked.v.left, asked.m
    mine = left.first[row : row + 1], left.stop[row : row + 1]
    v, there = asked.v, (asked.away, asked.none, asked.none)
    found, _ = chase(v, mine[0], mine[1], at, least, *there, m, asked.duration, most)
    return (m.place[0] if found == FREE else 0), (m.place[1] if found == FREE else found)


@inner
def _found_there(asked: _Asked, ops: I64, place: int, seen: Bool) -> I64:
    """The buffers that `ops` read on the device, each once; `seen` is False everywhere, before and after."""
    v, away, held, count, reads = asked.v, asked.away, asked.none, 0, 0
    for x in ops:
        reads += v.read_ptr[x + 1] - v.read_ptr[x]
    mine = np.empty(min(reads, len(seen)), np.int64)
    for x in ops:
        for k in range(v.read_ptr[x], v.read_ptr[x + 1]):
            b = v.read[k]
            if not seen[b] and is_there(place, v.last[k], v.dies[k], away[b], held[b]):
                seen[b] = True
                mine[count] = b
                count += 1
    for k in range(count):
        seen[mine[k]] = False
    return mine[:count]


@inner
def _noted(column: I64, end: int, more: I64) -> tuple[I64, int]:
    """Write `more` behind `column[:end]`; a full column is copied into one twice as long."""
    stop = end + len(more)
    if stop > len(column):
        wider = np.zeros(2 * stop, np.int64)
        assign(wider, column[:end])
        column = wider
    assign(column[end:], more)
    return column, stop
