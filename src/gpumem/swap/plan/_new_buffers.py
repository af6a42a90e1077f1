"""Buffers of the rewritten trace: a cut one becomes device pieces, and a host buffer for each value kept there.

Every piece is an arc with a modulus, `end = start + 1 + (last - start) % total`, so that gaps and pieces that wrap the
iteration need no case of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpumem.swap.plan._cuts import Cut
from gpumem.swap.plan._issue_order import Issued, IssueOrder
from gpumem.swap.plan.decisions import Swap
from gpumem.trace import Buffers, Csr, Trace
from gpumem.trace.kinds import GENERATOR, GENERATOR_BYTES, WORKSPACE

# The old buffer of one that is no piece of an old one, and the host buffer of what is not swapped.
NONE = -1


class CutBuffers(NamedTuple):
    """The new buffers that the copies of a cut connect."""

    source: int  # the device piece before the gap
    target: int  # the device piece behind it
    host: int = NONE  # the host buffer in between, where the cut is a swap


@dataclass(slots=True)
class NewBuffers:
    """The table of new buffers, which only grows: old ids come first, each with its whole buffer or its first piece."""

    trace: Trace
    order: IssueOrder
    eternal: list[bool]
    old: list[int]  # of each new buffer: the old one that it is a piece of, or `NONE`
    start: list[int]
    end: list[int]
    host: list[bool]
    workspace: dict[int, int]  # bytes of the workspaces of recomputations by another implementation, by new id

    @classmethod
    def of(cls, trace: Trace, held_until: Mapping[int, int], order: IssueOrder) -> NewBuffers:
        """Start with whole buffers, each with its lifetime in new indices, or as long as a `Hold` keeps it."""
        table, eternal, index = trace.buffers, trace.eternal, order.new_index
        last = index[(table.end - 1) % trace.n]
        if held_until:
            held, until = np.array(list(held_until.items()), np.int64).T
            last_use = index[np.maximum(trace.last_touch()[held], 0) + table.start[held]]
            # What is inserted before op `until` can still read it; a dropped tail ends no earlier than its last use.
            last[held] = np.maximum(np.append(index, order.total)[until] - 1, last_use)
        start = np.where(eternal & (table.start == 0), 0, index[table.start])
        end = np.where(eternal, start + order.total, start + 1 + (last - start) % order.total)
        columns = (eternal.tolist(), [*range(len(table))], start.tolist(), end.tolist(), table.host.tolist())
        return cls(trace, order, *columns, workspace={})

    def add(self, old: int, start: int, end: int, *, host: bool = False) -> int:
        """Append a buffer made of buffer `old`; return its id."""
        self.old.append(old)
        self.start.append(start)
        self.end.append(end)
        self.host.append(host)
        return len(self.old) - 1

    def piece_at(self, pieces: Iterable[int], index: int) -> int:
        """Return which of some pieces of a buffer is alive at a new index."""
        total = self.order.total
        return next(new for new in pieces if (index - self.start[new]) % total < self.end[new] - self.start[new])

    def split(self, buffer: int, cuts: Sequence[Cut], issued: Mapping[int, Issued]) -> list[int]:
        """Cut a buffer into device pieces, from the return of one cut to the release of the next; return their ids.

        There is one more than cuts, in the order of the lifetime; of one that lives for ever the last is the first.
        """
        arc_end = self.order.arc_end
        last = [self._last_held(cut, issued[cut.rank]) for cut in cuts]
        back = [issued[cut.rank].back for cut in cuts]
        between = [self.add(buffer, start, arc_end(start, end)) for start, end in zip(back, last[1:])]
        if self.eternal[buffer]:  # the last piece goes round to the first cut
            self.start[buffer], self.end[buffer] = back[-1], arc_end(back[-1], last[0])
            return [buffer, *between, buffer]
        final = self.add(buffer, back[-1], arc_end(back[-1], (self.end[buffer] - 1) % self.order.total))
        self.end[buffer] = arc_end(self.start[buffer], last[0])
        return [buffer, *between, final]

    def _last_held(self, cut: Cut, issued: Issued) -> int:
        """The last new index at which the device holds the piece before a cut."""
        decision, order = cut.decision, self.order
        # Released right after the op of its copy-out, it is still read by the copy, which is inserted behind that op.
        if cut.copies_out and isinstance(decision, Swap) and cut.release == decision.out + 1:
            return issued.out
        if cut.held_until >= 0:
            return order.index_of(cut.held_until) - 1
        return order.index_of((cut.release - 1) % len(order.new_index))

    def keep_on_host(self, buffer: int, cuts: Sequence[Cut], issued: Mapping[int, Issued]) -> dict[int, int]:
        """Make a host buffer for each value, from its copy-out through its last copy-in; return it by a cut's rank."""
        swaps = [cut for cut in cuts if isinstance(cut.decision, Swap)]
        first = next((k for k, cut in enumerate(swaps) if cut.copies_out), None)
        if first is None:  # nothing ever writes it: the host always holds the value
            return (
                dict.fromkeys([cut.rank for cut in swaps], self.add(buffer, 0, self.order.total, host=True))
                if swaps
                else {}
            )
        hosts: dict[int, int] = {}
        shared: list[int] = []  # ranks of the cuts that the next copy-out serves
        for cut in reversed([*swaps[first:], *swaps[:first]]):  # from the end: a copy-out serves those behind it
            shared.append(cut.rank)
            if cut.copies_out:
                out, last_in = issued[cut.rank].out, issued[shared[0]].back
                host = self.add(buffer, out, self.order.arc_end(out, last_in), host=True)
                hosts |= dict.fromkeys(shared, host)
                shared = []
        return hosts

    def finish(self) -> Buffers:
        """Return the buffers of the new trace."""
        old = np.array(self.old, np.int64)
        start, end = np.array(self.start, np.int64), np.array(self.end, np.int64)
        crosses, is_piece = (end > self.order.total) | (end - start == self.order.total), old != NONE
        rows = self.trace.buffers.take(old)
        size, kind = np.where(is_piece, rows.size, GENERATOR_BYTES), list(rows.kind)
        for new in np.flatnonzero(~is_piece).tolist():
            kind[new] = GENERATOR
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


def renumbering(
    trace: Trace, cuts: Mapping[int, Sequence[Cut]], pieces: Mapping[int, Sequence[int]]
) -> Callable[[Csr], Csr]:
    """Return what gives old reads or writes, a row an op, in new ids: which piece of a cut buffer each op accesses."""
    n, start, is_cut = trace.n, trace.buffers.start, np.zeros(len(trace.buffers), np.bool_)
    buffers, rank = list(cuts), np.zeros(len(is_cut), np.int64)
    is_cut[buffers], rank[buffers] = True, np.arange(len(buffers))
    pairs = [(buffer, cut.decision.after) for buffer in buffers for cut in cuts[buffer]]
    cut_buffer, after = np.array(pairs, np.int64).reshape(len(pairs), 2).T
    cut_key = cut_buffer * n + (after - start[cut_buffer]) % n  # ascends: by buffer, then by lifetime
    piece = np.array([new for old in buffers for new in pieces[old]], np.int64)

    def renumber(rows: Csr) -> Csr:
        idx = rows.idx.copy()
        chosen = np.flatnonzero(is_cut[idx])
        op, buffer = np.searchsorted(rows.ptr, chosen, side="right") - 1, idx[chosen]
        cuts_before = np.searchsorted(cut_key, buffer * n + (op - start[buffer]) % n)
        idx[chosen] = piece[cuts_before + rank[buffer]]  # each cut buffer before it has one piece more than cuts
        return Csr(rows.ptr, idx)

    return renumber
