"""The linear program in flows: what each segment copies out, copies in and recomputes.

It is the program of `whole`, for fractions only, in fewer and shorter rows, for parts instead of gaps, and with D,
what is dropped::

    breakpoint       |          |          |          |
    A  absent        0.3        0.4        0.2        0     <= O, <= I as in `whole`
    D  dropped       0.6        0.6        0.2        0     <= 1 - I at first; as it falls, the segment grows

What is absent is counted from slot to slot. A slot is a breakpoint; where nothing stalls it is the end of the op
before it, or the start of its op. Each flow counts from the slot behind its segment on, or up to there::

    room[t]  =  room[t-1]  +  held[t-1] - held[t]  +  bytes x (out - in - recomputed, of the segment between)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.swap.fluid.parts import merge_gaps
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
        self.parts = merge_gaps(self.f, self.begin, self.end, self.turns, self.k)
        self.single = (self.parts.out_ns > 0) & ~self.parts.several
        self._slots()
        self._engines(float(self.parts.out_ns.sum() + self.parts.in_ns.sum() + self.parts.drops.recompute_ns.sum()))
        self._room()
        self._into()
        self._recomputed()
        self._out()
        self._several()
        self._once()

    def solve(self) -> Solution | None:
        """Solve the program; None where the time was up before."""
        relaxed = self.rows.relaxed()
        if relaxed is None and not work.hurried():
            raise RuntimeError("the linear program was not solved")
        return None if relaxed is None else self._solution(relaxed.x, relaxed.price, relaxed.dual)

    def _solution(self, values: F64, price: F64, dual: float) -> Solution:
        gap, place, _ = expand(self.begin, self.end)
        parts, droppable = self.parts, self.parts.drop[gap] >= 0
        absent, absent_at = self._absent(values)
        dropped, dropped_at = self._dropped(values)
        part, drop, inside = parts.part[gap], parts.drop[gap[droppable]], place - parts.shift[gap]
        let_go = np.zeros(len(gap))
        let_go[droppable] = dropped[dropped_at[drop] + inside[droppable]]
        level = float(values[self.level[0]]) if self.limit is None else self.limit / self.peak
        engines = price[: 2 * self.k if self.f.duplex else self.k].reshape(-1, self.k).sum(axis=0)
        worth = engines * (self.time[1 : self.k + 1] - self.time[: self.k]) / self.unit
        stall = np.zeros(self.k)
        stall[self.grows] = values[self.stall] * self.unit
        here, absent = self.turns[place], absent[absent_at[part] + inside]
        return Solution(dual, level, self.active[gap], here, absent, let_go, worth, stall, self._crammed(values, stall))

    def _crammed(self, values: F64, stall: F64) -> tuple[I64, F64]:
        """Where values are made, or due, amid a segment, and the ns that copies lack which must run after, or before.

        A segment that grows does so where an op starts.
        """
        parts, fluid, segments, crammed = self.parts, self.f, self.k, []
        for flows, edge, instant, copy_ns, end in (
            ((self.out, self.left), parts.start - 1, fluid.opens, fluid.w.out_ns, 1),
            ((self.into,), parts.stop - 1, fluid.closes, fluid.w.in_ns, 0),
        ):
            copied = np.zeros(len(parts.size))
            for flow in flows:
                at_edge = flow.place == edge[flow.of]
                copied[flow.of[at_edge]] = values[flow.column[at_edge]]
            gap = np.flatnonzero(copied[parts.part] > 0)
            place, when = (edge[parts.part] + parts.shift)[gap], instant[gap]
            time = np.abs(self.time[place + end] - fluid.at(when))
            order = np.lexsort((time, place % segments))
            gap, place, when, time = gap[order], place[order], when[order], time[order]
            ops = np.abs(self.turns[place + end] // 2 - when // 2)  # that start on the side where copies must run
            needs = np.append(copied[parts.part[gap]] * copy_ns[gap], 0.0)
            needs = _summed(needs, np.searchsorted(place % segments, place % segments))
            crammed.append((when % (2 * fluid.n), needs - time - np.where(ops > 0, stall[place % segments], 0)))
        (out, late), (into, early) = crammed
        return np.append(out, into), np.append(late, early)

    def _absent(self, values: F64) -> tuple[F64, I64]:
        """The fraction of each part off the device at each of its breakpoints, and what to add to these to find it."""
        parts = self.parts
        part, _, offset = expand(parts.begin, parts.end)
        if not len(part):
            return np.zeros(0), offset
        change, begins = np.zeros(len(part) + 1), offset + parts.begin
        for flow, sign in ((self.out, 1.0), (self.into, -1.0)):
            place = np.maximum(flow.place + 1, parts.begin[flow.of])
            own = (place < parts.end[flow.of]) & ~parts.several[flow.of]
            np.add.at(change, (offset[flow.of] + place)[own], sign * values[flow.column[own]])
        free = parts.out_ns[self.into.of] == 0
        np.add.at(change, begins[self.into.of[free]], values[self.into.column[free]])
        absent = _summed(change, begins[part])
        absent[parts.several[part]] = values[self.absent.column]
        return absent, offset

    def _dropped(self, values: F64) -> tuple[F64, I64]:
        """As `_absent`, what is yet to be recomputed of each drop."""
        parts, drops = self.parts, self.parts.drops
        drop, _, offset = expand(parts.begin[drops.part], parts.end[drops.part])
        if not len(drop):
            return np.zeros(0), offset
        change, begins = np.zeros(len(drop) + 1), offset + parts.begin[drops.part]
        flow, amount = self.recomputed, values[self.recomputed.column]
        np.add.at(change, begins[flow.of], amount)
        own = flow.place + 1 < parts.end[drops.part[flow.of]]
        np.add.at(change, (offset[flow.of] + flow.place + 1)[own], -amount[own])
        return _summed(change, begins[drop]), offset

    def _slots(self) -> None:
        """Where each part counts: from slot `first` up to slot `last`."""
        parts, has_two = self.parts, not self.f.stalls
        self.per = 1 + has_two  # slots at a breakpoint
        op, windows = self.turns // 2, self.f.w.where(parts.gap)
        late = has_two & (op[parts.begin + parts.shift[parts.gap]] - 1 <= windows.after)
        early = has_two & (op[parts.end - 1 + parts.shift[parts.gap]] >= windows.before)
        self.first, self.last = self.per * parts.begin + late, self.per * parts.end - early

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

    def _absent_between(self, size: F64, column: I64, on: I64, off: I64, *, stays: bool = False) -> None:
        """Count bytes as absent in the slots `[on, off)`, which may lie turns ahead.

        The rows of `room` are a difference array on the circle of slots: row t holds what changes from slot t - 1 to t.
        Slot 0 is where the circle begins, so its row holds the absence itself::

            slot           0     1     2     3   |  4 = slot 0 of the next turn
            absent in                 [2,          5)
            row            here        on          off at slot 5 = 1

        With `stays`, `off` is where every flow of the part ends; another flow ends the bytes of this one by then.
        """
        size, slots = size / self.peak, len(self.room_row)
        begins, ends = (on < off) | stays, (on < off) & (not stays)
        for slot, change, chosen in ((on, -size, begins), (off, size, ends)):
            changes = chosen & (slot % slots > 0)
            self.rows.put(self.room_row[slot[changes] % slots], column[changes], change[changes])
        over_slot_0 = -(-on // slots) * slots < off  # the first slot 0 at `on` or later
        row_0 = np.repeat(self.room_row[:1], int(over_slot_0.sum()))
        self.rows.put(row_0, column[over_slot_0], -size[over_slot_0])

    def _behind(self, part: I64, place: I64) -> I64:
        """The slot behind the segment at `place`, or where the part begins or ends, if that is later or earlier."""
        return np.clip(self.per * (place + 1), self.first[part], self.last[part])

    def _into(self) -> None:
        """Copied in: from the first breakpoint where the buffer may be off the device until it is back."""
        parts = self.parts
        part, place, _ = expand(parts.begin, parts.stop)
        alone = self._alone(parts.in_ns[part], self.f.at(self.f.closes)[parts.gap[part]] - self.time[place])
        flow = self.into = Flow(part, place, self.rows.variables(alone))
        self.rows.put(self.in_row[place % self.k], flow.column, parts.in_ns[part] / self.unit)
        self._sums(flow, alone, late=True)
        alone_of_value, free = self.single[part], parts.out_ns[part] == 0
        behind, last = self._behind(part, place), self.last[part]
        self._absent_between(
            -parts.size[part[alone_of_value]],
            flow.column[alone_of_value],
            behind[alone_of_value],
            last[alone_of_value],
            stays=True,
        )
        self._absent_between(parts.size[part[free]], flow.column[free], self.first[part[free]], behind[free])

    def _sums(self, flow: Flow, alone: F64, *, late: bool) -> None:
        """What is copied through a segment, or from it on, is no more than an engine could do by then."""
        short = np.flatnonzero(alone < 1)
        begin, end = (np.searchsorted(flow.of, flow.of[short], side=side) for side in ("left", "right"))
        which, column, _ = expand(short, end) if late else expand(begin, short + 1)
        self.rows.put(self.rows.add(alone[short])[which], flow.column[column], 1.0)

    def _recomputed(self) -> None:
        """Recomputed: in segments where an op starts, which grow by what it takes."""
        parts, drops = self.parts, self.parts.drops
        drop, place, _ = expand(parts.begin[drops.part], parts.end[drops.part])
        grows = np.isin(place % self.k, self.grows)
        drop, place = drop[grows], place[grows]
        flow = self.recomputed = Flow(drop, place, self.rows.variables(np.ones(len(drop))))
        if len(drops.part):
            row = self.rows.add(np.zeros(self.k))
            self.rows.put(row[self.grows], self.stall, -1.0)
            self.rows.put(row[place % self.k], flow.column, drops.recompute_ns[drop] / self.unit)
        self._absent_between(
            drops.size[drop], flow.column, self.first[drops.part[drop]], self._behind(drops.part[drop], place)
        )

    def _out(self) -> None:
        """Copied out, of values that one part has: as much as is copied in."""
        parts, fluid, owners = self.parts, self.f, np.flatnonzero(self.single)
        which, place, _ = expand(parts.start[owners] - 1, parts.end[owners] - 1)
        part = owners[which]
        alone = self._alone(parts.out_ns[part], self.time[place + 1] - fluid.at(fluid.opens)[parts.gap[part]])
        flow = self.out = Flow(part, place, self.rows.variables(alone))
        self.rows.put(self.out_row[place % self.k], flow.column, parts.out_ns[part] / self.unit)
        self._sums(flow, alone, late=False)
        self._absent_between(parts.size[part], flow.column, self._behind(part, place), self.last[part], stays=True)
        row = np.full(len(parts.size), -1)
        row[owners] = self.rows.add(np.zeros(len(owners)), exact=True)
        back = self.single[self.into.of]
        self.rows.put(row[part], flow.column, 1.0)
        self.rows.put(row[self.into.of[back]], self.into.column[back], -1.0)

    def _several(self) -> None:
        """Of values that several parts share: O as in `whole`, and A of each part, which is at most O.

        As A falls, it is copied in.
        """
        parts, sharing = self.parts, np.flatnonzero(self.parts.several)
        values, first_of, value = np.unique(parts.value[sharing], return_index=True, return_inverse=True)
        stop = np.zeros(len(values), np.int64)
        np.maximum.at(stop, value, parts.end[sharing])
        which, place, offset = expand(parts.start[sharing[first_of]], stop)
        let_go = self._left(sharing[first_of[which]], place)
        self.left = Flow(sharing[first_of[which]], place - 1, let_go)  # its first
        whose, place, _ = expand(parts.begin[sharing], parts.end[sharing])
        part = sharing[whose]
        flow = self.absent = Flow(part, place, self.rows.variables(np.ones(len(part))))
        self.rows.at_most(flow.column, let_go[offset[value[whose]] + place])
        on = np.clip(self.per * place, self.first[part], self.last[part])
        self._absent_between(parts.size[part], flow.column, on, self._behind(part, place))
        self._fetched(flow)

    def _left(self, part: I64, place: I64) -> I64:
        """O of values by one of their parts, at breakpoints."""
        out, fluid = self.parts.out_ns[part], self.f
        let_go = self.rows.variables(self._alone(out, self.time[place] - fluid.at(fluid.opens)[self.parts.gap[part]]))
        cost, row, same = out / self.unit, self.out_row[(place - 1) % self.k], part[1:] == part[:-1]
        self.rows.put(row, let_go, cost)
        self.rows.put(row[1:][same], let_go[:-1][same], -cost[1:][same])
        self.rows.at_most(let_go[:-1][same], let_go[1:][same])
        return let_go

    def _fetched(self, flow: Flow) -> None:
        """What is not away any more at the next breakpoint, or behind the last, has been copied in."""
        parts, row = self.parts, self.rows.add(np.zeros(len(flow.of)))
        same = np.flatnonzero(np.diff(flow.of) == 0)
        self.rows.put(row, flow.column, 1.0)
        self.rows.put(row[same], flow.column[same + 1], -1.0)
        sharing = parts.several[self.into.of]
        whose, place = self.into.of[sharing], self.into.place[sharing]
        row_of = np.searchsorted(flow.of, whose) - parts.begin[whose]
        self.rows.put(row[row_of + np.minimum(place, parts.end[whose] - 1)], self.into.column[sharing], -1.0)

    def _once(self) -> None:
        """A part is swapped or dropped, and at most once, and so is each of its drops."""
        parts, drops, recomputed = self.parts, self.parts.drops, self.recomputed
        row = self.rows.add(np.ones(len(parts.size)))
        self.rows.put(row[self.into.of], self.into.column, 1.0)
        self.rows.put(
            row[drops.part[recomputed.of]], recomputed.column, (drops.size / parts.size[drops.part])[recomputed.of]
        )
        self.rows.put(self.rows.add(np.ones(len(drops.part)))[recomputed.of], recomputed.column, 1.0)


def _summed(change: F64, begins: I64) -> F64:
    """Add changes up, from the beginning of each item on; the last one belongs to nothing."""
    total = np.cumsum(change)
    summed: F64 = total[:-1] - (total - change)[begins]
    return summed
