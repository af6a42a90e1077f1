"""Where in issue order copies and recomputations go, and so when the gap of each decision begins and ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gpumem.swap.plan._cuts import Cut
from gpumem.swap.plan.decisions import Recompute, Swap
from gpumem.swap.plan.replay import Replay
from gpumem.trace import COPY_IN, COPY_OUT, I64, RECOMPUTE

# The index of a copy-out that is not needed; as `Carried.out` documents it.
NO_COPY = -1


class Copy(NamedTuple):
    """One copy of a cut: out of the device, or into it."""

    cut: Cut
    role: int


Inserted = Copy | Replay


class IssueOrder(NamedTuple):
    """The order in which the ops of the new trace are issued.

    `new_index`, int64[n]: the new index of each old op. `total`: ops of the new trace. `inserted`: copies and replays
    in issue order; `first`: the new index of each, of a replay that of its first recomputation.
    """

    new_index: I64
    total: int
    inserted: list[Inserted]
    first: list[int]

    def index_of(self, op: int) -> int:
        """Return the new index of an old op, or of the end of the iteration."""
        return int(self.new_index[op]) if op < len(self.new_index) else self.total

    def arc_end(self, start: int, last: int) -> int:
        """Return the end of the arc from new index `start` through new index `last`, which may lie before it."""
        return start + 1 + (last - start) % self.total

    def new(self) -> I64:
        """Return the new indices of all that is inserted."""
        return np.delete(np.arange(self.total), self.new_index)


def issue_order(n: int, cuts: Iterable[Cut], replays: Sequence[Replay]) -> IssueOrder:
    """Place what is inserted before each op: copies out, then copies in, both in plan order, then recomputations.

    Copies in may take bytes that copies out free, and recomputations read what copies in bring back.
    """
    items: list[tuple[tuple[int, ...], int, Inserted]] = []  # (ops before it, role, rank), new ops, what
    for cut in cuts:
        decision = cut.decision
        if isinstance(decision, Swap):
            items.append(((decision.prefetch % n, COPY_IN, cut.rank), 1, Copy(cut, COPY_IN)))
            if cut.copies_out:
                items.append(((decision.out % n + 1, COPY_OUT, cut.rank), 1, Copy(cut, COPY_OUT)))
    items += [((replay.place, RECOMPUTE), len(replay.recomputed_ops), replay) for replay in replays]
    items.sort(key=lambda item: item[0])
    ops_before = np.array([key[0] for key, *_ in items], np.int64)
    count = np.array([ops for _, ops, _ in items], np.int64)
    inserted = np.concatenate([[0], np.cumsum(count)])  # new ops of the first k items
    old = np.arange(n, dtype=np.int64)
    index = old + inserted[np.searchsorted(ops_before, old, side="right")]
    first = (ops_before + inserted[:-1]).tolist()
    return IssueOrder(index, n + int(inserted[-1]), [item for *_, item in items], first)


class Issued(NamedTuple):
    """When, in new indices, the gap of a cut begins and ends."""

    out: int  # the copy-out, `NO_COPY` where there is none
    back: int  # the copy-in, or the first recomputation that writes the buffer
    ready: int  # the copy-in, or the last recomputation that writes the buffer


def issued(order: IssueOrder, cuts: Iterable[Cut]) -> dict[int, Issued]:
    """Return when each cut begins and ends, by its rank."""
    # A buffer's gaps are disjoint, and each is recomputed within its own: no two of them share a place.
    recomputed = {(cut.decision.buffer, cut.decision.at): cut for cut in cuts if isinstance(cut.decision, Recompute)}
    outs: dict[int, int] = {}
    ends: dict[int, tuple[int, int]] = {}
    for item, first in zip(order.inserted, order.first):
        if isinstance(item, Replay):
            for value in item.wanted:
                span, cut = item.spans[value], recomputed[value.buffer, item.place]
                ends[cut.rank] = first + span.write, first + span.last_write
        elif item.role == COPY_OUT:
            outs[item.cut.rank] = first
        else:
            ends[item.cut.rank] = first, first
    return {rank: Issued(outs.get(rank, NO_COPY), *end) for rank, end in ends.items()}
