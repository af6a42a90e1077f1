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
from gpumem.columns import COPY_IN, COPY_OUT, I64, Bool, Csr
from gpumem.placement import Placement
from gpumem.timeline import COPY, DATA, MEMORY
from gpumem.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Hazards:
    """Row `i` of `after` lists the ops that op `i` waits for; `cause` runs along (see `timeline.CAUSES`).

    A negative entry `y` is op `y + n` of the previous iteration. Waits within a stream go without
    saying, and of several ops of one other stream only the last is listed.
    """

    after: Csr
    cause: I64


def hazards(trace: Trace, placement: Placement | None = None) -> Hazards:
    """Return what each op waits for on other streams, in the steady state.

    Parameters
    ----------
    trace : Trace
    placement : Placement, optional
        A valid one. With it, overlapping bytes count, and a buffer is the same thing in every iteration.
        Without it, only buffers do, and each iteration has device buffers of its own, but for persistent
        full circles.

    Returns
    -------
    Hazards

    Notes
    -----
    One sweep twice round the circle, near-linear: last write and last reads per buffer, and a map from
    address intervals to the buffer that wrote there last. A read before the first write of a lifetime
    (of uninitialised bytes) waits for earlier writes of these bytes, as the rule says.

    Examples
    --------
    >>> from gpumem.columns import Buffers, Ops
    >>> ops = Ops.make([[], [0], []], [[0], [], [1]], stream=[0, 1, 0], streams=["compute", "d2h"])
    >>> trace = Trace(Buffers.make([8, 8], [0, 2], [2, 3]), ops)
    >>> hazards(trace).after.tolist()
    [[], [0], []]
    >>> hazards(trace, Placement.at(trace, [0, 0])).after.tolist()
    [[-2], [0], [1]]
    """
    n, ops, b = trace.n, trace.ops, trace.buffers
    full = b.end - b.start == n
    if placement is None:
        offset, fixed = np.full(len(b), -1, np.int64), b.host | (full & b.persistent)
    else:
        offset, fixed = np.where(full | (b.size == 0), -1, placement.offset), np.ones(len(b), np.bool_)
    written = np.zeros(len(b), np.bool_)
    written[ops.writes.idx] = True
    unwritten = np.flatnonzero((offset >= 0) & ~written)
    pred = np.full((n, len(ops.streams)), -1, np.int64)
    cause = np.zeros((n, len(ops.streams)), np.int64)
    copy = (ops.role == COPY_OUT) | (ops.role == COPY_IN)
    reads, writes = ops.reads, ops.writes
    _sweep(
        reads.ptr,
        reads.idx,
        writes.ptr,
        writes.idx,
        ops.stream,
        copy,
        b.start,
        fixed,
        b.size,
        offset,
        unwritten,
        pred,
        cause,
    )
    pred[np.arange(len(ops)), ops.stream] = -1
    op, _ = np.nonzero(pred >= 0)
    ptr = np.searchsorted(op, np.arange(n + 1)).astype(np.int64)
    return Hazards(Csr(ptr, pred[pred >= 0] - n), cause[pred >= 0])


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
    size: I64,
    offset: I64,
    unwritten: I64,
    pred: I64,
    cause: I64,
) -> None:
    """Fill `pred[op, stream]` with the last op (+ n) of each stream that an op waits for, and why."""
    n, streams = pred.shape
    count = len(size)
    wrote = np.full(count, -1, np.int64)  # last write of each buffer, by position in the two turns
    read = np.full((count, streams), -1, np.int64)  # reads since, the last of each stream
    low = np.empty(2 * count + 3, np.int64)  # intervals of the address space by rising address ...
    high = np.empty(2 * count + 3, np.int64)
    owner = np.empty(2 * count + 3, np.int64)  # ... and who wrote there last
    used = 0
    for t in range(2 * n):
        i = t % n
        pred[i, :] = -1
        for k in range(read_ptr[i], read_ptr[i + 1]):
            x = reads[k]
            born = t - (i - start[x]) % n
            _after_own(pred, cause, i, x, born, fixed[x], False, wrote, read, stream, copy, offset)
            if offset[x] >= 0 and wrote[x] < born:  # uninitialised: what was at these bytes before
                k0 = _first_above(high, used, offset[x])
                while k0 < used and low[k0] < offset[x] + size[x]:
                    _after_other(pred, cause, i, owner[k0], x, False, wrote, read, stream)
                    k0 += 1
        for k in range(write_ptr[i], write_ptr[i + 1]):
            x = writes[k]
            born = t - (i - start[x]) % n
            _after_own(pred, cause, i, x, born, fixed[x], True, wrote, read, stream, copy, offset)
            if offset[x] >= 0 and wrote[x] < born:  # the first write of this lifetime takes the bytes over
                at, to = offset[x], offset[x] + size[x]
                k0 = _first_above(high, used, at)
                k1 = k0
                while k1 < used and low[k1] < to:
                    _after_other(pred, cause, i, owner[k1], x, True, wrote, read, stream)
                    k1 += 1
                for y in unwritten:
                    if offset[y] < to and at < offset[y] + size[y]:
                        _after_other(pred, cause, i, y, x, True, wrote, read, stream)
                used = _claim(low, high, owner, used, k0, k1, at, to, x)
        for k in range(read_ptr[i], read_ptr[i + 1]):
            read[reads[k], stream[i]] = t
        for k in range(write_ptr[i], write_ptr[i + 1]):
            wrote[writes[k]] = t
            read[writes[k], :] = -1


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
    offset: I64,
) -> None:
    """Op `i` touches buffer `x`: wait for its last write and, if writing, for the reads since."""
    n = len(stream)
    since = -1 if fixed else born - 1
    if wrote[x] > since:
        y = wrote[x]
        _wait(
            pred, cause, i, stream[y % n], y, MEMORY if y < born and offset[x] >= 0 else COPY if copy[y % n] else DATA
        )
    if write:
        for s in range(read.shape[1]):
            y = read[x, s]
            if y > since:
                _wait(pred, cause, i, s, y, MEMORY if y < born and offset[x] >= 0 else COPY if copy[y % n] else DATA)


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
    if y == x:
        return
    if wrote[y] >= 0:
        _wait(pred, cause, i, stream[wrote[y] % len(stream)], wrote[y], MEMORY)
    if write:
        for s in range(read.shape[1]):
            if read[y, s] >= 0:
                _wait(pred, cause, i, s, read[y, s], MEMORY)


