"""What `Plan.apply` does: cut buffers into segments, insert copies and reruns, renumber.

Every segment is built as an arc with a modulus, `end = start + 1 + (last - start) % n`, so that gaps and
segments that wrap the iteration need no case of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpumem.base.display import Shown
from gpumem.swap.plan._cuts import Copy, Cut, find_cuts, find_holds, find_replays, issue_order
from gpumem.swap.plan.decisions import Decision, Recompute, Swap, Variant
from gpumem.swap.plan.replay import HELD, ON_DEVICE, Replay, Rerun, Value
from gpumem.swap.plan.variants import own_workspaces, reruns_of, variants_of
from gpumem.trace import COMPUTE, COPY_OUT, I64, RECOMPUTE, Buffers, Csr, Ops, Trace
from gpumem.trace.kinds import GENERATOR, GENERATOR_BYTES, WORKSPACE

NONE = -1  # the source of a buffer that is no piece of an old one


class _NewOp(NamedTuple):
    name: str
    reads: list[int]
    writes: list[int]
    stream: str
    role: int
    beside: int  # the old op whose host hands it over
    like: int = -1  # the old op whose columns it takes
    duration: int | None = None  # another than that op's


@dataclass(slots=True)
class _Rewrite:
    trace: Trace
    cuts: dict[int, list[Cut]]
    pos: I64
    n: int  # ops of the new trace
    source: list[int]  # of each new buffer: the old one it is made of, or `NONE`; the old ids come first
    start: list[int]  # its arc; at an old id that of the whole buffer, or of the first segment
    end: list[int]
    host: list[bool]
    segments: dict[int, list[int]]  # new ids of a cut buffer, in the order of its lifetime
    held: dict[int, list[int]]  # and of what is held beside a buffer, the last one first
    eternal: list[bool]
    blocking: bool  # the host waits for each copy
    ways: dict[tuple[int, int], Variant]  # of reruns that have an implementation of their own, by op and place
    own: dict[int, int]  # the workspace of each old op, where there are such ways
    workspace: dict[int, int]  # bytes of those of such reruns, by new id

    @classmethod
    def of(
        cls,
        trace: Trace,
        cuts: dict[int, list[Cut]],
        until: dict[int, int],
        pos: I64,
        n: int,
        blocking: bool,
        ways: dict[tuple[int, int], Variant],
    ) -> _Rewrite:
        """Start with whole buffers, those that are held longer."""
        b, forever = trace.buffers, trace.eternal
        last, before = pos[(b.end - 1) % trace.n], np.append(pos, n)
        if until:
            held = np.array(list(until), np.int64)
            used = pos[np.maximum(trace.last_touch()[held], 0) + b.start[held]]
            last[held] = np.maximum(before[list(until.values())] - 1, used)
        start = np.where(forever & (b.start == 0), 0, pos[b.start])
        end = np.where(forever, start + n, start + 1 + (last - start) % n)
        columns = (list(range(len(b))), start.tolist(), end.tolist(), b.host.tolist())
        own = own_workspaces(trace) if ways else {}
        return cls(trace, cuts, pos, n, *columns, {}, {}, forever.tolist(), blocking, ways, own, {})

    def begins(self, op: int) -> int:
        """The new index of an old op, or of the end of the iteration."""
        return int(self.pos[op]) if op < len(self.pos) else self.n

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

    def cut_device(self, b: int, cuts: list[Cut]) -> None:
        """Device segments lie between the return of one cut and the release of the next."""
        held = []  # the last new index of the segment before each cut
        for c in cuts:
            at_copy = c.dirty and isinstance(c.decision, Swap) and c.release == c.decision.out + 1
            last = int(self.pos[(c.release - 1) % len(self.pos)]) if c.until < 0 else self.begins(c.until) - 1
            held.append(c.out if at_copy else last)
        ids = [self.add(b, c.back, self.span(c.back, last)) for c, last in zip(cuts, held[1:])]
        back = cuts[-1].back
        if self.eternal[b]:  # the last segment goes round to the first cut
            self.start[b], self.end[b] = back, self.span(back, held[0])
            self.segments[b] = [b, *ids, b]
        else:
            final = self.add(b, back, self.span(back, (self.end[b] - 1) % self.n))
            self.end[b] = self.span(self.start[b], held[0])
            self.segments[b] = [b, *ids, final]
        for c, source, target in zip(cuts, self.segments[b], self.segments[b][1:]):
            c.source, c.target = source, target

    def keep_on_host(self, b: int, cuts: list[Cut]) -> None:
        """One host buffer for each value: from its copy-out through the last copy-in that needs it."""
        swaps = [c for c in cuts if isinstance(c.decision, Swap)]
        first = next((k for k, c in enumerate(swaps) if c.dirty), None)
        if first is None and swaps:  # nothing ever writes it: the host always holds the value
            host = self.add(b, 0, self.n, host=True)
            for c in swaps:
                c.host = host
            return
        chain: list[Cut] = []
        for c in reversed([*swaps[first:], *swaps[:first]]):  # from the end: a copy-out closes the chain behind it
            chain.append(c)
            if c.dirty:
                host = self.add(b, c.out, self.span(c.out, chain[0].back), host=True)
                for link in chain:
                    link.host = host
                chain = []

    def holders(self, b: I64, op: I64) -> I64:
        """The new ids of cut buffers at old ops: the piece of each behind the cuts that come before it."""
        n, start, rank = len(self.pos), self.trace.buffers.start, np.zeros(len(self.trace.buffers), np.int64)
        rank[list(self.cuts)] = np.arange(len(self.cuts))  # one piece more than cuts for each
        pieces = np.array([piece for mine in self.cuts for piece in self.segments[mine]], np.int64)
        pairs = [(mine, c.decision.after) for mine, row in self.cuts.items() for c in row]
        cut, after = np.array(pairs, np.int64).reshape(len(pairs), 2).T
        before = np.searchsorted(cut * n + (after - start[cut]) % n, b * n + (op - start[b]) % n)
        found: I64 = pieces[before + rank[b]]
        return found

    def on_device(self, b: int, at: int) -> int:
        """The new id of `b` at new index `at`, where it is on the device."""
        return self._piece(self.segments.get(b, [b]), at)

    def _piece(self, pieces: Sequence[int], at: int) -> int:
        return next(p for p in pieces if (at - self.start[p]) % self.n < self.end[p] - self.start[p])

    def found(self, v: Value, at: int, made: Mapping[Value, int]) -> int:
        """The new id of what a rerun reads or writes at new index `at`."""
        if v.whole == ON_DEVICE:
            return self.on_device(v.buffer, at)
        return self._piece(self.held[v.buffer], at) if v.whole == HELD else made[v]

    def settle(self, what: Copy | Replay, at: int) -> None:
        """What is inserted gets new index `at`: tell the cuts."""
        if isinstance(what, Replay):
            for value in what.wanted:
                mine = ((c, c.decision) for c in self.cuts[value.buffer])
                (cut,) = (c for c, d in mine if isinstance(d, Recompute) and d.at == what.place)
                cut.back, cut.ready = at + what.spans[value].write, at + what.spans[value].last_write
        elif what.role == COPY_OUT:
            what.cut.out = at
        else:
            what.cut.back = what.cut.ready = at

    def insert(self, what: Copy | Replay, at: int) -> list[_NewOp]:
        """Make the ops that begin at new index `at`."""
        if isinstance(what, Replay):
            return self.replay(what, at)
        if what.role == COPY_OUT:
            return [_NewOp("copy_out", [what.cut.source], [what.cut.host], "d2h", what.role, what.cut.decision.after)]
        user = what.cut.decision.before % len(self.pos)
        return [_NewOp("copy_in", [what.cut.host], [what.cut.target], "h2d", what.role, user)]

    def replay(self, r: Replay, first: int) -> list[_NewOp]:
        """Make the reruns of a place; a value that nobody wants there lives in scratch."""
        made, fresh = {}, dict[int, int]()
        for value, span in r.spans.items():
            start, end = first + span.write, first + span.touch + 1
            if value in r.wanted:
                made[value] = self.on_device(value.buffer, start)
            elif value in r.held:
                made[value] = fresh[value.buffer] = self.add(value.buffer, start, self.begins(r.held[value]))
            else:
                made[value] = self.add(value.buffer, start, end)
        ops = [self.rerun(x, first + k, made, self.ways.get((x.op, r.place))) for k, x in enumerate(r.reruns)]
        for buffer, piece in fresh.items():  # only now: up to here a piece that ends at this place is read
            self.held.setdefault(buffer, []).insert(0, piece)
        return ops

    def rerun(self, x: Rerun, at: int, made: dict[Value, int], way: Variant | None) -> _NewOp:
        """Make the rerun at new index `at`, by an implementation of its own where there is one."""
        ops = self.trace.ops
        reads, writes = ([self.found(v, at, made) for v in row] for row in (x.reads, x.writes))
        stream = ops.streams[ops.stream[x.op]]
        if way is None:
            return _NewOp(ops.name[x.op], reads, writes, stream, RECOMPUTE, x.op, x.op)
        if x.op not in self.own:
            writes.append(self.add(NONE, at, at + 1))
        mine = next((made[v] for v in x.writes if v.buffer == self.own.get(x.op)), writes[-1])
        self.workspace[mine] = way.workspace
        return _NewOp(way.name, reads, writes, stream, RECOMPUTE, x.op, x.op, way.duration)

    def keep_generators(self, ops: Ops) -> None:
        """Of each random op that runs again the host keeps its generator's state, through the last rerun."""
        mine = np.delete(np.arange(self.n), self.pos)
        again = mine[ops.rng[mine] & (ops.role[mine] == RECOMPUTE)].tolist()
        first = {int(ops.of[i]): i for i in np.flatnonzero(ops.rng & (ops.role == COMPUTE)).tolist()}
        for of, last in {int(ops.of[i]): i for i in again}.items():
            if of in first:
                self.add(NONE, first[of], last + 1, host=True)

    def buffers(self) -> Buffers:
        """The buffers of the new trace: old ids first, then the added rows."""
        source = np.array(self.source, np.int64)
        start, end = np.array(self.start, np.int64), np.array(self.end, np.int64)
        crosses, piece = (end > self.n) | (end - start == self.n), source != NONE
        rows = self.trace.buffers.take(source)
        size, kind = np.where(piece, rows.size, GENERATOR_BYTES), list(rows.kind)
        for new, b in enumerate(self.source):
            kind[new] = GENERATOR if b == NONE else kind[new]
        for new, bytes_ in self.workspace.items():
            size[new], kind[new] = bytes_, WORKSPACE
        return replace(
            rows,
            size=size,
            start=start,
            end=end,
            persistent=rows.persistent & crosses,
            host=np.array(self.host, np.bool_),
            kind=tuple(kind),
        )

    def renumber(self, rows: Csr) -> Csr:
        """Old reads or writes in new ids."""
        idx = rows.idx.copy()
        cut = np.zeros(len(self.trace.buffers), np.bool_)
        cut[list(self.cuts)] = True
        mine = np.flatnonzero(cut[idx])
        op = np.searchsorted(rows.ptr, mine, side="right") - 1
        idx[mine] = self.holders(idx[mine], op)
        return Csr(rows.ptr, idx)

    def ops(self, added: list[_NewOp]) -> Ops:
        """The ops of the new trace, in issue order."""
        old, count = self.trace.ops, len(self.trace.ops)
        streams = tuple(dict.fromkeys([*old.streams, *(o.stream for o in added)]))
        order = np.empty(self.n, np.int64)
        order[self.pos] = np.arange(count)
        new = np.delete(np.arange(self.n), self.pos)
        order[new] = count + np.arange(len(added))
        ops = old.take(np.append(np.arange(count), np.array([o.like for o in added], np.int64))[order])

        def rows(kept: Csr, more: list[list[int]]) -> Csr:
            tail = Csr.of(more)
            return Csr(np.append(kept.ptr, kept.ptr[-1] + tail.ptr[1:]), np.append(kept.idx, tail.idx)).take(order)

        ops.stream[new] = [streams.index(o.stream) for o in added]
        ops.role[new] = [o.role for o in added]
        ops.host[new] = old.host[[o.beside for o in added]]
        ops.blocking[new] |= self.blocking & ops.copies[new]  # a rerun blocks if the op does that it repeats
        names = list(ops.name)
        for i, o in zip(new.tolist(), added):
            names[i] = o.name
            ops.duration[i] = ops.duration[i] if o.duration is None else o.duration
        return replace(
            ops,
            name=tuple(names),
            reads=rows(self.renumber(old.reads), [o.reads for o in added]),
            writes=rows(self.renumber(old.writes), [o.writes for o in added]),
            streams=streams,
            statistics=old.statistics and rows(self.renumber(old.statistics), [[] for _ in added]),
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Carried(Shown):
    """A plan carried out: the rewritten trace, and where in its issue order the ops of each decision ended up.

    `out`, int64[d]: index of the copy-out, -1 where there is none, since the host holds the value or nothing is
    swapped. `back`, int64[d]: index of the copy-in, or of the last rerun that makes the value; -1 for others.
    """

    trace: Trace
    out: I64
    back: I64


def rewrite(trace: Trace, decisions: Sequence[Decision], *, blocking: bool = False) -> Carried:
    """Return `trace` with the decisions carried out; see `Plan.apply`."""
    place = np.full((2, len(decisions)), -1, np.int64)
    if not decisions:
        return Carried(trace, *place)
    trace = variants_of(trace, decisions)
    holds = find_holds(trace, decisions)
    cuts = find_cuts(trace, decisions, holds)
    replays = find_replays(trace, decisions)  # last: it trusts what the others have checked
    order = {d: k for k, d in enumerate(decisions)}
    pos, inserted, first, total = issue_order(trace.n, [c for row in cuts.values() for c in row], replays, order)
    new = _Rewrite.of(trace, cuts, holds.until, pos, total, blocking, reruns_of(trace, decisions, replays))
    for what, index in zip(inserted, first):
        new.settle(what, index)
    for buffer, row in cuts.items():
        new.cut_device(buffer, row)
        new.keep_on_host(buffer, row)
    added = [new.insert(what, index) for what, index in zip(inserted, first)]
    ops = new.ops([op for row in added for op in row])
    new.keep_generators(ops)
    for cut in (c for row in cuts.values() for c in row):
        place[:, order[cut.decision]] = cut.out, cut.ready
    return Carried(Trace(new.buffers(), ops, name=trace.name), *place)
