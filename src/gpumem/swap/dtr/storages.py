"""Storages: which buffers may be evicted and recomputed, from what and at what cost, as columns for compiled loops.

DTR evicts storages and recomputes one by the call that made it. A storage here is a buffer that one op writes as a
whole, with all its changes in place, which belong to its value: it is recomputed by that *chain*::

    op     w        c         x          last
    b   ===[whole]==[change]==[read]=====[read]==|      evictable after c, recomputed by w and c

All others stay on the device for as long as they live.
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


class BufferRows(NamedTuple):
    """Row `k` is `idx[ptr[k] : ptr[k + 1]]`."""

    ptr: I64
    idx: I64

    @classmethod
    def of(cls, table: Csr) -> BufferRows:
        """Return those of a table."""
        return cls(table.ptr, table.idx)


class DtrStorages(NamedTuple):
    """Columns over buffers (B of them), over ops (n) and rows of buffers; only evictable buffers stand in rows."""

    size: I64  # B: bytes
    cost: I64  # B: ns of its chain
    scratch: I64  # B: bytes that its chain writes
    evictable: Bool  # B
    ready_at: I64  # B: the op that writes it last
    need: BufferRows  # B + n: the sources of a buffer; from row B on what op `row - B` reads
    user: BufferRows  # B: the buffers that have it as a source
    beside: BufferRows  # B: other buffers that its chain writes whole
    start: BufferRows  # n: what begins at an op
    ready: BufferRows  # n: what an op writes last
    end: BufferRows  # n: what dies after an op
    duration: I64  # n: ns
    fixed: I64  # n: bytes of all other buffers on the device during an op
    before: I64  # n: and right before it

    @classmethod
    def of(cls, trace: Trace, machine: Machine) -> DtrStorages:
        """Look up all accesses: O(accesses log accesses)."""
        buffers, n, count = trace.buffers, trace.n, len(trace.buffers)
        chains, duration = _Chains.of(trace, machine), machine.durations(trace)
        cost = np.bincount(chains.row, duration[chains.op], count).astype(np.int64)
        need = _needs(trace, chains)
        beside, scratch = _beside(trace, chains)
        evictable, others = np.flatnonzero(chains.evictable), ~chains.evictable & ~buffers.host
        fixed, begins = _live_bytes(trace, others), others & ~trace.eternal
        begun = np.bincount(buffers.start[begins], buffers.size[begins], n).astype(np.int64)
        is_source = need.rows() < count
        user = Csr.grouped(need.idx[is_source], need.rows()[is_source], count)
        at = (buffers.start, chains.ready_at, np.minimum(buffers.end, n) - 1)
        start, ready, end = (Csr.grouped(op[evictable], evictable, n) for op in at)
        return cls(
            size=buffers.size,
            cost=cost,
            scratch=scratch,
            evictable=chains.evictable,
            ready_at=chains.ready_at,
            need=BufferRows.of(need),
            user=BufferRows.of(user),
            beside=BufferRows.of(beside),
            start=BufferRows.of(start),
            ready=BufferRows.of(ready),
            end=BufferRows.of(end),
            duration=duration,
            fixed=fixed,
            before=fixed - begun,
        )


class _Chains(NamedTuple):
    """Which buffers are evictable, the op that writes each last, and the ops of chains, by buffer, ascending."""

    evictable: Bool
    ready_at: I64
    row: I64
    op: I64

    @classmethod
    def of(cls, trace: Trace, machine: Machine) -> _Chains:
        """An evictable buffer can be recomputed at all places up to its last access.

        Its one whole write is the first access, each op of the chain may be recomputed, and what these read is on the
        device at all those places, or evictable itself: then it can be recomputed for as long.
        """
        buffers, touched, origins = trace.buffers, trace.accesses(), Origins.of(trace)
        row, op, count, n = touched.op.rows(), touched.op.idx, len(buffers), trace.n
        whole, written = touched.writes & ~touched.reads, touched.writes
        final, ready_at = np.full(count, -1, np.int64), np.full(count, n, np.int64)
        final[row] = np.arange(len(row))  # the last access
        last_write = np.full(count, -1, np.int64)
        last_write[row[written]] = np.flatnonzero(written)
        first = touched.op.ptr[:-1]
        is_written = (first < touched.op.ptr[1:]) & (last_write >= 0)
        ready_at[is_written] = op[last_write[is_written]]
        evictable = is_written & ~buffers.host & ~buffers.persistent & (buffers.end <= n)
        evictable &= np.bincount(row[whole], minlength=count) == 1
        evictable[is_written] &= whole[first[is_written]] & (origins.left.why[last_write[is_written]] == FINE)
        evictable &= np.array([kind != WORKSPACE for kind in buffers.kind], np.bool_)
        never = barred(trace, machine) | takes_unknown(trace)
        evictable &= np.bincount(row[written], never[op[written]], count) == 0
        lives = _Lives(ready_at, np.where(is_written, op[final], -1))
        chain = BufferRows(np.searchsorted(row[written], np.arange(count + 1)).astype(np.int64), op[written])
        ready = BufferRows.of(Csr.grouped(ready_at[evictable], np.flatnonzero(evictable), n))
        _strike_out(origins, evictable, lives, chain, ready=ready)
        chosen = evictable[row] & written
        return cls(evictable, ready_at, row[chosen], op[chosen])


class _Lives(NamedTuple):
    """Of each buffer the op that writes it last, and its last access."""

    ready_at: I64
    last: I64


@jit
def _strike_out(origins: Origins, evictable: Bool, lives: _Lives, chain: BufferRows, ready: BufferRows) -> None:
    """Strike out of `evictable` what cannot be recomputed for as long as it is read, in the order of ops.

    `chain`: the ops that write a buffer. `ready`: of each op the buffers that it writes last. `until`: the last place
    at which a buffer can be recomputed, which is that of its source that is the first to change or to die.
    """
    until = np.zeros(len(evictable), np.int64)
    for op in range(origins.n):
        for buffer in ready.idx[ready.ptr[op] : ready.ptr[op + 1]]:
            until[buffer] = origins.n
            for writer in chain.idx[chain.ptr[buffer] : chain.ptr[buffer + 1]]:
                for row in range(origins.read_ptr[writer], origins.read_ptr[writer + 1]):
                    source = origins.read[row]
                    if source != buffer:
                        is_recomputed = evictable[source] and lives.ready_at[source] < writer
                        until[buffer] = min(until[buffer], until[source] if is_recomputed else origins.last[row])
            evictable[buffer] = until[buffer] >= lives.last[buffer]


def _needs(trace: Trace, chains: _Chains) -> Csr:
    """The sources of each buffer, in the order in which the ops of its chain read them; behind these what ops read."""
    reads, count = trace.ops.reads, len(trace.buffers)
    entry, of = _rows(reads, chains.op)
    made, source = chains.row[of], reads.idx[entry]
    accesses = trace.accesses().op
    when = np.concatenate([chains.op[of], reads.rows(), accesses.idx])  # of an op first in the order of reads
    row = np.concatenate([made, count + when[len(of) :]])
    buffer = np.concatenate([source, reads.idx, accesses.rows()])
    is_needed = chains.evictable[buffer] & (chains.ready_at[buffer] < when)  # until then it is on the device anyway
    return _distinct(row[is_needed], buffer[is_needed], count + trace.n)


def _beside(trace: Trace, chains: _Chains) -> tuple[Csr, I64]:
    """Other buffers that each chain writes whole, and the bytes of all that it writes."""
    writes, buffers, count = trace.ops.writes, trace.buffers, len(trace.buffers)
    entry, of = _rows(writes, chains.op)
    row, buffer = chains.row[of], writes.idx[entry]
    key, times = np.unique(row * max(count, 1) + buffer, return_counts=True)
    row, buffer = np.divmod(key, max(count, 1))
    scratch = np.bincount(row, np.where(buffers.host, 0, buffers.size)[buffer], count).astype(np.int64)
    length = np.bincount(chains.row, minlength=count)
    whole = chains.evictable[buffer] & (row != buffer) & (times == length[buffer])
    return Csr.grouped(row[whole], buffer[whole], count), scratch


def _rows(table: Csr, rows: I64) -> tuple[I64, I64]:
    """The entries of `table.idx` in some rows, one row behind the other, and of each the place of its row in `rows`."""
    length = np.diff(table.ptr)[rows]
    of = np.repeat(np.arange(len(rows)), length)
    within = np.arange(len(of)) - np.repeat(np.cumsum(length) - length, length)
    return table.ptr[rows][of] + within, of


def _distinct(row: I64, idx: I64, count: int) -> Csr:
    """Rows in which each entry stands once, where it came first."""
    _, first = np.unique(row * (idx.max(initial=0) + 1) + idx, return_index=True)
    first = np.sort(first)
    return Csr.grouped(row[first], idx[first], count)


def _live_bytes(trace: Trace, chosen: Bool) -> I64:
    """The bytes of some buffers at each op."""
    buffers, n = trace.buffers, trace.n
    change = np.zeros(2 * n + 1, np.int64)  # a lifetime may wrap: both turns add up
    np.add.at(change, buffers.start[chosen], buffers.size[chosen])
    np.add.at(change, buffers.end[chosen], -buffers.size[chosen])
    both_turns: I64 = np.cumsum(change)[: 2 * n].reshape(2, n).sum(axis=0)
    return both_turns
