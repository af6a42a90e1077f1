"""Recomputation: which values an op can recompute, why others not, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.base.jit import assign, inner, jit
from gpumem.simulator.machine import Machine
from gpumem.swap.plan.gaps import Gaps, gaps
from gpumem.swap.plan.replay import (
    CAUSE,
    FREE,
    LOOKED_AT,
    MARKED,
    SUNK,
    Closure,
    ascending,
    chase,
    clear,
    is_there,
    marks,
)
from gpumem.swap.plan.values import FINE, REASONS as WHY, WRAPS, Origins
from gpumem.trace import I64, UNKNOWN, Bool, Csr, Trace
from gpumem.trace.kinds import ACT_GRAD, GENERATOR_BYTES, GRADIENT

# Reasons beside those of `swap.plan.values`: indices into `REASONS`.
NO_INPUT, TOO_LONG = len(WHY), len(WHY) + 1
REASONS = (
    *WHY,
    "an op that makes it reads nothing, and may take its data from outside",
    "what makes it takes longer than was asked for",
)
# ns that nothing takes; half of int64's range, so that the sum of two does not overflow.
NO_END = 2**62
# Operators that make a constant without inputs, by how their names begin; others may take their data from elsewhere.
CONSTANTS = ("arange", "empty", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros")


@strict
def backward_start(trace: Trace) -> int:
    """Return the first op of the backward pass, as far as a trace tells.

    Notes
    -----
    The first rule that applies: the first op where a buffer of kind `act_grad` begins, or one of kind
    `gradient`; the first op with `backward` in its name; the first op with the most live bytes. What straddles
    this op was made for the backward pass.

    >>> from gpumem.io import bundled
    >>> trace = bundled("vgg16")
    >>> trace.ops.name[backward_start(trace) + 1]
    'nll_loss_backward.default'
    """
    table = trace.buffers
    for kind in (ACT_GRAD, GRADIENT):
        rows = zip(table.start.tolist(), table.kind, table.persistent.tolist())
        begins = [int(start) for start, label, persists in rows if label == kind and not persists]
        if begins:
            return min(begins)
    return next((op for op, name in enumerate(trace.ops.name) if "backward" in name), trace.peak[0])


def kept_over(gaps_: Gaps, op: int, ops: int) -> Bool:
    """Return which gaps begin before op `op` and end at it or later, in the same iteration."""
    inside: Bool = (gaps_.after < op) & (gaps_.before >= op) & (gaps_.before < ops)
    return inside


def barred(trace: Trace, machine: Machine) -> Bool:
    """Return the random ops, if the host cannot hold the states of all their generators: none may be recomputed."""
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
    """Columns over all gaps of a trace: whether what the gap drops can be recomputed at its end, and by what.

    `gaps` (m of them); `op` (the whole write of the value, -1 if there is none); `reason` (index into `REASONS`, 0 if
    it can); `until` (the last `at` that a `Recompute` may have; 0 where there is none). Of a recomputation at `until`:
    `ops` (what is recomputed, in order), `cost_ns` (the time of all ops), `sources` (the buffers that they read on the
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
    trace: Trace, machine: Machine, gaps_: Gaps | None = None, *, most: I64 | None = None, earlier: bool = True
) -> Recomputable:
    """Say of each gap whether its value can be computed once more, why not, and what it costs.

    Parameters
    ----------
    trace, machine
        The machine gives the time of ops.
    gaps_ : Gaps, optional
        The gaps in question; all of the trace where left out.
    most : int64[m], optional
        Nanoseconds of each gap. What takes longer is not looked at to its end: then `until` is the last place at which
        it does not.
    earlier : bool
        Whether to look for the last place where the end of the gap will not do. Without, `until` is the end or 0, and
        long chains cost less.

    Notes
    -----
    O(accesses + what the ops that are recomputed read and write), those of a gap as far as `most`; `earlier` takes a
    few times that, O(log n) times at worst. Each value counts by itself, all else being on the device; what is dead or
    was changed by then is recomputed as well. An op without inputs is trusted where its name says that it makes a
    constant, or where it draws random numbers, though `Plan.apply` would run others too.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> found = recomputable(bundled("vgg16"), Machine.named("gtx1080ti"))
    >>> sorted({REASONS[r] for r in found.reason.tolist()})[1:3]
    ['it is a parameter or optimizer state', 'it was made before the iteration boundary']
    """
    gaps_, origins, unknown = gaps(trace) if gaps_ is None else gaps_, Origins.of(trace), takes_unknown(trace)
    row = np.array([origins.after(*access) for access in zip(gaps_.buffer.tolist(), gaps_.after.tolist())], np.int64)
    duration, spans = machine.durations(trace), (gaps_.buffer, gaps_.after, gaps_.before)
    limits = np.full(len(row), NO_END) if most is None else most
    looks = np.zeros(1, np.int64)
    reason, until, *columns = _recompute_each(origins, row, *spans, unknown, duration, limits, earlier, looks)
    recomputed, there = Csr(*columns[:2]), Csr(*columns[2:])
    made = origins.left.first[row] < origins.left.stop[row]
    op = np.append(origins.writer, UNKNOWN)[np.where(made, origins.left.first[row], -1)]
    return Recomputable(gaps_, op, reason, until, recomputed.sums(duration), recomputed, there)


