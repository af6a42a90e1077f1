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

import numpy as np

from gpumem._jit import jit
from gpumem.columns import I64, Bool, Csr
from gpumem.placement import Placement
from gpumem.timeline import COPY, DATA, MEMORY
from gpumem.trace import Trace

BLOCK = 256  # cells; a power of two near the square root of how many there are


@dataclass(frozen=True, slots=True, eq=False)
class Hazards:
    """Row `i` of `after` lists the ops that op `i` waits for; `cause` runs along (see `timeline.CAUSES`).

    A negative entry `y` is op `y + n` of the previous iteration. What follows from the order within a
    stream and from other waits is left out: no entry can be spared, and each is a conflict of its own.
    """

    after: Csr
    cause: I64


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
    >>> from gpumem.columns import Buffers, Ops
    >>> ops = Ops.make([[], [0], []], [[0], [], [1]], stream=[0, 1, 0], streams=["compute", "d2h"])
    >>> trace = Trace(Buffers.make([8, 8], [0, 2], [2, 3]), ops)
    >>> hazards(trace).after.tolist()
    [[], [0], []]
    >>> hazards(trace, Placement.at(trace, [0, 0])).after.tolist()  # op 0 waits for op 1 by way of op 2
    [[], [0], [1]]
    """
    n, ops, b = trace.n, trace.ops, trace.buffers
    shares, fixed, low, high = _addresses(trace, placement, host)
    written = np.zeros(len(b), np.bool_)
    written[ops.writes.idx] = True
    unwritten = np.flatnonzero(shares & ~written)
    edges = np.unique(np.concatenate([[0], low[shares], high[shares]]))  # addresses where a buffer begins or ends
    low, high = np.searchsorted(edges, low), np.searchsorted(edges, high)
    pred = np.full((n, len(ops.streams)), -1, np.int64)
    cause = np.zeros((n, len(ops.streams)), np.int64)
    accesses = (ops.reads.ptr, ops.reads.idx, ops.writes.ptr, ops.writes.idx)
    _sweep(*accesses, ops.stream, ops.copies, b.start, fixed, shares, low, high, len(edges), unwritten, pred, cause)
    pred[np.arange(len(ops)), ops.stream] = -1
    _reduce(ops.stream, pred)
    op, _ = np.nonzero(pred >= 0)
    ptr = np.searchsorted(op, np.arange(n + 1)).astype(np.int64)
    return Hazards(Csr(ptr, pred[pred >= 0] - n), cause[pred >= 0])


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


@jit
def _sweep(
    read_ptr: I64,
    reads: I64,
    write_ptr: I64,
    writes: I64,
    stream: I64,
    copy: Bool,
    start: I64,
    fixed: Bool,
    shares: Bool,
    low: I64,
    high: I64,
    cells: int,
    unwritten: I64,
    pred: I64,
    cause: I64,
) -> None:
    """Fill `pred[op, stream]` with the last op (+ n) of each stream that an op waits for, and why.

    Buffers that `shares` bytes take cells `low..high` of the address space. Intervals of cells partition
    it: `owner[k]` wrote the one that begins at cell `k` last, `after[k]` is where the next one begins.
    """
    n, streams = pred.shape
    wrote = np.full(len(start), -1, np.int64)  # last write of each buffer, by position in the two turns
    read = np.full((len(start), streams), -1, np.int64)  # reads since, the last of each stream
    begins = np.zeros(cells + 1, np.bool_)
    population = np.zeros(cells // BLOCK + 1, np.int64)  # how many intervals begin in each block of cells
    after = np.full(cells + 1, cells, np.int64)
    owner = np.full(cells + 1, -1, np.int64)
    begins[0], population[0] = True, 1
    for t in range(2 * n):
        i = t % n
        pred[i, :] = -1
        for k in range(read_ptr[i], read_ptr[i + 1]):
            x = reads[k]
            born = t - (i - start[x]) % n
            _after_own(pred, cause, i, x, born, fixed[x], False, wrote, read, stream, copy, shares)
            if shares[x] and wrote[x] < born:  # uninitialised: what was at these bytes before
                cell = _interval(begins, population, low[x])
                while cell < high[x]:
                    _after_other(pred, cause, i, owner[cell], x, False, wrote, read, stream)
                    cell = after[cell]
        for k in range(write_ptr[i], write_ptr[i + 1]):
            x = writes[k]
            born = t - (i - start[x]) % n
            _after_own(pred, cause, i, x, born, fixed[x], True, wrote, read, stream, copy, shares)
            if shares[x] and wrote[x] < born:  # the first write of this lifetime takes the bytes over
                _split(begins, population, after, owner, low[x])
                _split(begins, population, after, owner, high[x])
                cell = low[x]
                while cell < high[x]:
                    _after_other(pred, cause, i, owner[cell], x, True, wrote, read, stream)
                    if cell > low[x]:
                        begins[cell] = False
                        population[cell // BLOCK] -= 1
                    cell = after[cell]
                after[low[x]], owner[low[x]] = high[x], x
                for y in unwritten:
                    if low[y] < high[x] and low[x] < high[y]:
                        _after_other(pred, cause, i, y, x, True, wrote, read, stream)
        for k in range(read_ptr[i], read_ptr[i + 1]):
            read[reads[k], stream[i]] = t
        for k in range(write_ptr[i], write_ptr[i + 1]):
            wrote[writes[k]] = t
            read[writes[k], :] = -1


@jit
def _interval(begins: Bool, population: I64, cell: int) -> int:
    """The first cell of the interval that holds `cell`."""
    first = cell // BLOCK * BLOCK
    while cell > first and not begins[cell]:
        cell -= 1
    if not begins[cell]:  # not in this block: the last one of the nearest block below that has any
        block = cell // BLOCK - 1
        while population[block] == 0:
            block -= 1
        cell = block * BLOCK + BLOCK - 1
        while not begins[cell]:
            cell -= 1
    return cell


@jit
def _split(begins: Bool, population: I64, after: I64, owner: I64, cell: int) -> None:
    """Let an interval begin at `cell`."""
    if not begins[cell]:
        whole = _interval(begins, population, cell)
        begins[cell] = True
        population[cell // BLOCK] += 1
        after[cell], owner[cell] = after[whole], owner[whole]
        after[whole] = cell


@jit
def _after_own(
    pred: I64,
    cause: I64,
    i: int,
    x: int,
    born: int,
    fixed: bool,
    write: bool,
    wrote: I64,
    read: I64,
    stream: I64,
    copy: Bool,
    shares: Bool,
) -> None:
    """Op `i` touches buffer `x`: wait for its last write and, if writing, for the reads since."""
    n = len(stream)
    since = -1 if fixed else born - 1
    if wrote[x] > since:
        y = wrote[x]
        _wait(pred, cause, i, stream[y % n], y, MEMORY if y < born and shares[x] else COPY if copy[y % n] else DATA)
    if write:
        for s in range(read.shape[1]):
            y = read[x, s]
            if y > since:
                _wait(pred, cause, i, s, y, MEMORY if y < born and shares[x] else COPY if copy[y % n] else DATA)


@jit
def _wait(pred: I64, cause: I64, i: int, s: int, y: int, why: int) -> None:
    if y > pred[i, s] or (y == pred[i, s] and why < cause[i, s]):
        pred[i, s] = y
        cause[i, s] = why


@jit
def _after_other(
    pred: I64, cause: I64, i: int, y: int, x: int, write: bool, wrote: I64, read: I64, stream: I64
) -> None:
    """Op `i` touches buffer `x` where `y` was: wait for the last write of `y` and, if writing, for its reads."""
    if y == x or y < 0:
        return
    if wrote[y] >= 0:
        _wait(pred, cause, i, stream[wrote[y] % len(stream)], wrote[y], MEMORY)
    if write:
        for s in range(read.shape[1]):
            if read[y, s] >= 0:
                _wait(pred, cause, i, s, read[y, s], MEMORY)


@jit
def _reduce(stream: I64, pred: I64) -> None:
    """Remove from `pred` what follows from the rest. `known[t, s]`: the last op of stream `s` that ended before."""
    n, streams = pred.shape
    known = np.full((2 * n, streams), -1, np.int64)
    last = np.full(streams, -1, np.int64)
    for t in range(2 * n):
        i, turn = t % n, t // n * n
        own = last[stream[i]]
        if own >= 0:
            known[t, :] = known[own, :]
            known[t, stream[i]] = own
        for s in range(streams):
            y = pred[i, s] - n + turn
            if pred[i, s] >= 0 and y >= 0:
                for r in range(streams):
                    known[t, r] = max(known[t, r], known[y, r])
        if turn:  # what streams have told one another by now, but for the candidates themselves
            for s in range(streams):
                if pred[i, s] >= 0 and known[t, s] >= pred[i, s]:
                    pred[i, s] = -1
        for s in range(streams):
            if pred[i, s] >= 0:
                known[t, s] = max(known[t, s], pred[i, s] - n + turn)
        last[stream[i]] = t
