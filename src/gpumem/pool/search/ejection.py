"""Local search below one goal after another: a buffer that is left out takes the place of others, and these go on.

Where a trace was rewritten the live bytes are near their peak over long times, and buffers of the largest area decide:
activations that go down like stairs, gradients and prefetched values that go up. An order says too little about that,
since it fills from the bottom only. Here a buffer goes where what it puts out weighs least, at either end of a hole.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumem.base.jit import inner, jit
from gpumem.pool._interval_index import FAR
from gpumem.pool.search._problem import REST, Walk
from gpumem.trace import F64, I64
from gpumem.trace.lifetimes import meet
from gpumem.trace.placement import Placement

OUT = -1  # the offset of a buffer that is left out
STUCK = 2**48  # the weight of an obstacle: above that of all buffers together, 4,000 of 2**20 each and what was added
# Work, in buffers looked at. Not tuned: they decide on nothing but when the search ends.
LOOK = 4  # for each neighbour of the buffer that goes in
SORT = 40  # for each neighbour that lies somewhere, since where these begin and end is sorted
PAIR = 2  # to find out whether two buffers meet


class Neighbours(NamedTuple):
    """Which buffers meet: those of `j`, ascending, are `ids[begin[j] : begin[j + 1]]`."""

    begin: I64
    ids: NDArray[np.int32]


@jit
def _meeting(first: I64, last: I64, sections: int) -> tuple[I64, NDArray[np.int32]]:
    count = len(first)
    begin = np.zeros(count + 1, np.int64)
    for one in range(count):
        for other in range(one):
            if meet(first[one], last[one], first[other], last[other], sections):
                begin[one + 1] += 1
                begin[other + 1] += 1
    for one in range(count):
        begin[one + 1] += begin[one]
    ids, to = np.empty(begin[count], np.int32), begin[:count].copy()
    for one in range(count):
        for other in range(one):  # `x` ascends in the list of each `y`, and comes after all of its own
            if meet(first[one], last[one], first[other], last[other], sections):
                ids[to[one]], ids[to[other]] = other, one
                to[one] += 1
                to[other] += 1
    return begin, ids


def neighbours(first: I64, last: I64, sections: int) -> Neighbours:
    """Return which arcs of a circle meet. Time O(B^2), memory O(pairs)."""
    return Neighbours(*_meeting(first, last, sections))


class Arrangement(NamedTuple):
    """Buffers by descending weight, fixed ones first, and where they lie."""

    begin: I64  # as in `Neighbours`
    ids: NDArray[np.int32]
    size: I64
    weight: I64
    offset: I64  # `OUT` where one is left out


@inner
def _in_the_way(now: Arrangement, buffer: int, top: int, seen: int, at: I64, change: I64) -> int:  # noqa: PLR0917  compiled: no keyword-only parameters
    """List where, as a buffer rises to `top`, what it overlaps gets heavier and lighter; return how many changes.

    No buffer above `seen` lies anywhere.
    """
    count = 0
    for entry in range(now.begin[buffer], now.begin[buffer + 1]):
        other = now.ids[entry]
        if other > seen:
            break
        low = now.offset[other] - now.size[buffer] + 1
        if now.offset[other] != OUT and low <= top:
            at[count], change[count] = low, now.weight[other]
            at[count + 1], change[count + 1] = now.offset[other] + now.size[other], -now.weight[other]
            count += 2
    return count


@inner
def _lightest(at: I64, change: I64, top: int, upper: bool) -> tuple[int, int]:
    """Return the offset up to `top` where the changes add up to least, and that sum; ties go to the tightest."""
    order = np.argsort(at)
    least, tightest, best, weight, offset, following = FAR, FAR, 0, 0, 0, 0
    while offset <= top:
        while following < len(order) and at[order[following]] <= offset:
            weight += change[order[following]]
            following += 1
        after = min(at[order[following]], top + 1) if following < len(order) else top + 1
        if weight < least or (weight == least and after - offset < tightest):
            least, tightest = weight, after - offset
            best = after - 1 if upper else offset
        offset = after
    return best, least


@inner
def _put_out(now: Arrangement, buffer: int, low: int, seen: int) -> int:
    """Put out what a buffer overlaps from offset `low` on; return the first of what that is, or the buffer."""
    first, top = buffer, low + now.size[buffer]
    for entry in range(now.begin[buffer], now.begin[buffer + 1]):
        other = now.ids[entry]
        if other > seen:
            break
        if now.offset[other] != OUT and now.offset[other] < top and low < now.offset[other] + now.size[other]:
            now.offset[other] = OUT
            first = min(first, other)
    return first


@inner
def _first_out(offset: I64, first: int, count: int) -> int:
    """Return the first buffer from `first` on that is out, `count` where none is."""
    while first < count and offset[first] != OUT:
        first += 1
    return first


@jit
def eject(  # noqa: PLR0917  compiled: no keyword-only parameters
    start: Arrangement, ceiling: I64, draws: F64, fixed: int, count: int, effort: int
) -> tuple[bool, int]:
    """Put in what is out of the first `count` buffers, a step for each of `draws`; return whether all is in, the work.

    `start.offset` is changed in place. The first `fixed` buffers stay where they are. What reaches above its ceiling is
    put out first. Gives up when draws or effort are used up, or where nothing but fixed buffers could make way.
    """
    # What went in by force weighs more from then on, or two buffers could put each other out for ever.
    now = Arrangement(start.begin, start.ids, start.size, weight=start.weight.copy(), offset=start.offset)
    seen, most, spent = fixed - 1, 0, 0
    for buffer in range(len(now.size)):
        most = max(most, now.begin[buffer + 1] - now.begin[buffer])
        if buffer >= fixed and now.offset[buffer] + now.size[buffer] > ceiling[buffer]:
            now.offset[buffer] = OUT
        if now.offset[buffer] != OUT:
            seen = max(seen, buffer)
    at, change = np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
    first = fixed
    for draw in draws:
        buffer = first = _first_out(now.offset, first, count)
        if first == count or spent > effort:
            break
        top = ceiling[buffer] - now.size[buffer]
        changes = _in_the_way(now, buffer, top, seen=seen, at=at, change=change)
        offset, weight_in_the_way = _lightest(at[:changes], change[:changes], top, draw < 0.5)
        spent += LOOK * (now.begin[buffer + 1] - now.begin[buffer]) + SORT * (changes + 1)
        if top < 0 or weight_in_the_way >= STUCK:
            break
        if weight_in_the_way > 0:
            now.weight[buffer] += start.weight[buffer]
            first = _put_out(now, buffer, offset, max(seen, buffer))
        now.offset[buffer], seen = offset, max(seen, buffer)
    return _first_out(now.offset, first, count) == count, spent


MOST = 4000  # buffers of the largest area, by memory: which of them meet is kept, up to 16 million pairs. Not tuned
# Powers of size and lifetime in the weight, in turns. Not tuned.
POWERS = ((1.0, 1.0), (1.0, 0.5), (0.7, 0.7))
# What the small buffers that a stage leaves to best fit may add up to, over the peak live bytes of all. Not tuned.
LEFT = (0.02, 0.003, 0.0003)
PARTS = 20  # one stage takes at most this part of the effort. Not tuned
SCALE = 2**20  # the largest weight: whole numbers, so that sums do not depend on the order of additions
STEPS = 10_000  # steps of a stage, besides four for each of its buffers. Not tuned
ROUNDS = 6  # rounds without gain, until all begins anew with other weights. Not tuned


@dataclass(slots=True)
class EjectionWalk(Walk):
    """Goals that fall; what is fixed stays."""

    rng: np.random.Generator

    def run(self, effort: int) -> Placement:
        """Begin anew, with other weights, until the target is reached or the effort spent; return the lowest."""
        turn = 0
        while self.going(effort):
            self._descend(*self._ranked(*POWERS[turn % len(POWERS)]), effort)
            turn += 1
        return self.best

    def _ranked(self, size: float, length: float) -> tuple[I64, I64, list[int]]:
        """Return the buffers to place, those of each stage by weight; their weights; how many there are so far."""
        buffers, free = self.problem.trace.buffers, self.problem.free  # by descending size
        weight = self.problem.units[free].astype(np.float64) ** size * (buffers.end - buffers.start)[free] ** length
        load = self.problem.peak_units(free)
        counts = [
            bisect_left(range(len(free)), True, key=lambda cut: self.problem.peak_units(free[cut:]) <= left * load)
            for left in LEFT
        ]
        counts = sorted({min(count, MOST) for count in counts} - {0})
        stage = np.searchsorted(counts, np.arange(len(free)), "right")
        order = np.lexsort((-weight, stage))[: counts[-1]]
        return free[order], np.ceil(weight[order] / weight.max() * SCALE).astype(np.int64), counts

    def _descend(self, ids: I64, weight: I64, counts: list[int], effort: int) -> None:
        """Start from nothing; lower the goal where it is reached, raise it where it is not."""
        instance = self.problem.instance(ids, self.best.height)
        fixed, share, failed = len(instance.obstacle_size), 0.5, 0
        first = np.append(instance.obstacle_first, instance.first)
        last = np.append(instance.obstacle_last, instance.last)
        near = neighbours(first, last, instance.sections)
        self.work += PAIR * (fixed + len(ids)) ** 2
        start = Arrangement(
            *near,
            size=np.append(instance.obstacle_size, instance.size),
            weight=np.append(np.full(fixed, STUCK), weight),
            offset=np.append(instance.obstacle_offset, np.full(len(ids), OUT)),
        )
        while failed < ROUNDS and self.going(effort):
            before = self.best.height
            goal = self.target + int(share * (before - 1 - self.target))
            ceiling = np.append(np.zeros(fixed, np.int64), self.problem.instance(ids, goal).ceiling)
            for count in counts:
                draws, most = self.rng.random(STEPS + 4 * count), min(effort - self.work, effort // PARTS)
                is_done, spent = eject(start, ceiling, draws, fixed=fixed, count=fixed + count, effort=most)
                self.work += spent + REST * len(self.problem.free)
                if not is_done:
                    break
                placed = self.problem.around(ids[:count], start.offset[fixed : fixed + count])
                self.keep(placed)
                if placed.height <= goal:
                    break
            self.tell("ejection")
            failed += self.best.height >= before
            share = share / 2 if self.best.height < before else (1 + share) / 2
