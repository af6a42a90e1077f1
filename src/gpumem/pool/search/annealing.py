"""Local search: simulated annealing over the order in which first fit takes the buffers, large ones first.

The few large buffers decide on the height, so they are arranged first, alone; then more buffers join them, at the
end of the order found so far. What is not arranged yet goes where best fit or first fit puts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpumem.base.jit import assign, inner, jit
from gpumem.pool.search._problem import REST, Walk
from gpumem.pool.search._skyline import row
from gpumem.pool.search.greedy import ORDERS
from gpumem.trace import F64, I64
from gpumem.trace.lifetimes import meet
from gpumem.trace.placement import Placement

DRAWS = 6  # random numbers a move: see `anneal`
OVERFLOW = 0.02  # what a byte above the target costs, in bytes of height: a slope where the height has none
DEPTH = 1 / math.log(0.7)  # a walk down the stack goes on with probability 0.7


@jit
def meetings(start: I64, end: I64, n: int) -> NDArray[np.uint8]:
    """Return the matrix that says which arcs meet."""
    found = np.zeros((len(start), len(start)), np.uint8)
    for x in range(len(start)):
        for y in range(x):
            if meet(start[x], end[x], start[y], end[y], n):
                found[x, y] = found[y, x] = 1
    return found


@jit
def refit(
    size: I64, meets: NDArray[np.uint8], order: I64, first: int, limit: float, offset: I64, top: I64, stack: I64
) -> tuple[int, int]:
    """Place `order[first:]` by first fit; return the height and the placed buffers looked at.

    `stack[:first]` are the buffers of `order[:first]` by offset. Gives up above `limit`, the rest unplaced.
    """
    height, spent = 0, 0
    for k in range(first):
        height = max(height, top[order[k]])
    for count in range(first, len(order)):
        x = order[count]
        row, floor, k = meets[x], 0, 0
        while k < count:
            y = stack[k]
            if row[y]:
                if offset[y] - floor >= size[x]:
                    break
                floor = max(floor, top[y])
            k += 1
        spent += count
        offset[x], top[x] = floor, floor + size[x]
        height = max(height, top[x])
        if height > limit:
            break
        k = count
        while k > 0 and offset[stack[k - 1]] > floor:
            stack[k] = stack[k - 1]
            k -= 1
        stack[k] = x
    return height, spent


@inner
def above(offset: I64, top: I64, target: int) -> float:
    """Return the bytes of buffers above the target."""
    total = 0.0
    for x in range(len(top)):
        if top[x] > target:
            total += top[x] - max(target, offset[x])
    return total


@inner
def _pick(meets: NDArray[np.uint8], offset: I64, top: I64, over: int, depth: float, u: float) -> int:
    """Return a buffer that reaches above `over`, or one `depth` places down the stack that holds it up."""
    found = np.empty(len(top), np.int64)
    count = 0
    for x in range(len(top)):
        if top[x] > over:
            found[count] = x
            count += 1
    while True:
        u *= count  # the digits of one random number choose at every place of the way down
        place = int(u)
        x, u = int(found[place]), u - place
        if depth < 1 or offset[x] == 0:
            return x
        depth, count = depth - 1, 0
        for y in range(len(top)):
            if meets[x, y] and top[y] == offset[x]:
                found[count] = y
                count += 1


@inner
def _move(order: I64, new: I64, here: int, there: int, swap: bool) -> None:
    """Write `order` to `new`: the entries at two places swapped, or the one `here` moved to before `there`."""
    assign(new, order)
    new[there] = order[here]
    if swap:
        new[here] = order[there]
    else:
        assign(new[there + 1 :], order[there:here])


@jit
def anneal(
    size: I64, meets: NDArray[np.uint8], order: I64, draws: F64, heat: float, effort: int, target: int, best: I64
) -> tuple[int, int]:
    """Walk from `order` at one temperature; return the least height met and the work done.

    `order` becomes the last order, `best[0]`, `best[1]` the order and the offsets of the least height. Stops at
    the target, or when draws or effort are used up. Of a move's draws: 0 decides on acceptance, 1 on the top or
    anything above the target, 2 which, 3 how far down, 4 swap or move, 5 where to.
    """
    count = len(order)
    offset, top, stack, rank = row(count), row(count), row(count), row(count)
    height, spent = refit(size, meets, order, 0, np.inf, offset, top, stack)
    cost = height + OVERFLOW * above(offset, top, target)
    least = height
    best[0], best[1] = order, offset
    new, other, new_top, new_stack = row(count), row(count), row(count), row(count)
    rank[order] = np.arange(count)
    for u in draws:
        if least <= target or spent >= effort:
            break
        over = height - 1 if u[1] < 0.5 else target
        here = rank[_pick(meets, offset, top, over, math.log(1 - u[3]) * DEPTH, u[2])]
        swap = u[4] < 0.5
        there = int(u[5] * (count if swap else here))
        spent += 6 * count
        if here == there:
            continue
        _move(order, new, here, there, swap)
        first, k = min(here, there), 0
        for y in stack:  # what stays as it is, by offset
            if rank[y] < first:
                new_stack[k] = y
                k += 1
        assign(other, offset)
        assign(new_top, top)
        most = cost - heat * math.log(1 - u[0])  # what the move may cost to be accepted
        reached, done = refit(size, meets, new, first, most, other, new_top, new_stack)
        spent += done
        if reached > most:
            continue
        price = reached + OVERFLOW * above(other, new_top, target)
        if price <= most:
            cost, height = price, reached
            assign(order, new)
            offset, other = other, offset
            top, new_top = new_top, top
            stack, new_stack = new_stack, stack
            rank[order] = np.arange(count)
            if height < least:
                least = height
                best[0], best[1] = order, offset
    return least, spent


STAGES = ((0.02, 0.4), (0.005, 0.7), (0.001, 0.9), (0.0, 1.0))  # least size over the peak load, effort spent by its end
MOST = 4000  # buffers that are arranged; the matrix that says which of them meet takes the square of that in bytes
CHUNKS = 40  # of a stage, each at one temperature
HOT, COLD = 0.006, 0.0002  # temperatures over the peak load, at the beginning and the end of a stage
MOVES = 4096  # random moves drawn at a time


@dataclass(slots=True)
class OrderWalk(Walk):
    """A walk through orders; not for problems where something is fixed."""

    rng: np.random.Generator
    order: I64 = field(default_factory=lambda: np.empty(0, np.int64))  # ids that are arranged so far

    def run(self, effort: int) -> Placement:
        """Go through the stages; return the lowest placement."""
        size = self.problem.trace.buffers.size[self.problem.free]
        for least, share in STAGES:
            joins = min(int(np.count_nonzero(size >= least * self.problem.trace.peak_live_bytes)), MOST)
            if joins > len(self.order) and self.going(effort * share):
                self._stage(self.problem.free[len(self.order) : joins], int(effort * share))
        return self.best

    def _stage(self, new: I64, most: int) -> None:
        """Let buffers join, and anneal."""
        b, ids = self.problem.trace.buffers, np.concatenate([self.order, new])
        size, meet = self.problem.units[ids], meetings(b.start[ids], b.end[ids], self.problem.trace.n)
        now = np.arange(len(ids)) if len(self.order) else self._greedy(ids, meet)
        floor = self.problem.peak_units(ids)
        best, lowest, begin = np.stack([now, now]), 2**62, self.work
        while self.going(most) and lowest > floor:
            heat = HOT * (COLD / HOT) ** ((self.work - begin) / (most - begin)) * floor
            share = min((most - begin) // CHUNKS + 1, most - self.work)
            draws, here = self.rng.random((MOVES, DRAWS)), np.empty_like(best)
            reached, spent = anneal(size, meet, now, draws, heat, share, floor, here)
            self.work += spent
            if reached < lowest:
                best, lowest = here, reached
                if self.problem.base + (reached - 1) * self.problem.alignment < self.best.height:
                    self.keep(self.problem.around(ids, best[1]))
                    self.work += REST * (len(self.problem.free) - len(ids))
            self.tell("annealing")
        self.order = ids[best[0]]

    def _greedy(self, ids: I64, meet: NDArray[np.uint8]) -> I64:
        """Return the best of the greedy orders, by first fit."""
        first, last, sections = self.problem.sections(ids)
        size, scratch = self.problem.units[ids], np.empty((3, len(ids)), np.int64)
        best, lowest = np.arange(len(ids)), 2**62
        for key in ORDERS.values():
            order = np.argsort(-key(size, first, last, sections), kind="stable")
            height, spent = refit(size, meet, order, 0, np.inf, *scratch)
            self.work += spent
            if height < lowest:
                best, lowest = order, height
        return best
