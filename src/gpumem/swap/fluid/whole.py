"""The program in whole numbers: at each breakpoint a buffer is off the device or it is not.

::

    breakpoint       |          |          |          |
    O  copied out    0.3        1          1          1     <= what the engine can do since the value was made
    I  to come back  1          1          0.6        0     <= what the engine can do until the access
    A  away          0          1          0          0     <= O, <= I
    live bytes       what is held without swapping, less bytes x A, <= M

With every instant a breakpoint it also says what a plan says, `o` and `f` of each gap; then nothing is left open but
the order of the copies::

    op           after                 release             fetch             before
    o  released            0      0       1        1         1        1        1
    f  fetched             0      0       0        0         1        1        1
    A  away                               <= o - f at the start of an op; at its end if the next one releases
"""

from __future__ import annotations

import numpy as np

from gpumem.swap.fluid.program import FluidProgram, expand
from gpumem.swap.fluid.relax import Fluid
from gpumem.trace import F64, I64

# ns that all decisions cost together: of equal solutions the one that swaps less. Far below the 1 ns by which two plans
# differ, so that no faster plan is lost.
FEWER = 0.01


class WholeProgram(FluidProgram):
    """The program for a limit in whole numbers; gaps are rows of the fluid.

    Parameters
    ----------
    host : int64[n], optional
        Bytes that the host can hold at each op. What is off the device then is held there.
    """

    def __init__(self, fluid: Fluid, breaks: I64, peak: int, limit: int, host: I64 | None = None) -> None:
        super().__init__(fluid, breaks, peak, limit)
        self._engines(float(self.f.w.out_ns.sum() + self.f.w.in_ns.sum()))
        self._copies_in()
        self._copies_out()
        self._absence()
        self._loads(limit / peak)
        if host is not None:
            row, own = self.rows.add(np.maximum(host, 0) / peak), np.flatnonzero(self.turns[self.place] % 2 == 0)
            op, size = self.turns[self.place[own]] // 2 % fluid.n, self.f.w.size[self.gap[own]]
            self.rows.put(row[op], self.absent[own], size / peak)

    def swapped_gaps(self, values: F64) -> tuple[I64, I64]:
        """Return what is off the device by a solution: gaps, and instants, ascending by both."""
        is_off_device = values[self.absent] > 0.5
        return self.active[self.gap[is_off_device]], self.turns[self.place[is_off_device]]

    def _copies_in(self) -> None:
        """I: from the first breakpoint where the buffer may be off the device until it is back."""
        fluid, windows, stop = self.f, self.f.w, np.searchsorted(self.turns, self.f.closes + (not self.f.stalls))
        gap, place, self.in_at = expand(self.begin, stop)
        time_left = fluid.at(fluid.closes)[gap] - self.time[place]
        self.arriving = self.rows.variables(self._alone(windows.in_ns[gap], time_left))
        cost, row, same = windows.in_ns[gap] / self.unit, self.in_row[place % self.k], gap[1:] == gap[:-1]
        self.rows.put(row, self.arriving, cost)
        self.rows.put(row[:-1][same], self.arriving[1:][same], -cost[:-1][same])
        self.rows.at_most(self.arriving[1:][same], self.arriving[:-1][same])

    def _copies_out(self) -> None:
        """O: of each value, from when it is made to the last breakpoint where a gap of it may be off the device.

        A value with one gap is copied in as far as it was copied out: the last O is the first I.
        """
        fluid, windows = self.f, self.f.w
        _, one, self.value, gaps = np.unique(windows.value, return_index=True, return_inverse=True, return_counts=True)
        start, stop = np.searchsorted(self.turns, fluid.opens[one], side="right"), np.zeros(len(one), np.int64)
        np.maximum.at(stop, self.value, self.end)
        paid = windows.out_ns[one] > 0
        self.single, stop = (gaps == 1) & paid, np.where(paid, stop, start)
        value, place, self.out_at = expand(start, stop)
        out = windows.out_ns[one][value]
        alone = self._alone(out, self.time[place] - fluid.at(fluid.opens[one])[value])
        shared = self.single[value] & (place == stop[value] - 1)
        self.left = np.empty(len(value), np.int64)
        self.left[~shared] = self.rows.variables(alone[~shared])
        of = np.empty(len(one), np.int64)
        of[self.value] = np.arange(len(windows))  # the gap of a value that has one
        gap = of[value[shared]]
        self.left[shared] = self.arriving[self.in_at[gap] + self.begin[gap]]
        cost, row, same = out / self.unit, self.out_row[(place - 1) % self.k], value[1:] == value[:-1]
        self.rows.put(row, self.left, cost)
        self.rows.put(row[1:][same], self.left[:-1][same], -cost[1:][same])
        self.rows.at_most(self.left[:-1][same], self.left[1:][same])

    def _absence(self) -> None:
        """A is 0 or 1 where an op starts; at its end, where little is decided, whatever lies in between."""
        self.gap, self.place, _ = expand(self.begin, self.end)
        paid = self.f.w.out_ns[self.gap] > 0
        arriving = self.arriving[self.in_at[self.gap] + self.place]
        left = arriving.copy()
        left[paid] = self.left[(self.out_at[self.value[self.gap]] + self.place)[paid]]
        starts = self.turns[self.place] % 2 == 0
        self.absent = np.empty(len(starts), np.int64)
        for chosen, whole in ((starts, True), (~starts, False)):
            self.absent[chosen] = self.rows.variables(np.ones(int(chosen.sum())), whole=whole)
        self.rows.at_most(self.absent, left)
        self.rows.at_most(self.absent, arriving)

    def _loads(self, most: float) -> None:
        """Live bytes, at most `most` of the peak, at the start of a breakpoint's op, at the end of the op before."""
        fluid, windows = self.f, self.f.w
        for shift in (0,) if fluid.stalls else (0, 1):  # with stalls an odd breakpoint is the end of its op
            row = self.rows.add(most - fluid.held[(self.breaks // 2 - shift) % fluid.n] / self.peak)
            op = self.turns[self.place] // 2 - shift
            is_inside = (windows.after[self.gap] < op) & (op < windows.before[self.gap])
            size = windows.size[self.gap[is_inside]] / self.peak
            self.rows.put(row[self.place[is_inside] % self.k], self.absent[is_inside], -size)


class PlacedProgram(WholeProgram):
    """The program that says what a plan says; every instant is a breakpoint.

    Parameters
    ----------
    load : int64[n]
        The live bytes without swapping: that of a plan is at most the limit at every op.
    """

    def __init__(self, fluid: Fluid, peak: int, limit: int, load: I64, host: I64 | None = None) -> None:
        super().__init__(fluid, np.arange(2 * fluid.n), peak, limit)
        windows, count = self.f.w, self.f.w.before - self.f.w.after
        self.first = np.cumsum(count) - count  # of each gap: where its ops begin, along `gaps` and `ops`
        self.gaps = np.repeat(np.arange(len(windows)), count)
        self.ops = np.arange(len(self.gaps)) - self.first[self.gaps] + windows.after[self.gaps] + 1
        ones = np.ones(len(self.gaps))
        self.released = self.rows.variables(ones, cost=FEWER / max(len(ones), 1), whole=True)
        self.fetched = self.rows.variables(ones, whole=True)
        self._once(self.first + count - 1)
        self._only_then()
        self._held((limit - load) / peak, -1.0)
        if host is not None:
            self._held(np.maximum(host, 0) / peak, 1.0)

    def _once(self, final: I64) -> None:
        """Neither goes back, the fetch comes with the release or later, and what is released is fetched."""
        same_gap = self.gaps[1:] == self.gaps[:-1]
        for columns in (self.released, self.fetched):
            self.rows.at_most(columns[:-1][same_gap], columns[1:][same_gap])
        self.rows.at_most(self.fetched, self.released)
        self.rows.at_most(self.released[final], self.fetched[final])

    def _only_then(self) -> None:
        """A buffer is absent only between release and fetch; at the end of an op, if the next one releases it."""
        instant = self.turns[self.place]
        start = self.first[self.gap] + instant // 2 - self.f.w.after[self.gap] - 1  # of the op that it belongs to
        end = instant % 2
        row = self.rows.add(np.zeros(len(instant)))
        self.rows.put(row, self.absent, 1.0)
        self.rows.put(row, self.released[start + end], -1.0)
        self.rows.put(row, self.fetched[start], 1.0)

    def _held(self, room: F64, sign: float) -> None:
        """What a plan keeps away at an op, by the order of issue: the host can hold it, the device for the rest."""
        row = self.rows.add(room)
        inside = np.flatnonzero(self.ops < self.f.w.before[self.gaps])
        size, op = sign * self.f.w.size[self.gaps[inside]] / self.peak, self.ops[inside] % self.f.n
        self.rows.put(row[op], self.released[inside], size)
        self.rows.put(row[op], self.fetched[inside], -size)

    def decisions_of(self, values: F64) -> tuple[I64, I64, I64]:
        """Return what a solution says: the gaps that are swapped, their releases and their fetches."""
        size = len(self.f.w)
        decided = (self.released, self.fetched)
        late = [np.bincount(self.gaps[values[columns] < 0.5], minlength=size) for columns in decided]
        swapped = np.flatnonzero(np.bincount(self.gaps[values[self.released] > 0.5], minlength=size))
        after = self.f.w.after[swapped] + 1
        return self.active[swapped], after + late[0][swapped], after + late[1][swapped]

    def forbid(self, gaps: I64, release: I64, fetch: I64, stall: float) -> None:
        """Say that whatever says just this stalls for so many ns.

        A solution that differs from it in k of its decisions stalls at least `(1 - k) * stall`.
        """
        when = np.full((2, int(self.active.max(initial=-1)) + 1), 2**61)
        when[:, gaps] = release, fetch
        yes = np.concatenate([self.ops >= column[self.active[self.gaps]] for column in when])
        columns = np.concatenate([self.released, self.fetched])
        row = self.rows.add(np.array([(int(yes.sum()) - 1) * stall / self.unit]))
        self.rows.put(np.repeat(row, len(self.stall)), self.stall, -1.0)
        self.rows.put(np.repeat(row, len(columns)), columns, np.where(yes, stall, -stall) / self.unit)
