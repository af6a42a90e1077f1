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

BLOCK = 256  # cells; a power of two near the square root of how many there are
NOBODY = -1  # in place of an op or a buffer; before all of them


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
    ops, b = trace.ops, trace.buffers
    shares, fixed, low, high = _addresses(trace, placement, host)
    written = np.zeros(len(b), np.bool_)
    written[ops.writes.idx] = True
    edges = np.unique(np.concatenate([[0], low[shares], high[shares]]))  # addresses where a buffer begins or ends
    table = (trace.n, len(ops.streams))
    touches = _Touches(
        *(ops.reads.ptr, ops.reads.idx, ops.writes.ptr, ops.writes.idx, b.start),
        *(np.searchsorted(edges, low), np.searchsorted(edges, high), shares & ~written),
    )
    pred, cause = np.empty(table, np.int64), np.empty(table, np.int64)
    wrote, read = np.full(len(b), NOBODY), np.full((len(b), len(ops.streams)), NOBODY)
    state = _Waits(ops.stream, ops.copies, fixed, shares, wrote, read, pred, cause)
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
    b = trace.buffers
    full = b.end - b.start == trace.n
    low = np.zeros(len(b), np.int64)
    placed = np.zeros(len(b), np.bool_)
    top = 0
    for given, mine in ((placement, ~b.host), (host, b.host)):
        if given is not None:
            low[mine] = given.offset[mine] + top
            top += given.height
            placed |= mine
    fixed = b.host | trace.eternal if placement is None else np.ones(len(b), np.bool_)
    return placed & ~full & (b.size > 0), fixed, low, low + b.size


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
def _sweep(x: _Touches, w: _Waits, c: _Cells, unwritten: I64) -> None:
    """Fill in what each op waits for."""
    n = len(w.stream)
    for t in range(2 * n):
        i = t % n
        w.pred[i, :] = NOBODY
        for k in range(x.read_ptr[i], x.read_ptr[i + 1]):
            b = x.reads[k]
            born = t - (i - x.start[b]) % n
            _after_own(w, i, b, born, False)
            if w.shares[b] and w.wrote[b] < born:  # uninitialised: what was at these bytes before
                cell = _interval(c, x.low[b])
                while cell < x.high[b]:
                    _after_other(w, i, c.owner[cell], b, False)
                    cell = c.after[cell]
        for k in range(x.write_ptr[i], x.write_ptr[i + 1]):
            b = x.writes[k]
            born = t - (i - x.start[b]) % n
            _after_own(w, i, b, born, True)
            if w.shares[b] and w.wrote[b] < born:  # the first write of this lifetime takes the bytes over
                low, high = x.low[b], x.high[b]
                _split(c, low)
                _split(c, high)
                cell = low
                while cell < high:
                    _after_other(w, i, c.owner[cell], b, True)
                    if cell > low:
                        c.begins[cell] = False
                        c.population[cell // BLOCK] -= 1
                    cell = c.after[cell]
                c.after[low], c.owner[low] = high, b
                if unwritten.shape[2] > 2:
                    for s in range(len(unwritten)):
                        y = _last_read(unwritten[s], low, high)
                        if y != NOBODY:
                            _wait(w, i, s, y, MEMORY)
        for k in range(x.read_ptr[i], x.read_ptr[i + 1]):
            w.read[x.reads[k], w.stream[i]] = t
            if x.unwritten[x.reads[k]]:
                _note_read(unwritten[w.stream[i]], x.low[x.reads[k]], x.high[x.reads[k]], t)
        for k in range(x.write_ptr[i], x.write_ptr[i + 1]):
            w.wrote[x.writes[k]] = t
            w.read[x.writes[k], :] = NOBODY


@inner
def _note_read(tree: I64, low: int, high: int, t: int) -> None:
    """Note a read of the cells `[low, high)`; it is later than all that are noted."""
    p, q = low + tree.shape[1] // 2, high + tree.shape[1] // 2
    while p < q:
        if p % 2 == 1:
            tree[0, p] = t
            _note_above(tree, p, t)
        if q % 2 == 1:
            tree[0, q - 1] = t
            _note_above(tree, q - 1, t)
        p, q = (p + 1) // 2, q // 2


@inner
def _note_above(tree: I64, p: int, t: int) -> None:
    while p > 0 and tree[1, p] != t:  # above that it is noted already
        tree[1, p] = t
        p //= 2


@inner
def _last_read(tree: I64, low: int, high: int) -> int:
    """The last noted read of any of the cells `[low, high)`, or NOBODY."""
    p, q, last = low + tree.shape[1] // 2, high + tree.shape[1] // 2, NOBODY
    left, right = p, q - 1
    while p < q:
        if p % 2 == 1:
            last = max(last, tree[1, p])
        if q % 2 == 1:
            last = max(last, tree[1, q - 1])
        p, q = (p + 1) // 2, q // 2
    while left > 0:  # what was noted for all of a subtree that the range lies in, or part of it does
        last = max(last, tree[0, left], tree[0, right])
        left, right = left // 2, right // 2
    return last


@inner
def _interval(c: _Cells, cell: int) -> int:
    """The first cell of the interval that holds `cell`."""
    first = cell // BLOCK * BLOCK
    while cell > first and not c.begins[cell]:
        cell -= 1
    if not c.begins[cell]:  # not in this block: the last one of the nearest block below that has any
        block = cell // BLOCK - 1
        while c.population[block] == 0:
            block -= 1
        cell = block * BLOCK + BLOCK - 1
        while not c.begins[cell]:
            cell -= 1
    return cell


@inner
def _split(c: _Cells, cell: int) -> None:
    """Let an interval begin at `cell`."""
    if not c.begins[cell]:
        whole = _interval(c, cell)
        c.begins[cell] = True
        c.population[cell // BLOCK] += 1
        c.after[cell], c.owner[cell] = c.after[whole], c.owner[whole]
        c.after[whole] = cell


@inner
def _after_own(w: _Waits, i: int, x: int, born: int, write: bool) -> None:
    """Op `i` touches buffer `x`: wait for its last write and, if writing, for the reads since."""
    n = len(w.stream)
    since = NOBODY if w.fixed[x] else born - 1
    if w.wrote[x] > since:
        y = w.wrote[x]
        _wait(w, i, w.stream[y % n], y, MEMORY if y < born and w.shares[x] else COPY if w.copy[y % n] else DATA)
    if write:
        for s in range(w.read.shape[1]):
            y = w.read[x, s]
            if y > since:
                _wait(w, i, s, y, MEMORY if y < born and w.shares[x] else COPY if w.copy[y % n] else DATA)


@inner
def _after_other(w: _Waits, i: int, y: int, x: int, write: bool) -> None:
    """Op `i` touches buffer `x` where `y` was: wait for the last write of `y` and, if writing, for its reads."""
    if y in (x, NOBODY):
        return
    if w.wrote[y] != NOBODY:
        _wait(w, i, w.stream[w.wrote[y] % len(w.stream)], w.wrote[y], MEMORY)
    if write:
        for s in range(w.read.shape[1]):
            if w.read[y, s] != NOBODY:
                _wait(w, i, s, w.read[y, s], MEMORY)


@inner
def _wait(w: _Waits, i: int, s: int, y: int, why: int) -> None:
    if y > w.pred[i, s] or (y == w.pred[i, s] and why < w.cause[i, s]):
        w.pred[i, s] = y
        w.cause[i, s] = why


@jit
def _reduce(stream: I64, pred: I64) -> None:
    """Remove from `pred` what follows from the rest. `known[t, s]`: the last op of stream `s` that ended before."""
    n, streams = pred.shape
    known = np.full((2 * n, streams), NOBODY)
    last = np.full(streams, NOBODY)
    for t in range(2 * n):
        i, turn = t % n, t // n * n
        own = last[stream[i]]
        if own != NOBODY:
            for s in range(streams):  # Numba needs two seconds to compile a row that is set to a row
                known[t, s] = known[own, s]
            known[t, stream[i]] = own
        for s in range(streams):
            y = pred[i, s] - n + turn
            if pred[i, s] != NOBODY and y >= 0:
                for r in range(streams):
                    known[t, r] = max(known[t, r], known[y, r])
        if turn:  # what streams have told one another by now, but for the candidates themselves
            for s in range(streams):
                if pred[i, s] != NOBODY and known[t, s] >= pred[i, s]:
                    pred[i, s] = NOBODY
        for s in range(streams):
            if pred[i, s] != NOBODY:
                known[t, s] = max(known[t, s], pred[i, s] - n + turn)
        last[stream[i]] = t
