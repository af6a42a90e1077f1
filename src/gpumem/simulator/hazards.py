"""The one ordering rule: which op must wait for which.

Ops run in issue order on their stream. Two ops that touch the same buffer or overlapping bytes, at
least one of them writing, run in issue order whatever their streams. Everything else may overlap::

    compute   [ a: writes X ]              [ c: writes Y, where X was ]
                            \\              /
    d2h                      [ b: reads X ]          a -> b  read after write
                                                     b -> c  the bytes of X are reused
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.base.jit import inner, jit
from gpumem.simulator.timeline import COPY, DATA, MEMORY
from gpumem.trace import I64, Bool, Csr, Trace
from gpumem.trace.placement import Placement

# Cells of a block: a search for an interval looks at one block, then at blocks. Near the square root of how many cells
# there are both are as short; not tuned beyond that.
BLOCK = 256
NOBODY = -1  # in place of an op or a buffer: before all of them, so that no comparison needs a case of its own


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Hazards(Shown):
    """Row `i` of `after` lists the ops that op `i` waits for; `cause` runs along (see `timeline.CAUSES`).

    A negative entry `y` is op `y + n` of the previous iteration. What follows from the order within a
    stream and from other waits is left out: no entry can be spared, and each is a conflict of its own.
    """

    after: Csr
    cause: I64


@strict
def hazards(trace: Trace, placement: Placement | None = None, host: Placement | None = None) -> Hazards:
    """Return what each op waits for on other streams, in the steady state: the transitive reduction of the rule.

    Parameters
    ----------
    trace : Trace
    placement : Placement, optional
        A valid one. With it, overlapping bytes count, and a buffer is the same thing in every iteration.
        Without it, only buffers do, and each iteration has device buffers of its own, but for persistent
        full circles.
    host : Placement, optional
        Where host buffers lie in the pinned slab (a placement of `trace.host_side()`). Without it each has
        bytes of its own.

    Returns
    -------
    Hazards

    Notes
    -----
    One sweep twice round the circle, near-linear: last write and last reads per buffer, and a map from
    address intervals to the buffer that wrote there last; each write takes over what it covers. A read
    before the first write of a lifetime (of uninitialised bytes) waits for earlier writes of these bytes,
    as the rule says. Of the ops of one other stream the last is a candidate; a second sweep with a vector
    clock for each op drops those that another candidate or the op before on the same stream has waited
    for. A wait reaches back less than one iteration, so do the paths that can replace it, and two turns
    are enough. O(ops x streams^2) for that sweep.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0], []], [[0], [], [1]], stream=[0, 1, 0], streams=["compute", "d2h"])
    >>> trace = Trace(Buffers.make([8, 8], [0, 2], [2, 3]), ops)
    >>> hazards(trace).after.tolist()
    [[], [0], []]
    >>> hazards(trace, Placement.at(trace, [0, 0])).after.tolist()  # op 0 waits for op 1 by way of op 2
    [[], [0], [1]]
    """
    for placed in (placement, host):
        if placed is not None:
            placed.check_fits(trace)
    ops, buffers = trace.ops, trace.buffers
    shares, fixed, low, high = _addresses(trace, placement, host)
    written = np.zeros(len(buffers), np.bool_)
    written[ops.writes.idx] = True
    edges = np.unique(np.concatenate([[0], low[shares], high[shares]]))  # addresses where a buffer begins or ends
    table = (trace.n, len(ops.streams))
    touches = _Touches(
        *(ops.reads.ptr, ops.reads.idx, ops.writes.ptr, ops.writes.idx, buffers.start),
        *(np.searchsorted(edges, low), np.searchsorted(edges, high), shares & ~written),
    )
    pred, cause = np.empty(table, np.int64), np.empty(table, np.int64)
    wrote, read = np.full(len(buffers), NOBODY), np.full((len(buffers), len(ops.streams)), NOBODY)
    state = _Waits(ops.stream, ops.copies, fixed, shares, wrote=wrote, read=read, pred=pred, cause=cause)
    _sweep(
        touches,
        state,
        _Cells.of(len(edges)),
        _unwritten(len(ops.streams), len(edges) if touches.unwritten.any() else 0),
    )
    pred[np.arange(len(ops)), ops.stream] = NOBODY
    _reduce(ops.stream, pred)
    waits = pred != NOBODY
    op, _ = np.nonzero(waits)
    ptr = np.searchsorted(op, np.arange(trace.n + 1)).astype(np.int64)
    return Hazards(Csr(ptr, pred[waits] - trace.n), cause[waits])


def _addresses(trace: Trace, placement: Placement | None, host: Placement | None) -> tuple[Bool, Bool, I64, I64]:
    """Who shares bytes, who is the same buffer in every iteration, and the bytes; the host's above the device's."""
    buffers = trace.buffers
    full = buffers.end - buffers.start == trace.n
    low = np.zeros(len(buffers), np.int64)
    placed = np.zeros(len(buffers), np.bool_)
    top = 0
    for placed_by, side in ((placement, ~buffers.host), (host, buffers.host)):
        if placed_by is not None:
            low[side] = placed_by.offset[side] + top
            top += placed_by.height
            placed |= side
    fixed = buffers.host | trace.eternal if placement is None else np.ones(len(buffers), np.bool_)
    return placed & ~full & (buffers.size > 0), fixed, low, low + buffers.size


class _Touches(NamedTuple):
    """Who touches what, and where it lies."""

    read_ptr: I64  # by op
    reads: I64
    write_ptr: I64  # by op
    writes: I64
    start: I64  # of each buffer
    low: I64  # of each buffer: cells [low, high) of the address space
    high: I64
    unwritten: Bool  # of each buffer: it shares bytes and is never written


class _Waits(NamedTuple):
    """Which op touched a buffer last, and which op waits for which; ops by their position in the two turns."""

    stream: I64  # of each op
    copy: Bool  # of each op
    fixed: Bool  # of each buffer: it is the same in every iteration
    shares: Bool  # of each buffer: others have some of its bytes
    wrote: I64  # of each buffer: its last write
    read: I64  # of each buffer and stream: the last read since
    pred: I64  # of each op and stream: the last op (+ n) that it waits for
    cause: I64  # and why


class _Cells(NamedTuple):
    """The address space in intervals of cells."""

    begins: Bool  # of each cell: an interval begins here
    population: I64  # how many intervals begin in each block of cells
    after: I64  # where an interval begins: the cell where the next one does
    owner: I64  # where an interval begins: the buffer that wrote there last, or NOBODY

    @classmethod
    def of(cls, count: int) -> _Cells:
        """One interval without an owner."""
        begins, population = np.zeros(count, np.bool_), np.zeros(count, np.int64)
        begins[0], population[0] = True, 1
        return cls(begins, population, np.full(count, count), np.full(count, NOBODY))


def _unwritten(streams: int, cells: int) -> I64:
    """Of each stream a tree over cells: the last reads of bytes by way of buffers that are never written.

    int64[streams, 2, 2 leaves]: of a whole subtree, and of anything in it; node `p` has the children `2 p` and
    `2 p + 1`.
    """
    return np.full((streams, 2, 2 << int(cells).bit_length()), NOBODY)


@jit
def _sweep(  # noqa: C901  split further, it takes a third longer
    touches: _Touches, waits: _Waits, cells: _Cells, unwritten: I64
) -> None:
    """Fill in what each op waits for: what it touches says for whom, then it is noted as the last to touch that.

    Twice round the circle: the first turn only fills the state that the second, in which all waits are set, finds.
    """
    n = len(waits.stream)
    for position in range(2 * n):
        op = position % n
        waits.pred[op, :] = NOBODY
        for k in range(touches.read_ptr[op], touches.read_ptr[op + 1]):
            buffer = touches.reads[k]
            born = position - (op - touches.start[buffer]) % n
            _after_own(waits, op, buffer, born, write=False)
            if waits.shares[buffer] and waits.wrote[buffer] < born:
                # Uninitialised bytes: wait for whoever wrote there before.
                cell = _interval(cells, touches.low[buffer])
                while cell < touches.high[buffer]:
                    _after_other(waits, op, cells.owner[cell], buffer, write=False)
                    cell = cells.after[cell]
        for k in range(touches.write_ptr[op], touches.write_ptr[op + 1]):
            buffer = touches.writes[k]
            born = position - (op - touches.start[buffer]) % n
            _after_own(waits, op, buffer, born, write=True)
            if waits.shares[buffer] and waits.wrote[buffer] < born:  # the first write of this lifetime
                # It takes its bytes over from all who had some of them: the intervals there become one, its own.
                low, high = touches.low[buffer], touches.high[buffer]
                _split(cells, low)
                _split(cells, high)
                cell = low
                while cell < high:
                    _after_other(waits, op, cells.owner[cell], buffer, write=True)
                    if cell > low:
                        cells.begins[cell] = False
                        cells.population[cell // BLOCK] -= 1
                    cell = cells.after[cell]
                cells.after[low], cells.owner[low] = high, buffer
                if unwritten.shape[2] > 2:  # there are buffers that are never written
                    _after_unwritten(touches, waits, unwritten, op=op, buffer=buffer)
        # Noted only now: an op that reads and writes a buffer does not wait for itself.
        for k in range(touches.read_ptr[op], touches.read_ptr[op + 1]):
            buffer = touches.reads[k]
            waits.read[buffer, waits.stream[op]] = position
            if touches.unwritten[buffer]:
                _note_read(unwritten[waits.stream[op]], touches.low[buffer], touches.high[buffer], position)
        for k in range(touches.write_ptr[op], touches.write_ptr[op + 1]):
            waits.wrote[touches.writes[k]] = position
            waits.read[touches.writes[k], :] = NOBODY


@inner
def _after_unwritten(touches: _Touches, waits: _Waits, unwritten: I64, op: int, buffer: int) -> None:
    """Wait for reads of these bytes by way of buffers that are never written, which own no interval."""
    for stream in range(len(unwritten)):
        reader = _last_read(unwritten[stream], touches.low[buffer], touches.high[buffer])
        if reader != NOBODY:
            _wait(waits, op, stream, reader, why=MEMORY)


@inner
def _note_read(tree: I64, low: int, high: int, position: int) -> None:
    """Note a read of the cells `[low, high)`; it is later than all that are noted."""
    left, right = low + tree.shape[1] // 2, high + tree.shape[1] // 2
    while left < right:
        if left % 2 == 1:
            tree[0, left] = position
            _note_above(tree, left, position)
        if right % 2 == 1:
            tree[0, right - 1] = position
            _note_above(tree, right - 1, position)
        left, right = (left + 1) // 2, right // 2


@inner
def _note_above(tree: I64, node: int, position: int) -> None:
    while node > 0 and tree[1, node] != position:  # above that it is noted already
        tree[1, node] = position
        node //= 2


@inner
def _last_read(tree: I64, low: int, high: int) -> int:
    """The last noted read of any of the cells `[low, high)`, or NOBODY."""
    left, right, last = low + tree.shape[1] // 2, high + tree.shape[1] // 2, NOBODY
    first, final = left, right - 1
    while left < right:
        if left % 2 == 1:
            last = max(last, tree[1, left])
        if right % 2 == 1:
            last = max(last, tree[1, right - 1])
        left, right = (left + 1) // 2, right // 2
    while first > 0:  # what was noted for all of a subtree that the range lies in, or part of it does
        last = max(last, tree[0, first], tree[0, final])
        first, final = first // 2, final // 2
    return last


@inner
def _interval(cells: _Cells, cell: int) -> int:
    """The first cell of the interval that holds `cell`."""
    first = cell // BLOCK * BLOCK
    while cell > first and not cells.begins[cell]:
        cell -= 1
    if not cells.begins[cell]:  # not in this block: the last one of the nearest block below that has any
        block = cell // BLOCK - 1
        while cells.population[block] == 0:
            block -= 1
        cell = block * BLOCK + BLOCK - 1
        while not cells.begins[cell]:
            cell -= 1
    return cell


@inner
def _split(cells: _Cells, cell: int) -> None:
    """Let an interval begin at `cell`."""
    if not cells.begins[cell]:
        whole = _interval(cells, cell)
        cells.begins[cell] = True
        cells.population[cell // BLOCK] += 1
        cells.after[cell], cells.owner[cell] = cells.after[whole], cells.owner[whole]
        cells.after[whole] = cell


@inner
def _after_own(waits: _Waits, op: int, buffer: int, born: int, write: bool) -> None:
    """An op touches a buffer: wait for its last write and, if writing, for the reads since.

    The cause is the buffer's bytes, where it took them from itself in an earlier lifetime; else a copy, or its data.
    """
    n = len(waits.stream)
    # Where each iteration has a buffer of its own, what touched it before this lifetime was another one.
    since = NOBODY if waits.fixed[buffer] else born - 1
    reused_before = born if waits.shares[buffer] else NOBODY
    last = waits.wrote[buffer]
    if last > since:
        why = MEMORY if last < reused_before else COPY if waits.copy[last % n] else DATA
        _wait(waits, op, waits.stream[last % n], last, why=why)
    if write:
        for stream in range(waits.read.shape[1]):
            last = waits.read[buffer, stream]
            if last > since:
                why = MEMORY if last < reused_before else COPY if waits.copy[last % n] else DATA
                _wait(waits, op, stream, last, why=why)


@inner
def _after_other(waits: _Waits, op: int, owner: int, buffer: int, write: bool) -> None:
    """An op touches a buffer where `owner` was: wait for the last write of `owner` and, if writing, for its reads."""
    if owner in (buffer, NOBODY):
        return
    if waits.wrote[owner] != NOBODY:
        _wait(waits, op, waits.stream[waits.wrote[owner] % len(waits.stream)], waits.wrote[owner], why=MEMORY)
    if write:
        for stream in range(waits.read.shape[1]):
            if waits.read[owner, stream] != NOBODY:
                _wait(waits, op, stream, waits.read[owner, stream], why=MEMORY)


@inner
def _wait(waits: _Waits, op: int, stream: int, earlier: int, why: int) -> None:
    """Note that `op` waits for `earlier`: of a stream the last op is enough, as those before it have ended by then."""
    if earlier > waits.pred[op, stream] or (earlier == waits.pred[op, stream] and why < waits.cause[op, stream]):
        waits.pred[op, stream] = earlier
        waits.cause[op, stream] = why


@jit
def _reduce(stream: I64, pred: I64) -> None:  # noqa: C901  compiled: rows are set entry by entry
    """Remove from `pred` the waits that follow from others.

    `known[position, s]` is a vector clock: the last op of stream `s` that is known to have ended before an op starts.
    """
    n, streams = pred.shape
    known = np.full((2 * n, streams), NOBODY)
    last = np.full(streams, NOBODY)
    for position in range(2 * n):
        op, turn = position % n, position // n * n
        own = last[stream[op]]
        if own != NOBODY:  # what the op before on the same stream has waited for
            for other in range(streams):  # Numba needs two seconds to compile a row that is set to a row
                known[position, other] = known[own, other]
            known[position, stream[op]] = own
        for awaited in range(streams):  # and what those have waited for that this one waits for
            earlier = pred[op, awaited] - n + turn
            if pred[op, awaited] != NOBODY and earlier >= 0:
                for other in range(streams):
                    known[position, other] = max(known[position, other], known[earlier, other])
        # Only in the second turn, where `known` holds all of an iteration back. Nothing is lost: what is removed is
        # enforced by another candidate or by the stream. The candidates themselves join `known` below, so that two of
        # them cannot remove one another.
        if turn:
            for other in range(streams):
                if pred[op, other] != NOBODY and known[position, other] >= pred[op, other]:
                    pred[op, other] = NOBODY
        for other in range(streams):
            if pred[op, other] != NOBODY:
                known[position, other] = max(known[position, other], pred[op, other] - n + turn)
        last[stream[op]] = position
