"""The linear program of swapping: fluid copies between breakpoints of the iteration.

::

    breakpoint       |          |          |          |
    O  copied out    0.3        1          1          1     <= what the engine can do since the value was made
    I  to come back  1          1          0.6        0     <= what the engine can do until the access
    A  absent        0.3        1          0.6        0     <= O, <= I
    load             what is held without swapping, less bytes x A, <= M

It knows nothing of values made again; `flows` does, which states the same in fewer rows, for fractions only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.base.display import Shown
from gpumem.swap.fluid.relax import Fluid
from gpumem.swap.linear_programs import Rows
from gpumem.trace import F64, I64, Bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Solution(Shown):
    """A solved program.

    `dual`: a value that no solution is below, whatever the solver's tolerances; `level`: the load that it keeps
    to, as a fraction of the peak; `absent[k]`, `dropped[k]`: the fractions of gap `gap[k]` away on the host, and yet to
    be made again, at unrolled instant `instant[k]`; `price`: what the time of each segment is worth, in units of the
    objective; `stall`: ns by which it grows; `crammed`: instants amid segments, and by how many ns the copies that
    belong on one side of each take longer than the segment does there.
    """

    dual: float
    level: float
    gap: I64
    instant: I64
    absent: F64
    dropped: F64
    price: F64
    stall: F64
    crammed: tuple[I64, F64]


NOWHERE = np.zeros(0, np.int64), np.zeros(0)


def expand(first: I64, stop: I64) -> tuple[I64, I64, I64]:
    """For items with places `[first, stop)`: the items and the places, one after another.

    And for each item what to add to a place of its own to find it in these.
    """
    count = np.maximum(stop - first, 0)
    item, offset = np.repeat(np.arange(len(count)), count), np.cumsum(count) - count - first
    return item, np.arange(len(item)) - offset[item], offset


class FluidProgram:
    """The program for one choice of breakpoints, ascending instants in `[0, 2 n)`.

    With a limit it asks for the least stall, else for the least level.
    """

    def __init__(self, fluid: Fluid, breaks: I64, peak: int, limit: int | None) -> None:
        self.breaks, self.peak, self.limit, self.rows = breaks, peak, limit, Rows()
        self.turns = np.concatenate([breaks + 2 * fluid.n * turn for turn in range(5)])
        begin, end = np.searchsorted(self.turns, fluid.first), np.searchsorted(self.turns, fluid.last, side="right")
        self.active = np.flatnonzero(begin < end)
        self.begin, self.end = begin[self.active], end[self.active]
        self.f = fluid.where(self.active)
        self.time = self.f.at(self.turns)
        self.unit = float(fluid.time[-1]) / 100 or 1.0  # of time: keeps coefficients near 1
        self.level = self.rows.variables(np.ones(int(limit is None)), cost=1.0)
        self._engines()
        self._copies_in()
        self._copies_out()
        self._absence()
        self._loads()

    def solve(self) -> Solution | None:
        """Solve the program with buffers away in part; None where the time was up before."""
        found = self.rows.relaxed()
        if found is None and not work.hurried():
            raise RuntimeError("the linear program was not solved")
        return None if found is None else self._solution(found.x, found.price, found.dual)

    def _solution(self, x: F64, price: F64, dual: float) -> Solution:
        k, absent = len(self.breaks), np.zeros(len(self.gap))
        for columns, sign in self.away:
            absent += np.where(columns >= 0, x[columns], 0) * sign
        engines = price[: 2 * k if self.f.duplex else k].reshape(-1, k).sum(axis=0)
        worth = engines * (self.time[1 : k + 1] - self.time[:k]) / self.unit
        level = float(x[0]) if self.limit is None else self.limit / self.peak
        stall = np.zeros(k)
        stall[self.grows] = x[self.stall] * self.unit
        gap, instant = self.active[self.gap], self.turns[self.place]
        return Solution(dual, level, gap, instant, absent, 0 * absent, worth, stall, NOWHERE)

    def _engines(self) -> None:
        """A segment's copies take no longer than the segment; with stalls it may grow, where an op starts in it."""
        k, engines = len(self.breaks), 2 if self.f.duplex else 1
        row = self.rows.add(np.tile((self.time[1 : k + 1] - self.time[:k]) / self.unit, engines))
        self.out_row, self.in_row = row[:k], row[-k:]
        self.grows = np.flatnonzero((self.turns[1 : k + 1] // 2 > self.turns[:k] // 2) & (self.limit is not None))
        most = float(self.f.w.out_ns.sum() + self.f.w.in_ns.sum()) / self.unit  # one after another
        self.stall = self.rows.variables(np.full(len(self.grows), most), cost=0.0 if self.limit is None else self.unit)
        for side in {id(r): r for r in (self.out_row, self.in_row)}.values():
            self.rows.put(side[self.grows], self.stall, -1.0)

    def _alone(self, copy_ns: I64, time: I64) -> F64:
        """The part of a copy that its engine could do in `time` if it did nothing else, and nothing stalls."""
        part: F64 = np.where((copy_ns > 0) & (not self.f.stalls), time / np.maximum(copy_ns, 1), 1.0)
        return np.clip(part, 0, 1)

    def _copies_in(self) -> None:
        """I: from the first breakpoint where the buffer may be away until it is back."""
        f, w, stop = self.f, self.f.w, np.searchsorted(self.turns, self.f.closes + (not self.f.stalls))
        gap, place, self.coming_at = expand(self.begin, stop)
        self.coming = self.rows.variables(self._alone(w.in_ns[gap], f.at(f.closes)[gap] - self.time[place]))
        cost, row, same = w.in_ns[gap] / self.unit, self.in_row[place % len(self.breaks)], gap[1:] == gap[:-1]
        self.rows.put(row, self.coming, cost)
        self.rows.put(row[:-1][same], self.coming[1:][same], -cost[:-1][same])
        self.rows.at_most(self.coming[1:][same], self.coming[:-1][same])

    def _copies_out(self) -> None:
        """O: of each value, from when it is made to the last breakpoint where a gap of it may be away.

        A value with one gap is copied in as far as it was copied out: the last O is the first I.
        """
        f, w = self.f, self.f.w
        _, one, self.value, gaps = np.unique(w.value, return_index=True, return_inverse=True, return_counts=True)
        start, stop = np.searchsorted(self.turns, f.opens[one], side="right"), np.zeros(len(one), np.int64)
        np.maximum.at(stop, self.value, self.end)
        paid = w.out_ns[one] > 0
        self.single, stop = (gaps == 1) & paid, np.where(paid, stop, start)
        value, place, self.gone_at = expand(start, stop)
        out = w.out_ns[one][value]
        alone = self._alone(out, self.time[place] - f.at(f.opens[one])[value])
        shared = self.single[value] & (place == stop[value] - 1)
        self.gone = np.empty(len(value), np.int64)
        self.gone[~shared] = self.rows.variables(alone[~shared])
        of = np.empty(len(one), np.int64)
        of[self.value] = np.arange(len(w))  # the gap of a value that has one
        gap = of[value[shared]]
        self.gone[shared] = self.coming[self.coming_at[gap] + self.begin[gap]]
        cost, row, same = out / self.unit, self.out_row[(place - 1) % len(self.breaks)], value[1:] == value[:-1]
        self.rows.put(row, self.gone, cost)
        self.rows.put(row[1:][same], self.gone[:-1][same], -cost[1:][same])
        self.rows.at_most(self.gone[:-1][same], self.gone[1:][same])

    def _absence(self) -> None:
        """A, as columns and signs: O + I - w, I alone where no copy-out is needed, else a variable <= O, <= I."""
        self.gap, self.place, _ = expand(self.begin, self.end)
        value, none = self.value[self.gap], np.full(len(self.gap), -1)
        paid, single = self.f.w.out_ns[self.gap] > 0, self.single[value]
        coming = self.coming[self.coming_at[self.gap] + self.place]
        gone, total = none.copy(), none.copy()
        gone[paid] = self.gone[(self.gone_at[value] + self.place)[paid]]
        total[single] = self.coming[(self.coming_at[self.gap] + self.begin[self.gap])[single]]
        self._away(gone, coming, total, paid, single)

    def _away(self, gone: I64, coming: I64, total: I64, paid: Bool, single: Bool) -> None:
        """Say what A is, from the columns of O and I at each place, and of w where one gap has the value."""
        none = np.full(len(gone), -1)
        several = paid & ~single
        mine = none.copy()
        mine[several] = self.rows.variables(np.ones(int(several.sum())))
        self.rows.at_most(mine[several], gone[several])
        self.rows.at_most(mine[several], coming[several])
        left = np.where(single, gone, mine)
        self.away = [(left, 1.0), (np.where(several, -1, coming), 1.0), (total, -1.0)]

    def _loads(self) -> None:
        """The load at the start of the op at each breakpoint, and at the end of the op before it."""
        f, w, n = self.f, self.f.w, self.f.n
        for shift in (0, 1):
            op = self.breaks // 2 - shift  # with stalls an odd breakpoint is the end of its op
            if f.stalls and shift:
                break
            held = f.held[op % n] / self.peak
            row = self.rows.add(-held if self.limit is None else self.limit / self.peak - held)
            if self.limit is None:
                self.rows.put(row, np.repeat(self.level, len(row)), -1.0)
            at = self.turns[self.place] // 2 - shift
            inside = (w.after[self.gap] < at) & (at < w.before[self.gap])
            for columns, sign in self.away:
                here = inside & (columns >= 0)
                size = w.size[self.gap[here]] / self.peak
                self.rows.put(row[self.place[here] % len(self.breaks)], columns[here], -sign * size)
