"""The linear program in flows: what each segment copies out, copies in and makes again.

It is the program of `whole`, for fractions only, in fewer and shorter rows, for parts instead of gaps, and with D,
what is dropped::

    breakpoint       |          |          |          |
    A  absent        0.3        0.4        0.2        0     <= O, <= I as in `whole`
    D  dropped       0.6        0.6        0.2        0     <= 1 - I at first; as it falls, the segment grows

What is away is told from slot to slot. A slot is a breakpoint; where nothing stalls it is the end of the op before it,
or the start of its op. Each flow counts from the slot behind its segment on, or up to there::

    room[t]  =  room[t-1]  +  held[t-1] - held[t]  +  bytes x (out - in - again, of the segment between)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.swap.fluid.parts import parts
from gpumem.swap.fluid.program import FluidProgram, Solution, expand
from gpumem.swap.fluid.relax import Fluid
from gpumem.trace import F64, I64


class Flow(NamedTuple):
    """Variables: of which parts (or drops), the breakpoints that their segments begin at, and their columns."""

    of: I64
    place: I64
    column: I64


class FlowProgram(FluidProgram):
    """The program in flows; see `FluidProgram`."""

    def __init__(self, fluid: Fluid, breaks: I64, peak: int, limit: int | None) -> None:
        super().__init__(fluid, breaks, peak, limit)
        self.p = parts(self.f, self.begin, self.end, self.turns, self.k)
        self.single = (self.p.out_ns > 0) & ~self.p.several
        self._slots()
        self._engines(float(self.p.out_ns.sum() + self.p.in_ns.sum() + self.p.drops.again_ns.sum()))
        self._room()
        self._into()
        self._again()
        self._out()
        self._several()
        self._once()

    def solve(self) -> Solution | None:
        """Solve the program; None where the time was up before."""
        found = self.rows.relaxed()
        if found is None and not work.hurried():
            raise RuntimeError("the linear program was not solved")
        return None if found is None else self._solution(found.x, found.price, found.dual)

    def _solution(self, x: F64, price: F64, dual: float) -> Solution:
        gap, place, _ = expand(self.begin, self.end)
        p, mine = self.p, self.p.drop[gap] >= 0
        absent, at = self._absent(x)
        dropped, dropped_at = self._dropped(x)
        part, drop, inside = p.part[gap], p.drop[gap[mine]], place - p.shift[gap]
        gone = np.zeros(len(gap))
        gone[mine] = dropped[dropped_at[drop] + inside[mine]]
        level = float(x[self.level[0]]) if self.limit is None else self.limit / self.peak
        engines = price[: 2 * self.k if self.f.duplex else self.k].reshape(-1, self.k).sum(axis=0)
        worth = engines * (self.time[1 : self.k + 1] - self.time[: self.k]) / self.unit
        stall = np.zeros(self.k)
        stall[self.grows] = x[self.stall] * self.unit
        here, absent = self.turns[place], absent[at[part] + inside]
        return Solution(dual, level, self.active[gap], here, absent, gone, worth, stall, self._crammed(x, stall))

    def _crammed(self, x: F64, stall: F64) -> tuple[I64, F64]:
        """Where values are made, or due, amid a segment, and the ns that copies lack which must run after, or before.

        A segment that grows does so where an op starts.
        """
        p, f, k, found = self.p, self.f, self.k, []
        for flows, edge, instant, copy_ns, end in (
            ((self.out, self.gone), p.start - 1, f.opens, f.w.out_ns, 1),
            ((self.into,), p.stop - 1, f.closes, f.w.in_ns, 0),
        ):
            copied = np.zeros(len(p.size))
            for flow in flows:
                mine = flow.place == edge[flow.of]
                copied[flow.of[mine]] = x[flow.column[mine]]
            gap = np.flatnonzero(copied[p.part] > 0)
            place, when = (edge[p.part] + p.shift)[gap], instant[gap]
            time = np.abs(self.time[place + end] - f.at(when))
            order = np.lexsort((time, place % k))
            gap, place, when, time = gap[order], place[order], when[order], time[order]
            ops = np.abs(self.turns[place + end] // 2 - when // 2)  # that start on the side where copies must run
            needs = np.append(copied[p.part[gap]] * copy_ns[gap], 0.0)
            needs = _summed(needs, np.searchsorted(place % k, place % k))
            found.append((when % (2 * f.n), needs - time - np.where(ops > 0, stall[place % k], 0)))
        (out, late), (into, early) = found
        return np.append(out, into), np.append(late, early)

    def _absent(self, x: F64) -> tuple[F64, I64]:
        """The part of each part that is away at each of its breakpoints, and what to add to these to find it."""
        p = self.p
        part, _, at = expand(p.begin, p.end)
        if not len(part):
            return np.zeros(0), at
        change, begins = np.zeros(len(part) + 1), at + p.begin
        for flow, sign in ((self.out, 1.0), (self.into, -1.0)):
            place = np.maximum(flow.place + 1, p.begin[flow.of])
            mine = (place < p.end[flow.of]) & ~p.several[flow.of]
            np.add.at(change, (at[flow.of] + place)[mine], sign * x[flow.column[mine]])
        free = p.out_ns[self.into.of] == 0
        np.add.at(change, begins[self.into.of[free]], x[self.into.column[free]])
        absent = _summed(change, begins[part])
        absent[p.several[part]] = x[self.away.column]
        return absent, at

    def _dropped(self, x: F64) -> tuple[F64, I64]:
        """As `_absent`, what is yet to be made again of each drop."""
        p, d = self.p, self.p.drops
        drop, _, at = expand(p.begin[d.part], p.end[d.part])
        if not len(drop):
            return np.zeros(0), at
        change, begins = np.zeros(len(drop) + 1), at + p.begin[d.part]
        flow, amount = self.again, x[self.again.column]
        np.add.at(change, begins[flow.of], amount)
        mine = flow.place + 1 < p.end[d.part[flow.of]]
        np.add.at(change, (at[flow.of] + flow.place + 1)[mine], -amount[mine])
        return _summed(change, begins[drop]), at

    def _slots(self) -> None:
        """Where each part counts: from slot `first` up to slot `last`."""
        p, two = self.p, not self.f.stalls
        self.per = 1 + two  # slots at a breakpoint
        op, w = self.turns // 2, self.f.w.where(p.gap)
        late = two & (op[p.begin + p.shift[p.gap]] - 1 <= w.after)
        early = two & (op[p.end - 1 + p.shift[p.gap]] >= w.before)
        self.first, self.last = self.per * p.begin + late, self.per * p.end - early

    def _room(self) -> None:
        """The bytes left below the limit at each slot."""
        op = np.repeat(self.breaks // 2, self.per) - np.tile(np.arange(self.per)[::-1], self.k)
        held = self.f.held[op % self.f.n] / self.peak
        right, most = np.roll(held, 1) - held, 1.0 if self.limit is None else self.limit / self.peak
        right[:1] = (0.0 if self.limit is None else most) - held[:1]
        self.level = self.rows.variables(np.ones(int(self.limit is None)), cost=1.0)
        room, self.room_row = self.rows.variables(np.full(len(op), most)), self.rows.add(right, exact=True)
        self.rows.put(self.room_row, room, 1.0)
        self.rows.put(self.room_row[1:], room[:-1], -1.0)
        self.rows.put(self.room_row[: len(self.level)], self.level, -1.0)

    def _count(self, size: F64, column: I64, on: I64, off: I64, *, ends: bool = True) -> None:
        """Count bytes as away in the slots `[on, off)`; without `ends` others see to it that they end."""
        size, slots = size / self.peak, len(self.room_row)
        for slot, change, some in ((on, -size, (on < off) | (not ends)), (off, size, (on < off) & ends)):
            mine = some & (slot % slots > 0)
            self.rows.put(self.room_row[slot[mine] % slots], column[mine], change[mine])
        mine = -(-on // slots) * slots < off  # slot 0 is told by itself
        self.rows.put(np.repeat(self.room_row[:1], int(mine.sum())), column[mine], -size[mine])

    def _behind(self, part: I64, place: I64) -> I64:
        """The slot behind the segment at `place`, or where the part begins or ends, if that is later or earlier."""
        return np.clip(self.per * (place + 1), self.first[part], self.last[part])

    def _into(self) -> None:
        """Copied in: from the first breakpoint where the buffer may be away until it is back."""
        p = self.p
        part, place, _ = expand(p.begin, p.stop)
        alone = self._alone(p.in_ns[part], self.f.at(self.f.closes)[p.gap[part]] - self.time[place])
        flow = self.into = Flow(part, place, self.rows.variables(alone))
        self.rows.put(self.in_row[place % self.k], flow.column, p.in_ns[part] / self.unit)
        self._sums(flow, alone, late=True)
        mine, free = self.single[part], p.out_ns[part] == 0
        behind, last = self._behind(part, place), self.last[part]
        self._count(-p.size[part[mine]], flow.column[mine], behind[mine], last[mine], ends=False)
        self._count(p.size[part[free]], flow.column[free], self.first[part[free]], behind[free])

    def _sums(self, flow: Flow, alone: F64, *, late: bool) -> None:
        """What is copied through a segment, or from it on, is no more than an engine could do by then."""
        short = np.flatnonzero(alone < 1)
        begin, end = (np.searchsorted(flow.of, flow.of[short], side=side) for side in ("left", "right"))
        which, column, _ = expand(short, end) if late else expand(begin, short + 1)
        self.rows.put(self.rows.add(alone[short])[which], flow.column[column], 1.0)

    def _again(self) -> None:
        """Made again: in segments where an op starts, which grow by what it takes."""
        p, d = self.p, self.p.drops
        drop, place, _ = expand(p.begin[d.part], p.end[d.part])
        grows = np.isin(place % self.k, self.grows)
        drop, place = drop[grows], place[grows]
        flow = self.again = Flow(drop, place, self.rows.variables(np.ones(len(drop))))
        if len(d.part):
            row = self.rows.add(np.zeros(self.k))
            self.rows.put(row[self.grows], self.stall, -1.0)
            self.rows.put(row[place % self.k], flow.column, d.again_ns[drop] / self.unit)
        self._count(d.size[drop], flow.column, self.first[d.part[drop]], self._behind(d.part[drop], place))

    def _out(self) -> None:
        """Copied out, of values that one part has: as much as is copied in."""
        p, f, mine = self.p, self.f, np.flatnonzero(self.single)
        which, place, _ = expand(p.start[mine] - 1, p.end[mine] - 1)
        part = mine[which]
        alone = self._alone(p.out_ns[part], self.time[place + 1] - f.at(f.opens)[p.gap[part]])
        flow = self.out = Flow(part, place, self.rows.variables(alone))
        self.rows.put(self.out_row[place % self.k], flow.column, p.out_ns[part] / self.unit)
        self._sums(flow, alone, late=False)
        self._count(p.size[part], flow.column, self._behind(part, place), self.last[part], ends=False)
        row = np.full(len(p.size), -1)
        row[mine] = self.rows.add(np.zeros(len(mine)), exact=True)
        back = self.single[self.into.of]
        self.rows.put(row[part], flow.column, 1.0)
        self.rows.put(row[self.into.of[back]], self.into.column[back], -1.0)

    def _several(self) -> None:
        """Of values that several parts share: O as in `whole`, and A of each part, which is at most O.

        As A falls, it is copied in.
        """
        p, mine = self.p, np.flatnonzero(self.p.several)
        values, one, value = np.unique(p.value[mine], return_index=True, return_inverse=True)
        stop = np.zeros(len(values), np.int64)
        np.maximum.at(stop, value, p.end[mine])
        which, place, at = expand(p.start[mine[one]], stop)
        gone = self._gone(mine[one[which]], place)
        self.gone = Flow(mine[one[which]], place - 1, gone)  # its first
        whose, place, _ = expand(p.begin[mine], p.end[mine])
        part = mine[whose]
        flow = self.away = Flow(part, place, self.rows.variables(np.ones(len(part))))
        self.rows.at_most(flow.column, gone[at[value[whose]] + place])
        on = np.clip(self.per * place, self.first[part], self.last[part])
        self._count(p.size[part], flow.column, on, self._behind(part, place))
        self._fetched(flow)

    def _gone(self, part: I64, place: I64) -> I64:
        """O of values by one of their parts, at breakpoints."""
        out, f = self.p.out_ns[part], self.f
        gone = self.rows.variables(self._alone(out, self.time[place] - f.at(f.opens)[self.p.gap[part]]))
        cost, row, same = out / self.unit, self.out_row[(place - 1) % self.k], part[1:] == part[:-1]
        self.rows.put(row, gone, cost)
        self.rows.put(row[1:][same], gone[:-1][same], -cost[1:][same])
        self.rows.at_most(gone[:-1][same], gone[1:][same])
        return gone

    def _fetched(self, flow: Flow) -> None:
        """What is not away any more at the next breakpoint, or behind the last, has been copied in."""
        p, row = self.p, self.rows.add(np.zeros(len(flow.of)))
        same = np.flatnonzero(np.diff(flow.of) == 0)
        self.rows.put(row, flow.column, 1.0)
        self.rows.put(row[same], flow.column[same + 1], -1.0)
        mine = p.several[self.into.of]
        whose, place = self.into.of[mine], self.into.place[mine]
        at = np.searchsorted(flow.of, whose) - p.begin[whose]
        self.rows.put(row[at + np.minimum(place, p.end[whose] - 1)], self.into.column[mine], -1.0)

    def _once(self) -> None:
        """A part is swapped or dropped, and at most once, and so is each of its drops."""
        p, d, again = self.p, self.p.drops, self.again
        row = self.rows.add(np.ones(len(p.size)))
        self.rows.put(row[self.into.of], self.into.column, 1.0)
        self.rows.put(row[d.part[again.of]], again.column, (d.size / p.size[d.part])[again.of])
        self.rows.put(self.rows.add(np.ones(len(d.part)))[again.of], again.column, 1.0)


def _summed(change: F64, begins: I64) -> F64:
    """Add changes up, from the beginning of each item on; the last one belongs to nothing."""
    total = np.cumsum(change)
    summed: F64 = total[:-1] - (total - change)[begins]
    return summed