@jit
def _first_above(high: I64, used: int, at: int) -> int:
    """The first interval that ends above address `at`."""
    a, z = 0, used
    while a < z:
        m = (a + z) // 2
        if high[m] > at:
            z = m
        else:
            a = m + 1
    return a


@jit
def _claim(low: I64, high: I64, owner: I64, used: int, k0: int, k1: int, at: int, to: int, x: int) -> int:
    """Give `[at, to)` to `x`: intervals `k0..k1` overlap it, the outermost keep what sticks out."""
    left = k0 < k1 and low[k0] < at
    right = k0 < k1 and high[k1 - 1] > to
    left_low, left_owner = (low[k0], owner[k0]) if left else (0, 0)
    right_high, right_owner = (high[k1 - 1], owner[k1 - 1]) if right else (0, 0)
    shift = 1 + int(left) + int(right) - (k1 - k0)
    if shift > 0:
        for k in range(used - 1, k1 - 1, -1):
            low[k + shift], high[k + shift], owner[k + shift] = low[k], high[k], owner[k]
    elif shift < 0:
        for k in range(k1, used):
            low[k + shift], high[k + shift], owner[k + shift] = low[k], high[k], owner[k]
    k = k0
    if left:
        low[k], high[k], owner[k] = left_low, at, left_owner
        k += 1
    low[k], high[k], owner[k] = at, to, x
    if right:
        low[k + 1], high[k + 1], owner[k + 1] = to, right_high, right_owner
    return used + shift
