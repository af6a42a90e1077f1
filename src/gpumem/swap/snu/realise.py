"""From a solution of the swapping program to plans: the decisions that the clock is asked about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from gpumem.columns import I64, Bool
from gpumem.swap.accounts.room import Room
from gpumem.swap.fluid import Fluid, Solution
from gpumem.swap.gaps import around
from gpumem.swap.plan import Swap
from gpumem.swap.windows import Windows
from gpumem.trace import Trace

ORDERS = 5_000  # ways to write down the orders of copies, beyond which not all are looked at


@dataclass(frozen=True, slots=True, eq=False)
class Away:
    """Gaps that a solution swaps: of each, between which ops it leaves and comes back.

    Columns over the gaps `w`. A buffer is away at the breakpoints from op `leaves[1]` through op `comes[0]`, and is not
    at the breakpoints before, op `leaves[0]`, and after, op `comes[1]`. Ops count on as in `w`.
    """

    w: Windows
    leaves: I64
    comes: I64

    @classmethod
    def of(cls, f: Fluid, breaks: I64, found: Solution) -> Away:
        """Read a solution: what is away at some breakpoint is swapped."""
        n = f.n
        points = np.unique(breaks // 2)  # a breakpoint at the end of an op says nothing of its start
        points = np.concatenate([points[np.isin(2 * points, breaks)] + n * turn for turn in range(5)])
        mine = (found.instant % 2 == 0) & (found.absent > 0.5)
        gap, op = found.gap[mine], found.instant[mine] // 2
        rows, first = np.unique(gap, return_index=True)  # sorted by gap, then by instant
        last = np.append(first[1:], len(gap)) - 1
        w = f.w.where(rows)
        begin, end = np.searchsorted(points, op[first]), np.searchsorted(points, op[last])
        before = np.where(begin > 0, points[begin - 1], -1)
        leaves = np.stack([np.maximum(before, w.after), op[first]])
        comes = np.stack([op[last], np.minimum(points[end + 1], w.before)])
        return cls(w, leaves, comes)

    def __len__(self) -> int:
        return len(self.w)

    def load(self, trace: Trace, n: int) -> I64:
        """The load that is left if each is away as long as its breakpoints allow."""
        return trace.load() - around(self.leaves[0] + 1, self.comes[1], self.w.size, n)

    def where(self, chosen: Bool | I64) -> Away:
        """Keep some of the gaps."""
        return Away(self.w.where(chosen), self.leaves[:, chosen], self.comes[:, chosen])

    def needed(self, trace: Trace, limit: int) -> Away:
        """Leave away what the limit does not ask for, the smallest first."""
        n, load, keep = trace.n, self.load(trace, trace.n), np.ones(len(self), np.bool_)
        for k in np.argsort(self.w.size, kind="stable").tolist():
            absent = np.arange(self.leaves[0][k] + 1, self.comes[1][k]) % n
            if load[absent].max(initial=0) + self.w.size[k] <= limit:
                load[absent] += self.w.size[k]
                keep[k] = False
        return self.where(keep)

    def also(self, trace: Trace, limit: int, others: Windows) -> Away:
        """Swap more gaps while an op is above the limit, the largest first."""
        n, load, more = trace.n, self.load(trace, trace.n), []
        mine = set(zip(self.w.buffer.tolist(), self.w.after.tolist()))
        for k in np.argsort(-others.size, kind="stable").tolist():
            absent = np.arange(others.after[k] + 1, others.before[k]) % n
            if load.max() <= limit:
                break
            if load[absent].max(initial=0) > limit and (others.buffer[k], others.after[k]) not in mine:
                load[absent] -= others.size[k]
                more.append(k)
        extra = others.where(np.array(more, np.int64))
        order = np.lexsort((np.append(self.w.after, extra.after), np.append(self.w.value, extra.value)))
        columns = {c: np.append(getattr(self.w, c), getattr(extra, c))[order] for c in Windows.__dataclass_fields__}
        wide = np.stack([extra.after, extra.after + 1]), np.stack([extra.before - 1, extra.before])
        leaves, comes = (np.hstack([own, new])[:, order] for own, new in zip((self.leaves, self.comes), wide))
        return Away(Windows(**columns), leaves, comes)


def ways(trace: Trace, limit: int, away: Away) -> Iterator[list[Swap]]:
    """Yield some ways to carry a solution out: copies back as late as can be, or as early as there is room."""
    n, w = trace.n, away.w
    release, late = away.leaves[0] + 1, away.comes[1]
    early, room = late.copy(), Room(away.load(trace, n), limit)
    for k in np.argsort(late, kind="stable").tolist():
        early[k] = room.fetch(int(max(away.comes[0][k], release[k])), int(late[k]), int(w.size[k]))
    held = release.copy()
    for k in np.argsort(-release, kind="stable").tolist():  # who goes last holds its memory for longest
        held[k] = room.hold(int(release[k]), int(min(away.leaves[1][k], early[k])), int(w.size[k]))
    for back, order in product((late, early), (late, away.leaves[1])):
        for until in (release, np.minimum(held, back)):
            rows = np.argsort(order, kind="stable")
            swaps = Swap.each(w.where(rows), until[rows], back[rows])
            yield [swap.within(n) for swap in swaps]


def all_orders(trace: Trace, away: Away, duplex: bool) -> tuple[list[list[Swap]], bool]:
    """Return every order of copies in which a solution can be carried out, and whether these are all.

    For solutions whose breakpoints are all ops: who is away at which op is known then, but not who copies first.
    """
    n, w = trace.n, away.w
    release, back = (away.leaves[1]).tolist(), (away.comes[1]).tolist()
    marks = {*(a % n for a in w.after.tolist())} | (set() if duplex else {p % n for p in back})
    outs = [[a, *(x for x in range(a + 1, r) if x % n in marks)] for a, r in zip(w.after.tolist(), release)]
    ways_out = product(*outs)
    found: dict[tuple[tuple[int, int, int, int], ...], list[Swap]] = {}
    looked = 0
    for out in ways_out:
        for order in permutations(range(len(away))):
            looked += 1
            if looked > ORDERS:
                return list(found.values()), False
            rank = {k: i for i, k in enumerate(order)}
            places = [((x + 1) % n, 0, rank[k], k) for k, x in enumerate(out)]
            places += [(p % n, 1, rank[k], k) for k, p in enumerate(back)]
            places.sort()
            key = tuple((place, kind, k, 0) for place, kind, _, k in places)
            if key not in found:
                rows = np.array(order, np.int64)
                columns = (np.array(release)[rows], np.array(back)[rows], np.array(out)[rows])
                found[key] = [swap.within(n) for swap in Swap.each(w.where(rows), *columns)] if len(rows) else []
    return list(found.values()), True
