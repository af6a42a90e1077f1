"""From a solution of the swapping program to plans: the decisions that the clock is asked about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations, product
from math import factorial, prod

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.fluid import Fluid
from gpumem.swap.plan import Swap
from gpumem.swap.plan.gaps import Windows, gaps
from gpumem.swap.snu.overlap import overlap
from gpumem.trace import I64, Bool, Trace

ORDERS = 5_000  # ways to write down the orders of copies, beyond which not all are looked at


@dataclass(frozen=True, slots=True, eq=False)
class Away:
    """Gaps that a solution swaps: of each, between which ops it leaves and comes back.

    Columns over the gaps `w`: the earliest and the latest op at which each may be released, int64[2, m], and before
    which it may be fetched, so that it is away at the breakpoints of the solution and at no other. Ops count as in `w`.
    """

    w: Windows
    release: I64
    fetch: I64

    @classmethod
    def of(cls, f: Fluid, breaks: I64, gap: I64, instant: I64) -> Away:
        """Read a solution, in which `gap` is away at `instant`, ascending by both: all of these are swapped.

        With every instant a breakpoint the earliest and the latest are the same.
        """
        points = np.concatenate([breaks + 2 * f.n * turn for turn in range(5)])
        rows, first = np.unique(gap, return_index=True)  # sorted by gap, then by instant
        leaves, stays = instant[first], instant[np.append(first, len(gap))[1:] - 1]  # both empty where nothing is away
        w, before = f.w.where(rows), np.searchsorted(points, leaves) - 1
        there, back = np.where(before >= 0, points[before], -2), points[np.searchsorted(points, stays) + 1]
        release = np.stack([np.maximum(there // 2 + 1, w.after + 1), (leaves + 1) // 2])
        return cls(w, release, np.stack([stays // 2 + 1, np.minimum((back + 1) // 2, w.before)]))

    def __len__(self) -> int:
        return len(self.w)

    def live_bytes(self, trace: Trace, limit: int) -> LiveBytes:
        """What is left if each is away as long as its breakpoints allow."""
        return LiveBytes.of(trace, limit, (self.release[0], self.fetch[1], self.w.size))

    def where(self, chosen: Bool | I64) -> Away:
        """Keep some of the gaps."""
        return Away(self.w.where(chosen), self.release[:, chosen], self.fetch[:, chosen])

    def needed(self, trace: Trace, limit: int) -> Away:
        """Leave away what the limit does not ask for, the smallest first."""
        room, keep = self.live_bytes(trace, limit), np.ones(len(self), np.bool_)
        for k in np.argsort(self.w.size, kind="stable").tolist():
            start, stop, size = int(self.release[0][k]), int(self.fetch[1][k]), int(self.w.size[k])
            if max(room.highest(start, stop), 0) + size <= limit:
                room.leave(start, stop, -size)
                keep[k] = False
        return self.where(keep)

    def also(self, trace: Trace, limit: int, others: Windows) -> Away:
        """Swap more gaps while an op is above the limit, the largest first."""
        room, more = self.live_bytes(trace, limit), []
        mine = set(zip(self.w.buffer.tolist(), self.w.after.tolist()))
        for k in np.argsort(-others.size, kind="stable").tolist():
            start, stop = int(others.after[k]) + 1, int(others.before[k])
            if not room.over:
                break
            if room.helps(start, stop) and (others.buffer[k], others.after[k]) not in mine:
                room.leave(start, stop, int(others.size[k]))
                more.append(k)
        extra = others.where(np.array(more, np.int64))
        order = np.lexsort((np.append(self.w.after, extra.after), np.append(self.w.value, extra.value)))
        columns = {c: np.append(getattr(self.w, c), getattr(extra, c))[order] for c in Windows.__dataclass_fields__}
        release = np.hstack([self.release, np.tile(extra.after + 1, (2, 1))])[:, order]
        fetch = np.hstack([self.fetch, np.tile(extra.before, (2, 1))])[:, order]
        return Away(Windows(**columns), release, fetch)


def overlapped(trace: Trace, machine: Machine, limit: int, away: Away) -> list[Swap]:
    """The gaps of a solution, with their copies where the thesis' heuristic would put them."""
    found, line = gaps(trace), simulate(trace, machine)
    row, w = found.rows(trace.n), away.w
    mine = sorted(row[key] for key in zip(w.buffer.tolist(), (w.after % trace.n).tolist()))
    chosen = found.where(np.array(mine, np.int64))
    room = LiveBytes.of(trace, limit, (chosen.after + 1, chosen.before, chosen.size))
    return overlap(machine, chosen, room, line)


def ways(trace: Trace, limit: int, away: Away) -> Iterator[list[Swap]]:
    """Yield some ways to carry a solution out: copies back as late as can be, or as early as there is room."""
    n, w = trace.n, away.w
    release, late = away.release[0], away.fetch[1]
    early, room = late.copy(), away.live_bytes(trace, limit)
    for k in np.argsort(late, kind="stable").tolist():
        early[k] = room.fetch(int(away.fetch[0][k]), int(late[k]), int(w.size[k]))
    held = release.copy()
    for k in np.argsort(-release, kind="stable").tolist():  # who goes last holds its memory for longest
        held[k] = room.hold(int(release[k]), int(min(away.release[1][k], early[k])), int(w.size[k]))
    for back, order in product((late, early), (late, away.release[1])):
        for until in (release, np.minimum(held, back)):
            rows = np.argsort(order, kind="stable")
            swaps = Swap.each(w.where(rows), until[rows], back[rows])
            yield [swap.within(n) for swap in swaps]


def all_orders(w: Windows, release: I64, fetch: I64, n: int, duplex: bool) -> tuple[Iterator[list[Swap]], bool]:
    """Return plans for the orders in which the copies of these swaps can be made, and whether these are all.

    Each order comes once, by the first of `ORDERS` ways to write it down. Plans are made as they are asked for, since
    m swaps alone can be written down in m! ways.
    """
    places = {*(w.after % n).tolist()} | (set() if duplex else {*(fetch % n).tolist()})
    outs = [[a, *(x for x in range(a + 1, r) if x % n in places)] for a, r in zip(w.after.tolist(), release.tolist())]
    whole = prod(map(len, outs)) * factorial(len(w)) <= ORDERS
    return _plans(w, release, fetch, n, outs), whole


def _plans(w: Windows, release: I64, fetch: I64, n: int, outs: list[list[int]]) -> Iterator[list[Swap]]:
    """Yield a plan for each order of copies; `outs`: the ops after which each swap may be copied out."""
    each = ((out, order) for out in product(*outs) for order in permutations(range(len(w))))  # a product of both would
    back, found = (fetch % n).tolist(), set[bytes]()  # first make a tuple of all permutations
    for out, order in islice(each, ORDERS):
        queue = sorted(
            [((out[k] + 1) % n, 0, rank, k) for rank, k in enumerate(order)]
            + [(back[k], 1, rank, k) for rank, k in enumerate(order)]
        )
        key = np.array([(place, kind, k) for place, kind, _, k in queue], np.int32).tobytes()
        if key not in found:
            found.add(key)
            rows = np.array(order, np.int64)
            swaps = Swap.each(w.where(rows), release[rows], fetch[rows], np.array(out, np.int64)[rows])
            yield [swap.within(n) for swap in swaps]
