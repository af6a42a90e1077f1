"""Swapping on demand, followed op by op: who is on the device, in which order they were used, what the host has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem._jit import jit
from gpumem.columns import I64, Bool, Csr
from gpumem.swap.gaps import Gaps, gaps
from gpumem.trace import Trace

# What `State.count` counts: the first six in one iteration, the last two are the bytes there are now.
COPIES_IN, BYTES_IN, COPIES_OUT, BYTES_OUT, DROPPED, SHORT, ON_DEVICE, ON_HOST = range(8)


@dataclass(slots=True, eq=False)
class State:
    """Where each buffer is at the boundary, and the trace in the columns that the compiled loop reads."""

    gaps: Gaps
    size: I64
    touched: Csr  # buffers that each op touches
    writes: Bool  # along `touched`
    begins: I64  # along `touched`: the gap that begins there, or -1
    starts: Csr  # buffers that are made at each op
    ends: Csr  # buffers that die after each op
    lru: I64  # int64[2, buffers + 1]: the next older and newer, in a ring; -1 where not in it
    away: I64  # the op for which the buffer was evicted, -1 while it is on the device
    on_host: Bool  # the host has this value
    gap: I64  # the gap that the buffer is in, or -1
    final: I64  # for each gap that has ended, the op for which its buffer was evicted, or -1
    count: I64

    @classmethod
    def make(cls, trace: Trace) -> State:
        """Set up the first iteration: all that crosses the boundary is on the device, and newer there."""
        b, n, found = trace.buffers, trace.n, gaps(trace)
        who = trace.accesses()  # by buffer, in issue order
        entry = Csr.grouped(who.op.idx, np.arange(len(who.op.idx)), n)
        buffer = who.op.rows()[entry.idx]
        row = {key: k for k, key in enumerate(zip(found.buffer.tolist(), found.after.tolist()))}
        begins = np.array([row.get(key, -1) for key in zip(buffer.tolist(), entry.rows().tolist())], np.int64)
        mortal = ~b.host & ~trace.eternal
        count, crosses = np.zeros(8, np.int64), ~b.host & trace.crossing
        count[ON_DEVICE] = b.size[crosses].sum()
        state = cls(
            found,
            b.size,
            Csr(entry.ptr, buffer),
            who.writes[entry.idx],
            begins,
            _by_op(b.start, mortal, n),
            _by_op((b.end - 1) % n, mortal, n),
            np.full((2, len(b) + 1), -1, np.int64),
            np.full(len(b), -1, np.int64),
            np.zeros(len(b), np.bool_),
            np.full(len(b), -1, np.int64),
            np.full(len(found), -1, np.int64),
            count,
        )
        state.lru[:, -1] = len(b)
        for k in np.flatnonzero(found.before >= n)[np.argsort(found.after[found.before >= n], kind="stable")].tolist():
            state.gap[found.buffer[k]] = k
            if b.size[found.buffer[k]]:
                _append(state.lru, int(found.buffer[k]))
        return state

    def advance(self, limit: int, pinned: int, snu: bool) -> None:
        """Follow one iteration."""
        self.count[: SHORT + 1] = 0
        _follow(
            self.size,
            self.touched.ptr,
            self.touched.idx,
            self.writes,
            self.begins,
            self.starts.ptr,
            self.starts.idx,
            self.ends.ptr,
            self.ends.idx,
            limit,
            pinned,
            snu,
            self.lru,
            self.away,
            self.on_host,
            self.gap,
            self.final,
            self.count,
        )

    def key(self) -> bytes:
        """Return all that the next iteration depends on."""
        return b"".join(x.tobytes() for x in (self.lru, self.away, self.on_host))


def _by_op(op: I64, mine: Bool, n: int) -> Csr:
    """The buffers of `mine` by their op."""
    return Csr.grouped(op[mine], np.flatnonzero(mine), n)


@jit
def _append(lru: I64, b: int) -> None:
    """Make `b` the most recently used."""
    ring = lru.shape[1] - 1
    newest = lru[0, ring]
    lru[0, b], lru[1, b] = newest, ring
    lru[1, newest], lru[0, ring] = b, b


@jit
def _unlink(lru: I64, b: int) -> None:
    """Take `b` out of the ring, if it is in."""
    if lru[1, b] >= 0:
        lru[1, lru[0, b]], lru[0, lru[1, b]] = lru[1, b], lru[0, b]
        lru[0, b], lru[1, b] = -1, -1


@jit
def _victim(size: I64, pinned: int, least: int, lru: I64, on_host: Bool, count: I64) -> int:
    """The least recently used with at least `least` bytes that the host has room for, or -1."""
    ring = lru.shape[1] - 1
    b = int(lru[1, ring])
    while b != ring:
        if size[b] >= least and (on_host[b] or count[ON_HOST] + size[b] <= pinned):
            return b
        b = int(lru[1, b])
    return -1


@jit
def _make_room(
    op: int, size: I64, limit: int, pinned: int, snu: bool, lru: I64, away: I64, on_host: Bool, count: I64
) -> None:
    """Evict until what is on the device fits, or nothing can go any more."""
    if snu and count[ON_DEVICE] > limit:  # one buffer that is large enough, if there is one
        b = _victim(size, pinned, count[ON_DEVICE] - limit, lru, on_host, count)
        if b >= 0:
            _evict(b, op, size, lru, away, on_host, count)
    while count[ON_DEVICE] > limit:
        b = _victim(size, pinned, 0, lru, on_host, count)
        if b < 0:
            break
        _evict(b, op, size, lru, away, on_host, count)


@jit
def _evict(b: int, op: int, size: I64, lru: I64, away: I64, on_host: Bool, count: I64) -> None:
    """Take `b` off the device for `op`; a DIRTY buffer is copied out first, a CLEAN one dropped."""
    _unlink(lru, b)
    away[b] = op
    count[ON_DEVICE] -= size[b]
    if on_host[b]:
        count[DROPPED] += 1
        return
    count[COPIES_OUT] += 1
    count[BYTES_OUT] += size[b]
    count[ON_HOST] += size[b]
    on_host[b] = True


@jit
def _follow(
    size: I64,
    touched: I64,
    buffer: I64,
    writes: Bool,
    begins: I64,
    starts: I64,
    started: I64,
    ends: I64,
    ended: I64,
    limit: int,
    pinned: int,
    snu: bool,
    lru: I64,
    away: I64,
    on_host: Bool,
    gap: I64,
    final: I64,
    count: I64,
) -> None:
    """Follow one iteration op by op."""
    for i in range(len(touched) - 1):
        for k in range(touched[i], touched[i + 1]):  # no operand of this op is a victim
            _unlink(lru, buffer[k])
        for k in range(starts[i], starts[i + 1]):
            count[ON_DEVICE] += size[started[k]]
            _make_room(i, size, limit, pinned, snu, lru, away, on_host, count)
        for k in range(touched[i], touched[i + 1]):
            b = buffer[k]
            if away[b] >= 0:
                count[COPIES_IN] += 1
                count[BYTES_IN] += size[b]
                count[ON_DEVICE] += size[b]
            _make_room(i, size, limit, pinned, snu, lru, away, on_host, count)
        if count[ON_DEVICE] > limit:
            count[SHORT] += 1
        for k in range(touched[i], touched[i + 1]):
            b = buffer[k]
            if gap[b] >= 0:
                final[gap[b]] = away[b]
            away[b], gap[b] = -1, begins[k]
            if writes[k] and on_host[b]:
                on_host[b] = False
                count[ON_HOST] -= size[b]
            if gap[b] >= 0 and size[b] > 0:
                _append(lru, b)
        for k in range(ends[i], ends[i + 1]):
            b = ended[k]
            count[ON_DEVICE] -= size[b]
            if on_host[b]:
                on_host[b] = False
                count[ON_HOST] -= size[b]
