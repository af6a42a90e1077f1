"""From a solution of the swapping program to plans: the decisions that are simulated."""

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

# Ways to write down the orders of copies, beyond which not all are simulated. Not tuned.
ORDERS = 5_000
# Breakpoints are repeated for so many iterations, more than any window reaches: its ops count on from the iteration
# that made its value.
TURNS = 5


@dataclass(frozen=True, slots=True, eq=False)
class SwappedGaps:
    """Gaps that a solution swaps: of each, between which ops its buffer leaves the device and returns.

    Columns over the `gaps`: the earliest and the latest op at which each may be released, and before which it may be
    fetched, so that it is off the device at the breakpoints of the solution and at no other. Ops count as in `gaps`.
    """

    gaps: Windows
    earliest_release: I64
    latest_release: I64
    earliest_fetch: I64
    latest_fetch: I64

    @classmethod
    def of(cls, fluid: Fluid, breaks: I64, gap: I64, instant: I64) -> SwappedGaps:
        """Read a solution, in which `gap` is off the device at `instant`, ascending by both: all of these are swapped.

        With every instant a breakpoint the earliest and the latest are the same.
        """
        points = np.concatenate([breaks + 2 * fluid.n * turn for turn in range(TURNS)])
        rows, first = np.unique(gap, return_index=True)  # sorted by gap, then by instant
        # The first and the last instant of each gap off the device; both empty where nothing is swapped.
        leaves, last = instant[first], instant[np.append(first, len(gap))[1:] - 1]
        gaps, before = fluid.w.where(rows), np.searchsorted(points, leaves) - 1
        # The breakpoints next to these, at which the buffer is on the device.
        still_on, back_on = np.where(before >= 0, points[before], -2), points[np.searchsorted(points, last) + 1]
        return cls(
            gaps,
            earliest_release=np.maximum(still_on // 2 + 1, gaps.after + 1),
            latest_release=(leaves + 1) // 2,
            earliest_fetch=last // 2 + 1,
            latest_fetch=np.minimum((back_on + 1) // 2, gaps.before),
        )

    def __len__(self) -> int:
        return len(self.gaps)

    def live_bytes(self, trace: Trace, limit: int) -> LiveBytes:
        """Return the live bytes if each is off the device as long as its breakpoints allow."""
        return LiveBytes.of(trace, limit, (self.earliest_release, self.latest_fetch, self.gaps.size))

    def where(self, chosen: Bool | I64) -> SwappedGaps:
        """Keep some of the gaps."""
        columns = self.earliest_release, self.latest_release, self.earliest_fetch, self.latest_fetch
        return SwappedGaps(self.gaps.where(chosen), *(column[chosen] for column in columns))

    def drop_needless(self, trace: Trace, limit: int) -> SwappedGaps:
        """Leave out gaps whose bytes fit below the limit as well, the smallest first."""
        live, is_kept = self.live_bytes(trace, limit), np.ones(len(self), np.bool_)
        for row in np.argsort(self.gaps.size, kind="stable").tolist():
            start, stop, size = int(self.earliest_release[row]), int(self.latest_fetch[row]), int(self.gaps.size[row])
            if max(live.highest(start, stop), 0) + size <= limit:
                live.leave(start, stop, -size)
                is_kept[row] = False
        return self.where(is_kept)

    def add_needed(self, trace: Trace, limit: int, others: Windows) -> SwappedGaps:
        """Swap more gaps while an op is above the limit, the largest first."""
        live, more = self.live_bytes(trace, limit), []
        swapped = set(zip(self.gaps.buffer.tolist(), self.gaps.after.tolist()))
        for row in np.argsort(-others.size, kind="stable").tolist():
            start, stop = int(others.after[row]) + 1, int(others.before[row])
            if not live.over:
                break
            if live.helps(start, stop) and (others.buffer[row], others.after[row]) not in swapped:
                live.leave(start, stop, int(others.size[row]))
                more.append(row)
        extra = others.where(np.array(more, np.int64))
        all_gaps = self.gaps, extra
        columns = {
            name: np.concatenate([getattr(gaps, name) for gaps in all_gaps]) for name in Windows.__dataclass_fields__
        }
        release, fetch = extra.after + 1, extra.before
        joined = SwappedGaps(
            Windows(**columns),
            earliest_release=np.append(self.earliest_release, release),
            latest_release=np.append(self.latest_release, release),
            earliest_fetch=np.append(self.earliest_fetch, fetch),
            latest_fetch=np.append(self.latest_fetch, fetch),
        )
        return joined.where(np.lexsort((joined.gaps.after, joined.gaps.value)))


def overlapped(trace: Trace, machine: Machine, limit: int, swapped: SwappedGaps) -> list[Swap]:
    """Return swaps of the gaps of a solution, with their copies where the thesis' heuristic would put them."""
    spans, line = gaps(trace), simulate(trace, machine)
    row, accesses = spans.rows(trace.n), zip(swapped.gaps.buffer.tolist(), (swapped.gaps.after % trace.n).tolist())
    chosen = spans.where(np.array(sorted(row[access] for access in accesses), np.int64))
    live = LiveBytes.of(trace, limit, (chosen.after + 1, chosen.before, chosen.size))
    return overlap(machine, chosen, live, line)


def variants(trace: Trace, limit: int, swapped: SwappedGaps) -> Iterator[list[Swap]]:
    """Yield variants of a solution: copies in as late as can be, or as early as bytes are free; and so for copies out.

    The order in which copies are issued is that of their latest times, of the accesses behind or before the gap.
    """
    n, spans = trace.n, swapped.gaps
    release, late = swapped.earliest_release, swapped.latest_fetch
    early, live = late.copy(), swapped.live_bytes(trace, limit)
    for row in np.argsort(late, kind="stable").tolist():
        early[row] = live.fetch(int(swapped.earliest_fetch[row]), int(late[row]), int(spans.size[row]))
    held = release.copy()
    for row in np.argsort(-release, kind="stable").tolist():  # the last to be released is held for longest
        until = min(swapped.latest_release[row], early[row])
        held[row] = live.hold(int(release[row]), int(until), int(spans.size[row]))
    for fetch, order in product((late, early), (late, swapped.latest_release)):
        for until in (release, np.minimum(held, fetch)):
            rows = np.argsort(order, kind="stable")
            swaps = Swap.each(spans.where(rows), until[rows], fetch[rows])
            yield [swap.within(n) for swap in swaps]


def all_orders(gaps: Windows, release: I64, fetch: I64, *, n: int, duplex: bool) -> tuple[Iterator[list[Swap]], bool]:
    """Return plans for the orders in which the copies of these swaps can be made, and whether these are all.

    Each order comes once, by the first of `ORDERS` ways to write it down. Plans are made as they are asked for, since
    m swaps alone can be written down in m! ways.
    """
    # A copy-out may also be issued behind a later op, after which another copy is issued: only that changes the order.
    places = {*(gaps.after % n).tolist()} | (set() if duplex else {*(fetch % n).tolist()})
    outs = [
        [after, *(op for op in range(after + 1, end) if op % n in places)]
        for after, end in zip(gaps.after.tolist(), release.tolist())
    ]
    is_all = prod(map(len, outs)) * factorial(len(gaps)) <= ORDERS
    return _plans(gaps, release, fetch, n=n, outs=outs), is_all


def _plans(gaps: Windows, release: I64, fetch: I64, *, n: int, outs: list[list[int]]) -> Iterator[list[Swap]]:
    """Yield a plan for each order of copies; `outs`: the ops after which each swap may be copied out."""
    # Not `product` of both: that would first make a tuple of all permutations.
    written = ((out, order) for out in product(*outs) for order in permutations(range(len(gaps))))
    fetched, seen = (fetch % n).tolist(), set[bytes]()
    for out, order in islice(written, ORDERS):
        queue = sorted(
            [((out[row] + 1) % n, 0, rank, row) for rank, row in enumerate(order)]
            + [(fetched[row], 1, rank, row) for rank, row in enumerate(order)]
        )
        key = np.array([(place, kind, row) for place, kind, _, row in queue], np.int32).tobytes()
        if key not in seen:
            seen.add(key)
            rows = np.array(order, np.int64)
            swaps = Swap.each(gaps.where(rows), release[rows], fetch[rows], np.array(out, np.int64)[rows])
            yield [swap.within(n) for swap in swaps]