class _Asked(NamedTuple):
    """What all gaps share."""

    origins: Origins
    unknown: Bool  # n: ops that may take their data from outside
    duration: I64  # n: ns
    absent: Bool  # B: the buffer of the gap in question
    none: I64  # B: -1, as nothing dead is held
    marked: Closure
    earlier: bool  # whether to look for the last place where the end will not do


@jit
def _recompute_each(  # noqa: PLR0913, PLR0917  compiled: arrays that differ by gap, and no keyword-only parameters
    origins: Origins,
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
    """Of each gap, all else being on the device: why not, until when, what is recomputed, what that reads there.

    `row`: of `v.left`, after the access before the gap; `most`: what its ops may take; `looks`, int64[1]: how many
    reads and writes were looked at. The last four columns are the `ptr` and `idx` of two `Csr`.
    """
    ops_count, buffers = origins.n, len(origins.access_ptr) - 1
    reason, until = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    end, there_end = np.zeros(len(row) + 1, np.int64), np.zeros(len(row) + 1, np.int64)
    ops, there = np.zeros(ops_count, np.int64), np.zeros(buffers, np.int64)
    marked, seen = marks(np.zeros(ops_count, np.bool_), len(origins.writer)), np.zeros(buffers, np.bool_)
    absent, none = np.zeros(buffers, np.bool_), np.full(buffers, -1, np.int64)
    asked = _Asked(origins, unknown, duration, absent, none, marked, earlier)
    for gap in range(len(row)):
        end[gap + 1], there_end[gap + 1] = end[gap], there_end[gap]
        asked.absent[buffer[gap]] = True
        reason[gap], until[gap] = _last_place(asked, row[gap], after=after[gap], before=before[gap], most=most[gap])
        if until[gap] > 0:
            recomputed = ascending(marked)
            ops, end[gap + 1] = _noted(ops, end[gap], recomputed)
            there, there_end[gap + 1] = _noted(
                there, there_end[gap], _sources_on_device(asked, recomputed, until[gap], seen)
            )
        asked.absent[buffer[gap]] = False
    looks[0] = marked.used[LOOKED_AT]
    return reason, until, end, ops[: end[-1]], there_end, there[: there_end[-1]]


@inner
def _last_place(asked: _Asked, row: int, after: int, before: int, most: int) -> tuple[int, int]:
    """Why not at the end of the gap, and the last place, with what runs there marked; 0 if there is none.

    Later places find less on the device, so where one will do all before it will. The first try sinks to a place that
    will do, most often the last one; if not, the middle of what is left is tried: place by place is a square.
    """
    origins = asked.origins
    if before >= origins.n:
        return WRAPS, 0
    if origins.left.why[row] != FINE:
        return origins.left.why[row], 0
    why, low, high, place, marked_place = FINE, after, before + 1, before, -1  # `last`: the place that the marks are of
    while high - low > 1 and (marked_place < 0 or asked.earlier):
        least = after + 1 if marked_place < 0 and asked.earlier else place
        sunk, stuck = _tried(asked, row, place, least=least, most=most)
        if why == FINE and marked_place < 0 and stuck != FREE:
            why = origins.finds.why[stuck] if stuck >= 0 else TOO_LONG
        marked_place = place if sunk == place else 0
        low, high = max(low, sunk), high if sunk == place else place
        place = sunk + 1 if sunk > after and sunk < place else (low + high) // 2
    if low == after:
        return why, 0
    if marked_place != low:
        _tried(asked, row, low, least=low, most=most)
    for marked_row in range(asked.marked.used[MARKED]):
        if asked.unknown[asked.marked.op[marked_row]]:
            return (why if why != FINE else NO_INPUT), 0
    return why, low


@inner
def _tried(asked: _Asked, row: int, at: int, least: int, most: int) -> tuple[int, int]:
    """Mark what is recomputed at a place; return the last one from `least` on that will do for all of that, 0 for none.

    And what is in the way at `at`: a read, `DEAR`, or nothing: `FREE`.
    """
    clear(asked.marked)
    versions, marked = asked.origins.left, asked.marked
    chain = versions.first[row : row + 1], versions.stop[row : row + 1]
    origins, there = asked.origins, (asked.absent, asked.none, asked.none)
    obstacle, _ = chase(origins, chain[0], chain[1], at, least, *there, marked, asked.duration, most)
    return (marked.place[SUNK] if obstacle == FREE else 0), (marked.place[CAUSE] if obstacle == FREE else obstacle)


@inner
def _sources_on_device(asked: _Asked, ops: I64, place: int, seen: Bool) -> I64:
    """The buffers that `ops` read on the device, each once; `seen` is False everywhere, before and after."""
    origins, absent, held, count, reads = asked.origins, asked.absent, asked.none, 0, 0
    for op in ops:
        reads += origins.read_ptr[op + 1] - origins.read_ptr[op]
    buffers = np.empty(min(reads, len(seen)), np.int64)
    for op in ops:
        for row in range(origins.read_ptr[op], origins.read_ptr[op + 1]):
            buffer = origins.read[row]
            if not seen[buffer] and is_there(
                place, origins.last[row], dies=origins.dies[row], absent=absent[buffer], until=held[buffer]
            ):
                seen[buffer] = True
                buffers[count] = buffer
                count += 1
    for row in range(count):
        seen[buffers[row]] = False
    return buffers[:count]


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
