"""Local search below one goal after another: a buffer that is left out takes the place of others, and these go on.

Where a trace was rewritten the load is high over long times, and buffers of the largest area decide: activations that
go down like stairs, gradients and prefetched values that go up. An order says too little about that, since it fills
from the bottom only. Here a buffer goes where it disturbs least, at either end of a hole.
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

OUT = -1
STUCK = 2**48  # what an obstacle weighs: more than all else together
LOOK, SORT = 4, 40  # work: to look at a buffer, and to sort one that is in


class Neighbours(NamedTuple):
    """Which buffers meet: those of `j`, ascending, are `ids[begin[j] : begin[j + 1]]`."""

    begin: I64
    ids: NDArray[np.int32]


@jit
def _meeting(first: I64, last: I64, sections: int) -> tuple[I64, NDArray[np.int32]]:
    count = len(first)
    begin = np.zeros(count + 1, np.int64)
    for x in range(count):
        for y in range(x):
            if meet(first[x], last[x], first[y], last[y], sections):
                begin[x + 1] += 1
                begin[y + 1] += 1
    for x in range(count):
        begin[x + 1] += begin[x]
    ids, to = np.empty(begin[count], np.int32), begin[:count].copy()
    for x in range(count):
        for y in range(x):  # `x` ascends in the list of each `y`, and comes after all of its own
            if meet(first[x], last[x], first[y], last[y], sections):
                ids[to[x]], ids[to[y]] = y, x
                to[x] += 1
                to[y] += 1
    return begin, ids


def neighbours(first: I64, last: I64, sections: int) -> Neighbours:
    """Return which arcs of a circle meet. Time O(B^2), memory O(pairs)."""
    return Neighbours(*_meeting(first, last, sections))


@inner
def _ways(
    near: Neighbours, u: int, size: I64, weight: I64, offset: I64, top: int, seen: int, at: I64, change: I64
) -> int:
    """List where, as `u` rises to `top`, what it overlaps gets heavier and lighter; return how many changes."""
    count = 0
    for e in range(near.begin[u], near.begin[u + 1]):
        j = near.ids[e]
        if j > seen:
            break
        low = offset[j] - size[u] + 1
        if offset[j] != OUT and low <= top:
            at[count], change[count] = low, weight[j]
            at[count + 1], change[count + 1] = offset[j] + size[j], -weight[j]
            count += 2
    return count


@inner
def _lightest(at: I64, change: I64, top: int, upper: bool) -> tuple[int, int]:
    """Return the offset up to `top` where the changes add up to least, and that sum; ties go to the tightest."""
    order = np.argsort(at)
    least, tightest, best, weight, here, k = FAR, FAR, 0, 0, 0, 0
    while here <= top:
        while k < len(order) and at[order[k]] <= here:
            weight += change[order[k]]
            k += 1
        after = min(at[order[k]], top + 1) if k < len(order) else top + 1
        if weight < least or (weight == least and after - here < tightest):
            least, tightest = weight, after - here
            best = after - 1 if upper else here
        here = after
    return best, least


@jit
def eject(
    near: Neighbours, size: I64, ceiling: I64, weight: I64, fixed: int, count: int, offset: I64, draws: F64, effort: int
) -> tuple[bool, int]:
    """Put in what is out of the first `count` buffers, a step for each of `draws`; return whether all is in, the work.

    `offset` is changed in place, `OUT` where a buffer is out. The first `fixed` buffers stay where they are. What
    reaches above its ceiling is put out first. Gives up when draws or effort are used up, or where nothing but fixed
    buffers could make room.
    """
    seen, first, most, spent = fixed - 1, fixed, 0, 0
    now = weight.copy()
    for j in range(len(size)):
        most = max(most, near.begin[j + 1] - near.begin[j])
        if j >= fixed and offset[j] + size[j] > ceiling[j]:
            offset[j] = OUT
        if offset[j] != OUT:
            seen = max(seen, j)
    at, change = np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
    for draw in draws:
        while first < count and offset[first] != OUT:
            first += 1
        if first == count or spent > effort:
            break
        u, top = first, ceiling[first] - size[first]
        found = _ways(near, u, size, now, offset, top, seen, at, change)
        lowest, least = _lightest(at[:found], change[:found], top, draw < 0.5)
        spent += LOOK * (near.begin[u + 1] - near.begin[u]) + SORT * (found + 1)
        if top < 0 or least >= STUCK:
            break
        offset[u], seen = lowest, max(seen, u)
        if least > 0:
            now[u] += weight[u]
            for e in range(near.begin[u], near.begin[u + 1]):
                j = near.ids[e]
                if j > seen:
                    break
                if offset[j] != OUT and offset[j] < lowest + size[u] and lowest < offset[j] + size[j]:
                    offset[j] = OUT
                    first = min(first, j)
    while first < count and offset[first] != OUT:
        first += 1
    return first == count, spent


MOST = 4000  # buffers of the largest area; which of them meet is kept, and that may be each pair
POWERS = ((1.0, 1.0), (1.0, 0.5), (0.7, 0.7))  # of size and lifetime in the weight, in turns
LEFT = (0.02, 0.003, 0.0003)  # of the load: what small buffers may add up to that a stage leaves to best fit
PARTS = 20  # of the effort: what one stage may take
SCALE = 2**20  # weights are whole numbers, so that sums do not depend on the order
STEPS = 10_000  # of a round
ROUNDS = 6  # that fail, until all begins anew
PAIR = 2  # work to find out whether two buffers meet


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
        b, free = self.problem.trace.buffers, self.problem.free  # by descending size
        weight = self.problem.units[free].astype(np.float64) ** size * (b.end - b.start)[free] ** length
        load = self.problem.peak_units(free)
        counts = [
            bisect_left(range(len(free)), True, key=lambda k: self.problem.peak_units(free[k:]) <= left * load)
            for left in LEFT
        ]
        counts = sorted({min(count, MOST) for count in counts} - {0})
        stage = np.searchsorted(counts, np.arange(len(free)), "right")
        order = np.lexsort((-weight, stage))[: counts[-1]]
        return free[order], np.ceil(weight[order] / weight.max() * SCALE).astype(np.int64), counts

    def _descend(self, ids: I64, weight: I64, counts: list[int], effort: int) -> None:
        """Start from nothing; lower the goal where it is reached, raise it where it is not."""
        p = self.problem.instance(ids, self.best.height)
        held, share, failed = len(p.obstacle_size), 0.5, 0
        near = neighbours(np.append(p.obstacle_first, p.first), np.append(p.obstacle_last, p.last), p.sections)
        self.work += PAIR * (held + len(ids)) ** 2
        size, heavy = np.append(p.obstacle_size, p.size), np.append(np.full(held, STUCK), weight)
        offset = np.append(p.obstacle_offset, np.full(len(ids), OUT))
        while failed < ROUNDS and self.going(effort):
            before = self.best.height
            goal = self.target + int(share * (before - 1 - self.target))
            ceiling = np.append(np.zeros(held, np.int64), self.problem.instance(ids, goal).ceiling)
            for count in counts:
                draws, most = self.rng.random(STEPS + 4 * count), min(effort - self.work, effort // PARTS)
                done, spent = eject(near, size, ceiling, heavy, held, held + count, offset, draws, most)
                self.work += spent + REST * len(self.problem.free)
                if not done:
                    break
                placed = self.problem.around(ids[:count], offset[held : held + count])
                self.keep(placed)
                if placed.height <= goal:
                    break
            self.tell("ejection")
            failed += self.best.height >= before
            share = share / 2 if self.best.height < before else (1 + share) / 2
