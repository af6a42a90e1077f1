"""What `Plan.apply` does: cut buffers into segments, insert copies and recomputations, renumber.

Every segment is built as an arc with a modulus, `end = start + 1 + (last - start) % n`, so that gaps and
segments that wrap the iteration need no case of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpumem._show import Shown
from gpumem.columns import COPY_IN, COPY_OUT, I64, RECOMPUTE, UNKNOWN, Buffers, Csr, Ops
from gpumem.swap.plan._cuts import Cut, find_cuts, issue_order
from gpumem.swap.plan.decisions import Decision, Recompute, Swap
from gpumem.swap.plan.rerun import Producers, variants_of
from gpumem.trace import Trace


class _NewOp(NamedTuple):
    name: str
    reads: list[int]
    writes: list[int]
    stream: str
    role: int
    like: int = -1  # the old op whose columns it takes


@dataclass(slots=True)
class _Rewrite:
    trace: Trace
    cuts: dict[int, list[Cut]]
    pos: I64
    n: int  # ops of the new trace
    source: list[int]  # of each new buffer: the old one it is made of; the old ids come first
    start: list[int]  # its arc; at an old id that of the whole buffer, or of the first segment
    end: list[int]
    host: list[bool]
    segments: dict[int, list[int]]  # new ids of a cut buffer, in the order of its lifetime
    producers: Producers

    def span(self, start: int, last: int) -> int:
        """The end of the arc from `start` through `last`."""
        return start + 1 + (last - start) % self.n

    def add(self, b: int, start: int, end: int, *, host: bool = False) -> int:
        """Append a buffer made of old buffer `b`; return its id."""
        self.source.append(b)
        self.start.append(start)
        self.end.append(end)
        self.host.append(host)
        return len(self.source) - 1

    def cut_device(self, b: int, cuts: list[Cut], forever: bool) -> None:
        """Device segments lie between the return of one cut and the release of the next."""
        held = []  # the last new index of the segment before each cut
        for c in cuts:
            at_copy = c.out >= 0 and isinstance(c.decision, Swap) and c.release == c.decision.out + 1
            held.append(c.out if at_copy else int(self.pos[(c.release - 1) % len(self.pos)]))
        ids = [self.add(b, c.back, self.span(c.back, last)) for c, last in zip(cuts, held[1:])]
        back = cuts[-1].back
        if forever:  # the last segment goes round to the first cut
            self.start[b], self.end[b] = back, self.span(back, held[0])
            self.segments[b] = [b, *ids, b]
        else:
            last = int(self.pos[(self.trace.buffers.end[b] - 1) % len(self.pos)])
            final = self.add(b, back, self.span(back, last))
            self.end[b] = self.span(self.start[b], held[0])
            self.segments[b] = [b, *ids, final]

    def keep_on_host(self, b: int, cuts: list[Cut]) -> None:
        """One host buffer for each value: from its copy-out through the last copy-in that needs it."""
        swaps = [c for c in cuts if isinstance(c.decision, Swap)]
        first = next((k for k, c in enumerate(swaps) if c.out >= 0), None)
        if first is None and swaps:  # nothing ever writes it: the host always holds the value
            host = self.add(b, 0, self.n, host=True)
            for c in swaps:
                c.host = host
            return
        chain: list[Cut] = []
        for c in reversed([*swaps[first:], *swaps[:first]]):  # from the end: a copy-out closes the chain behind it
            chain.append(c)
            if c.out >= 0:
                host = self.add(b, c.out, self.span(c.out, chain[0].back), host=True)
                for link in chain:
                    link.host = host
                chain = []

    def holder(self, b: int, op: int) -> int:
        """The new id of `b` at old op `op`."""
        n, start = len(self.pos), int(self.trace.buffers.start[b])
        life = (op - start) % n
        return self.segments[b][sum((c.decision.after - start) % n < life for c in self.cuts[b])]

    def on_device(self, b: int, at: int) -> int:
        """The new id of `b` if it is on the device at new index `at`, else -1."""
        for new in self.segments.get(b, [b]):
            if (at - self.start[new]) % self.n < self.end[new] - self.start[new]:
                return new
        return -1

    def new_op(self, cut: Cut, role: int) -> _NewOp:
        """Make the op that a cut inserts."""
        d = cut.decision
        if role == COPY_OUT:
            return _NewOp("copy_out", [self.holder(d.buffer, d.after)], [cut.host], "d2h", role)
        target = self.holder(d.buffer, d.before % len(self.pos))
        if role == COPY_IN:
            return _NewOp("copy_in", [cut.host], [target], "h2d", role)
        assert isinstance(d, Recompute)
        return self.rerun(d, cut.back, target)

    def rerun(self, d: Recompute, at: int, target: int) -> _NewOp:
        """Run the producer of a dropped buffer again; its other outputs go to scratch."""
        op, reads = self.producers.check(d)
        held = [self.on_device(b, at) for b in reads]
        for b, new in zip(reads, held):
            if new < 0:
                raise ValueError(f"{d}: op {op} made it from buffer {b}, which is not on the device then")
        ops = self.trace.ops
        others = [b for b in ops.writes[op].tolist() if b != d.buffer]
        scratch = [self.add(b, at, at + 1) for b in others]
        return _NewOp(ops.name[op], held, [target, *scratch], ops.streams[ops.stream[op]], RECOMPUTE, op)

    def buffers(self) -> Buffers:
        """The buffers of the new trace: old ids first, then the added rows."""
        old, source = self.trace.buffers, np.array(self.source, np.int64)
        start, end = np.array(self.start, np.int64), np.array(self.end, np.int64)
        crosses = (end > self.n) | (end - start == self.n)
        return Buffers.make(
            old.size[source],
            start,
            end,
            persistent=old.persistent[source] & crosses,
            host=self.host,
            kind=[old.kind[b] for b in self.source],
            of=old.of[source],
            name=[old.name[b] for b in self.source],
        )

    def renumber(self, rows: Csr) -> Csr:
        """Old reads or writes in new ids."""
        idx = rows.idx.copy()
        for k in np.flatnonzero(np.isin(idx, list(self.cuts))).tolist():
            op = int(np.searchsorted(rows.ptr, k, side="right")) - 1
            idx[k] = self.holder(int(idx[k]), op)
        return Csr(rows.ptr, idx)

    def ops(self, added: list[_NewOp], at: I64) -> Ops:
        """The ops of the new trace, in issue order."""
        old = self.trace.ops
        streams = list(dict.fromkeys([*old.streams, *(o.stream for o in added)]))
        order = np.empty(self.n, np.int64)
        order[self.pos], order[at] = np.arange(len(old)), len(old) + np.arange(len(added))
        like = np.array([o.like for o in added], np.int64)

        def column(values: np.ndarray, missing: float) -> np.ndarray:
            return np.concatenate([values, np.where(like >= 0, values[like], missing).astype(values.dtype)])[order]

        def rows(kept: Csr, new: list[list[int]]) -> Csr:
            tail = Csr.of(new)
            ptr = np.concatenate([kept.ptr, kept.ptr[-1] + tail.ptr[1:]])
            return Csr(ptr, np.concatenate([kept.idx, tail.idx])).take(order)

        names = [*old.name, *(o.name for o in added)]
        return Ops.make(
            rows(self.renumber(old.reads), [o.reads for o in added]),
            rows(self.renumber(old.writes), [o.writes for o in added]),
            name=[names[k] for k in order.tolist()],
            stream=np.concatenate([old.stream, np.array([streams.index(o.stream) for o in added], np.int64)])[order],
            streams=streams,
            duration=column(old.duration, UNKNOWN),
            flops=column(old.flops, 0),
            moved=column(old.moved, 0),
            role=np.concatenate([old.role, np.array([o.role for o in added], np.int64)])[order],
            of=column(old.of, UNKNOWN),
            rng=column(old.rng, False),
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Carried(Shown):
    """A plan carried out: the rewritten trace, and where in its issue order the ops of each decision ended up.

    `out`, int64[d]: index of the copy-out, -1 where there is none, since the host holds the value or nothing is
    swapped. `back`, int64[d]: index of the copy-in or of the recomputation, -1 for a variant.
    """

    trace: Trace
    out: I64
    back: I64


def rewrite(trace: Trace, decisions: Sequence[Decision]) -> Carried:
    """Return `trace` with the decisions carried out; see `Plan.apply`."""
    place = np.full((2, len(decisions)), -1, np.int64)
    if not decisions:
        return Carried(trace, *place)
    trace = variants_of(trace, decisions)
    cuts = find_cuts(trace, decisions)
    order = {d: k for k, d in enumerate(decisions)}
    pos, inserted, at = issue_order(trace.n, [c for row in cuts.values() for c in row], order)
    b, n, forever = trace.buffers, trace.n + len(inserted), trace.eternal
    start = np.where(forever & (b.start == 0), 0, pos[b.start])
    end = np.where(forever, start + n, start + 1 + (pos[(b.end - 1) % trace.n] - start) % n)
    columns = (list(range(len(b))), start.tolist(), end.tolist(), b.host.tolist())
    new = _Rewrite(trace, cuts, pos, n, *columns, {}, Producers.of(trace))
    for buffer, row in cuts.items():
        new.cut_device(buffer, row, bool(forever[buffer]))
        new.keep_on_host(buffer, row)
    added = [new.new_op(cut, role) for cut, role in inserted]
    ops = new.ops(added, at)
    for cut in (c for row in cuts.values() for c in row):
        place[:, order[cut.decision]] = cut.out, cut.back
    return Carried(Trace(new.buffers(), ops, name=trace.name), *place)
