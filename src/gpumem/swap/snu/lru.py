"""Swapping on demand, followed op by op: who is on the device, in which order they were used, what the host has.

A run knows no future, so it keeps a value on the host until it is written or dies, in case it is evicted again. What
the plan that comes out of it holds there, `facts.pinned` says.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.plan.gaps import Gaps
from gpumem.trace import I64, Bool, Csr, Trace

# What `Residency.tally` counts: the first six in one iteration, the last two are the bytes there are now.
COPIES_IN, BYTES_IN, COPIES_OUT, BYTES_OUT, DROPPED, SHORT, ON_DEVICE, ON_HOST = range(8)


class Residency(NamedTuple):
    """Where each buffer is, and the trace, in the columns that the compiled loop reads and writes."""

    size: I64
    touched: I64  # n + 1: where the buffers that each op touches begin in `buffer`
    buffer: I64
    writes: Bool  # along `buffer`
    begins: I64  # along `buffer`: the gap that begins there, or -1
    starts: I64  # n + 1: where the buffers that are made at each op begin in `started`
    started: I64
    ends: I64  # n + 1: where the buffers that die after each op begin in `ended`
    ended: I64
    lru: I64  # int64[2, buffers + 1]: the next older and newer, in a ring; -1 where not in it
    away: I64  # the op for which the buffer was evicted, -1 while it is on the device
    on_host: Bool  # the host has this value
    gap: I64  # the gap that the buffer is in, or -1
    final: I64  # for each gap that has ended, the op for which its buffer was evicted, or -1
    tally: I64

    @classmethod
    def make(cls, trace: Trace, found: Gaps) -> Residency:
        """Set up the first iteration: all that crosses the boundary is on the device, and newer there."""
        b, n = trace.buffers, trace.n
        who = trace.accesses()  # by buffer, in issue order
        entry = Csr.grouped(who.op.idx, np.arange(len(who.op.idx)), n)
        buffer = who.op.rows()[entry.idx]
        row = found.rows(n)
        begins = np.array([row.get(key, -1) for key in zip(buffer.tolist(), entry.rows().tolist())], np.int64)
        mortal = ~b.host & ~trace.eternal
        count, crosses = np.zeros(8, np.int64), ~b.host & trace.crossing
        count[ON_DEVICE] = b.size[crosses].sum()
        starts, ends = (Csr.grouped(op[mortal], np.flatnonzero(mortal), n) for op in (b.start, (b.end - 1) % n))
        state = cls(
            b.size,
            entry.ptr,
            buffer,
            who.writes[entry.idx],
            begins,
            starts.ptr,
            starts.idx,
            ends.ptr,
            ends.idx,
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
        self.tally[: SHORT + 1] = 0
        _follow(self, limit, pinned, snu)

    def key(self) -> bytes:
        """Return all that the next iteration depends on."""
        return b"".join(x.tobytes() for x in (self.lru, self.away, self.on_host))


@jit
def _append(lru: I64, b: int) -> None:
    """Make `b` the most recently used."""
    ring = lru.shape[1] - 1
    newest = lru[0, ring]
    lru[0, b], lru[1, b] = newest, ring
    lru[1, newest], lru[0, ring] = b, b


@inner
def _unlink(lru: I64, b: int) -> None:
    """Take `b` out of the ring, if it is in."""
    if lru[1, b] >= 0:
        lru[1, lru[0, b]], lru[0, lru[1, b]] = lru[1, b], lru[0, b]
        lru[0, b], lru[1, b] = -1, -1


@inner
def _victim(r: Residency, pinned: int, least: int) -> int:
    """The least recently used with at least `least` bytes that the host has room for, or -1."""
    ring = r.lru.shape[1] - 1
    b = int(r.lru[1, ring])
    while b != ring:
        if r.size[b] >= least and (r.on_host[b] or r.tally[ON_HOST] + r.size[b] <= pinned):
            return b
        b = int(r.lru[1, b])
    return -1


@inner
def _make_room(r: Residency, op: int, limit: int, pinned: int, snu: bool) -> None:
    """Evict until what is on the device fits, or nothing can go any more."""
    if snu and r.tally[ON_DEVICE] > limit:  # one buffer that is large enough, if there is one
        b = _victim(r, pinned, r.tally[ON_DEVICE] - limit)
        if b >= 0:
            _evict(r, b, op)
    while r.tally[ON_DEVICE] > limit:
        b = _victim(r, pinned, 0)
        if b < 0:
            break
        _evict(r, b, op)


@inner
def _evict(r: Residency, b: int, op: int) -> None:
    """Take `b` off the device for `op`; a DIRTY buffer is copied out first, a CLEAN one dropped."""
    _unlink(r.lru, b)
    r.away[b] = op
    r.tally[ON_DEVICE] -= r.size[b]
    if r.on_host[b]:
        r.tally[DROPPED] += 1
        return
    r.tally[COPIES_OUT] += 1
    r.tally[BYTES_OUT] += r.size[b]
    r.tally[ON_HOST] += r.size[b]
    r.on_host[b] = True


@inner
def _forget(r: Residency, b: int) -> None:
    """Give back what the host keeps of `b`: the value is gone."""
    if r.on_host[b]:
        r.on_host[b] = False
        r.tally[ON_HOST] -= r.size[b]


@jit
def _follow(r: Residency, limit: int, pinned: int, snu: bool) -> None:
    """Follow one iteration op by op."""
    for i in range(len(r.touched) - 1):
        for k in range(r.touched[i], r.touched[i + 1]):  # no operand of this op is a victim
            _unlink(r.lru, r.buffer[k])
        for k in range(r.starts[i], r.starts[i + 1]):
            r.tally[ON_DEVICE] += r.size[r.started[k]]
            _make_room(r, i, limit, pinned, snu)
        for k in range(r.touched[i], r.touched[i + 1]):
            b = r.buffer[k]
            if r.away[b] >= 0:
                r.tally[COPIES_IN] += 1
                r.tally[BYTES_IN] += r.size[b]
                r.tally[ON_DEVICE] += r.size[b]
            _make_room(r, i, limit, pinned, snu)
        if r.tally[ON_DEVICE] > limit:
            r.tally[SHORT] += 1
        for k in range(r.touched[i], r.touched[i + 1]):
            b = r.buffer[k]
            if r.gap[b] >= 0:
                r.final[r.gap[b]] = r.away[b]
            r.away[b], r.gap[b] = -1, r.begins[k]
            if r.writes[k]:
                _forget(r, b)
            if r.gap[b] >= 0 and r.size[b] > 0:
                _append(r.lru, b)
        for k in range(r.ends[i], r.ends[i + 1]):
            r.tally[ON_DEVICE] -= r.size[r.ended[k]]
            _forget(r, r.ended[k])
