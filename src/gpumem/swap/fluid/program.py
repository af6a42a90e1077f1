"""What the programs of fluid copies share: breakpoints of the iteration, and the time of engines between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base.display import Shown
from gpumem.swap.fluid.relax import Fluid
from gpumem.swap.linear_programs import Rows
from gpumem.trace import F64, I64


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Solution(Shown):
    """A solved program.

    `dual`: a value that no solution is below, whatever the solver's tolerances; `level`: the live bytes that it keeps
    to, as a fraction of the peak; `absent[k]`, `dropped[k]`: the fractions of gap `gap[k]` away on the host, and yet to
    be recomputed, at unrolled instant `instant[k]`; `price`: what the time of each segment is worth, in units of the
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


def expand(first: I64, stop: I64) -> tuple[I64, I64, I64]:
    """For items with places `[first, stop)`: the items and the places, one after another.

    And for each item what to add to a place of its own to find it in these.
    """
    count = np.maximum(stop - first, 0)
    item, offset = np.repeat(np.arange(len(count)), count), np.cumsum(count) - count - first
    return item, np.arange(len(item)) - offset[item], offset


class FluidProgram:
    """A program for one choice of breakpoints, ascending instants in `[0, 2 n)`.

    With a limit it asks for the least stall, else for the least level.
    """

    def __init__(self, fluid: Fluid, breaks: I64, peak: int, limit: int | None) -> None:
        self.breaks, self.peak, self.limit, self.rows, self.k = breaks, peak, limit, Rows(), len(breaks)
        self.turns = np.concatenate([breaks + 2 * fluid.n * turn for turn in range(5)])
        begin, end = np.searchsorted(self.turns, fluid.first), np.searchsorted(self.turns, fluid.last, side="right")
        self.active = np.flatnonzero(begin < end)
        self.begin, self.end = begin[self.active], end[self.active]
        self.f = fluid.where(self.active)
        self.time = self.f.at(self.turns)
        self.unit = float(fluid.time[-1]) / 100 or 1.0  # of time: keeps coefficients near 1

    def _engines(self, most_ns: float) -> None:
        """A segment's copies take no longer than the segment; with stalls it may grow, where an op starts in it.

        `most_ns`: what all that may grow it takes one after another.
        """
        segments = self.k
        lasts, op = np.diff(self.time[: segments + 1]), self.turns[: segments + 1] // 2
        row = self.rows.add(np.tile(lasts / self.unit, 2 if self.f.duplex else 1))
        self.out_row, self.in_row = row[:segments], row[-segments:]
        self.grows = np.flatnonzero((np.diff(op) > 0) & (self.limit is not None))
        cost, most = 0.0 if self.limit is None else self.unit, most_ns / self.unit
        self.stall = self.rows.variables(np.full(len(self.grows), most), cost=cost)
        for side in {id(row): row for row in (self.out_row, self.in_row)}.values():
            self.rows.put(side[self.grows], self.stall, -1.0)

    def _alone(self, copy_ns: F64 | I64, time: I64) -> F64:
        """The part of a copy that its engine could do in `time` if it did nothing else, and nothing stalls."""
        part: F64 = np.where((copy_ns > 0) & (not self.f.stalls), time / np.maximum(copy_ns, 1), 1.0)
        return np.clip(part, 0, 1)
