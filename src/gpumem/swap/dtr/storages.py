"""Remade: which buffers may be evicted and made again, from what and at what cost, as columns for compiled loops.

DTR evicts storages and makes one again by the call that made it. A storage here is a buffer that one op writes as a
whole, with all its changes in place, which belong to its value: it is made again by that *chain*::

    op     w        c         x          last
    b   ===[whole]==[change]==[read]=====[read]==|      evictable after c, made again by w and c

All others stay where they are for as long as they live.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import jit
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.recompute import barred, takes_unknown
from gpumem.swap.plan.values import FINE, Origins
from gpumem.trace import I64, Bool, Csr, Trace
from gpumem.trace.kinds import WORKSPACE


class Remade(NamedTuple):
    """Columns over buffers (B of them), over ops (n) and rows of buffers; only evictable buffers stand in rows."""

    size: I64  # B: bytes
    cost: I64  # B: ns of its chain
    scratch: I64  # B: bytes that its chain writes
    evictable: Bool  # B
    ready: I64  # B: the op that writes it last
    need_ptr: I64  # B + n + 1
    need: I64  # what a buffer is made of; from row B on what op `row - B` reads
    user_ptr: I64  # B + 1
    user: I64  # what is made of it
    beside_ptr: I64  # B + 1
    beside: I64  # what its chain makes besides
    start_ptr: I64  # n + 1
    start: I64  # what begins at an op
    ready_ptr: I64  # n + 1
    made: I64  # what an op writes last
    end_ptr: I64  # n + 1
    end: I64  # what dies after an op
    duration: I64  # n: ns
    fixed: I64  # n: bytes of all other buffers on the device during an op
    before: I64  # n: and right before it

    @classmethod
    def of(cls, trace: Trace, machine: Machine) -> Remade:
        """Look up all accesses: O(accesses log accesses)."""
        b, n, chains, duration = trace.buffers, trace.n, _Chains.of(trace, machine), machine.durations(trace)
        count, rows = len(b), np.arange(len(b))
        cost = np.bincount(chains.row, duration[chains.op], count).astype(np.int64)
        need = _needs(trace, chains)
        beside, scratch = _beside(trace, chains)
        mine, other = rows[chains.evictable], ~chains.evictable & ~b.host
        fixed = _load(trace, other)
        begun = np.bincount(b.start[other & ~trace.eternal], b.size[other & ~trace.eternal], n).astype(np.int64)
        made_of = need.rows() < count
        user = Csr.grouped(need.idx[made_of], need.rows()[made_of], count)
        at = (b.start, chains.ready, np.minimum(b.end, n) - 1)
        start, ready, end = (Csr.grouped(op[mine], mine, n) for op in at)
        return cls(
            b.size,
            cost,
            scratch,
            chains.evictable,
            chains.ready,
            *(need.ptr, need.idx),
            *(user.ptr, user.idx),
            *(beside.ptr, beside.idx),
            *(start.ptr, start.idx),
            *(ready.ptr, ready.idx),
            *(end.ptr, end.idx),
            *(duration, fixed, fixed - begun),
        )


class _Chains(NamedTuple):
    """Which buffers are evictable, the op that writes each last, and the ops of chains, by buffer, ascending."""

    evictable: Bool
    ready: I64
    row: I64
    op: I64

    @classmethod
    def of(cls, trace: Trace, machine: Machine) -> _Chains:
        """An evictable buffer can be made again at all places up to its last access.

        Its one whole write is the first access, each op of the chain may run again, and what these read is there at
        all those places, or evictable itself: then it can be made for as long.
        """
        b, touched, v = trace.buffers, trace.accesses(), Origins.of(trace)
        row, op, count, n = touched.op.rows(), touched.op.idx, len(b), trace.n
        whole = touched.writes & ~touched.reads
        final, ready = np.full(count, -1, np.int64), np.full(count, n, np.int64)
        final[row] = np.arange(len(row))  # the last access
        last_write = np.full(count, -1, np.int64)
        last_write[row[touched.writes]] = np.flatnonzero(touched.writes)
        first = touched.op.ptr[:-1]
        some = (first < touched.op.ptr[1:]) & (last_write >= 0)
        ready[some] = op[last_write[some]]
        fine = some & ~b.host & ~b.persistent & (b.end <= n) & (np.bincount(row[whole], minlength=count) == 1)
        fine[some] &= whole[first[some]] & (v.left.why[last_write[some]] == FINE)
        fine &= np.array([kind != WORKSPACE for kind in b.kind], np.bool_)
        never = barred(trace, machine) | takes_unknown(trace)
        mine = touched.writes
        fine &= np.bincount(row[mine], never[op[mine]], count) == 0
        last = np.where(some, op[final], -1)
        chain_ptr = np.searchsorted(row[mine], np.arange(count + 1)).astype(np.int64)
        done = Csr.grouped(ready[fine], np.flatnonzero(fine), n)
        _keep(v, fine, ready, last, chain_ptr, op[mine], done.ptr, done.idx)
        chosen = fine[row] & mine
        return cls(fine, ready, row[chosen], op[chosen])


@jit
def _keep(v: Origins, fine: Bool, ready: I64, last: I64, chain_ptr: I64, chain: I64, done_ptr: I64, done: I64) -> None:
    """Strike out of `fine` what cannot be made again for as long as it is read; `until` is how long it can be."""
    until = np.zeros(len(fine), np.int64)
    for op in range(v.n):
        for k in range(done_ptr[op], done_ptr[op + 1]):
            b = done[k]
            until[b] = v.n
            for j in range(chain_ptr[b], chain_ptr[b + 1]):
                c = chain[j]
                for i in range(v.read_ptr[c], v.read_ptr[c + 1]):
                    p = v.read[i]
                    if p != b:
                        until[b] = min(until[b], until[p] if fine[p] and ready[p] < c else v.last[i])
            fine[b] = until[b] >= last[b]


def _needs(trace: Trace, chains: _Chains) -> Csr:
    """What each buffer is made of, in the order in which its ops name it, and behind these what each op reads."""
    reads, count = trace.ops.reads, len(trace.buffers)
    pick, of = _rows(reads, chains.op)
    made, source = chains.row[of], reads.idx[pick]
    touch = trace.accesses().op
    when = np.concatenate([chains.op[of], reads.rows(), touch.idx])  # of an op first in the order of reads
    row = np.concatenate([made, count + when[len(of) :]])
    buffer = np.concatenate([source, reads.idx, touch.rows()])
    asked = chains.evictable[buffer] & (chains.ready[buffer] < when)  # until it is ready it is there anyway
    return _distinct(row[asked], buffer[asked], count + trace.n)


def _beside(trace: Trace, chains: _Chains) -> tuple[Csr, I64]:
    """What each chain makes whole besides its buffer, and the bytes of all that it writes."""
    writes, b = trace.ops.writes, trace.buffers
    pick, of = _rows(writes, chains.op)
    row, buffer = chains.row[of], writes.idx[pick]
    key, times = np.unique(row * max(len(b), 1) + buffer, return_counts=True)
    row, buffer = np.divmod(key, max(len(b), 1))
    scratch = np.bincount(row, np.where(b.host, 0, b.size)[buffer], len(b)).astype(np.int64)
    length = np.bincount(chains.row, minlength=len(b))
    whole = chains.evictable[buffer] & (row != buffer) & (times == length[buffer])
    return Csr.grouped(row[whole], buffer[whole], len(b)), scratch


def _rows(table: Csr, rows: I64) -> tuple[I64, I64]:
    """The places in `table.idx` of some rows, one behind the other, and for each the place of its row in `rows`."""
    length = np.diff(table.ptr)[rows]
    of = np.repeat(np.arange(len(rows)), length)
    within = np.arange(len(of)) - np.repeat(np.cumsum(length) - length, length)
    return table.ptr[rows][of] + within, of


def _distinct(row: I64, idx: I64, count: int) -> Csr:
    """Rows without what they have already."""
    _, first = np.unique(row * (idx.max(initial=0) + 1) + idx, return_index=True)
    first = np.sort(first)
    return Csr.grouped(row[first], idx[first], count)


def _load(trace: Trace, mine: Bool) -> I64:
    """The bytes of some buffers at each op."""
    b, n = trace.buffers, trace.n
    change = np.zeros(2 * n + 1, np.int64)
    np.add.at(change, b.start[mine], b.size[mine])
    np.add.at(change, b.end[mine], -b.size[mine])
    both: I64 = np.cumsum(change)[: 2 * n].reshape(2, n).sum(axis=0)
    return both
