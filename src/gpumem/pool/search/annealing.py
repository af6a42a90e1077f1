"""Local search: simulated annealing over the order in which first fit takes the buffers, large ones first.

The few large buffers decide on the height, so they are arranged first, alone; then more buffers join them, at the
end of the order found so far. What is not arranged yet goes where best fit or first fit puts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumem.base.jit import assign, inner, jit
from gpumem.pool.search._problem import REST, Walk
from gpumem.pool.search._skyline import vector
from gpumem.pool.search.greedy import ORDERS
from gpumem.trace import F64, I64
from gpumem.trace.lifetimes import meet
from gpumem.trace.placement import Placement

# Random numbers of a move, each from [0, 1): whether a worse order is accepted; whether what is picked reaches the top
# or is anything above the target; which of these; how far down from it; whether to swap or to move; and where to.
ACCEPT, OVER, WHICH, DEEP, SWAP, WHERE = range(6)
DRAWS = 6
ORDER, OFFSET = range(2)  # rows of the best placement
# What a byte above the target costs, in bytes of height: a slope where the height has none. Not tuned.
OVERFLOW = 0.02
# A walk down the stack goes on with probability 0.7. Not tuned.
DEPTH = 1 / math.log(0.7)
# Passes over all buffers that a move takes besides first fit, as work. Not tuned.
PASSES = 6


class Packing(NamedTuple):
    """A placement by first fit in some order."""

    order: I64  # buffers
    offset: I64  # of each buffer
    top: I64  # of each buffer: where it ends
    stack: I64  # the buffers that are placed, by offset


@jit
def meetings(start: I64, end: I64, steps: int) -> NDArray[np.uint8]:
    """Return the matrix that says which arcs meet."""
    meets = np.zeros((len(start), len(start)), np.uint8)
    for one in range(len(start)):
        for other in range(one):
            if meet(start[one], end[one], start[other], end[other], steps):
                meets[one, other] = meets[other, one] = 1
    return meets


@jit
def refit(size: I64, meets: NDArray[np.uint8], packing: Packing, first: int, limit: float) -> tuple[int, int]:
    """Place `order[first:]` by first fit; return the height and the work, in placed buffers looked at.

    What comes before is placed already, and is `stack[:first]`. Gives up above `limit`, the rest unplaced.
    """
    order, offset, top, stack = packing
    height, spent = 0, 0
    for place in range(first):
        height = max(height, top[order[place]])
    for count in range(first, len(order)):
        buffer = order[count]
        row, lowest, place = meets[buffer], 0, 0
        while place < count:  # up, until a hole below a buffer that it meets is large enough
            other = stack[place]
            if row[other]:
                if offset[other] - lowest >= size[buffer]:
                    break
                lowest = max(lowest, top[other])
            place += 1
        spent += count
        offset[buffer], top[buffer] = lowest, lowest + size[buffer]
        height = max(height, top[buffer])
        if height > limit:
            break
        place = count
        while place > 0 and offset[stack[place - 1]] > lowest:
            stack[place] = stack[place - 1]
            place -= 1
        stack[place] = buffer
    return height, spent


@inner
def _bytes_above(packing: Packing, target: int) -> float:
    """Return the bytes of buffers above the target."""
    total = 0.0
    for buffer in range(len(packing.top)):
        if packing.top[buffer] > target:
            total += packing.top[buffer] - max(target, packing.offset[buffer])
    return total


@inner
def _pick(meets: NDArray[np.uint8], packing: Packing, over: int, depth: float, draw: float) -> int:
    """Return a buffer that reaches above `over`, or one `depth` places down the stack that holds it up."""
    offset, top = packing.offset, packing.top
    candidates, count = vector(len(top)), 0
    for buffer in range(len(top)):
        if top[buffer] > over:
            candidates[count] = buffer
            count += 1
    while True:
        draw *= count  # the digits of one random number choose at every place of the way down
        place = int(draw)
        buffer, draw = int(candidates[place]), draw - place
        if depth < 1 or offset[buffer] == 0:
            return buffer
        depth, count = depth - 1, 0
        for other in range(len(top)):
            if meets[buffer, other] and top[other] == offset[buffer]:
                candidates[count] = other
                count += 1


@inner
def _reorder(order: I64, new: I64, here: int, there: int, swap: bool) -> None:
    """Write `order` to `new`: the entries at two places swapped, or the one `here` moved to before `there`."""
    assign(new, order)
    new[there] = order[here]
    if swap:
        new[here] = order[there]
    else:
        assign(new[there + 1 :], order[there:here])


@inner
def _copy_unmoved(now: Packing, candidate: Packing, rank: I64, first: int) -> None:
    """Copy what is before place `first` of the order, which a move leaves where it lies; its stack is by offset."""
    count = 0
    for buffer in now.stack:
        if rank[buffer] < first:
            candidate.stack[count] = buffer
            count += 1
    assign(candidate.offset, now.offset)
    assign(candidate.top, now.top)


@jit
def anneal(  # noqa: PLR0917  compiled: no keyword-only parameters
    size: I64, meets: NDArray[np.uint8], order: I64, draws: F64, heat: float, effort: int, target: int, best: I64
) -> tuple[int, int]:
    """Walk from `order` at one temperature; return the least height met and the work done.

    `order` becomes the last order, `best` the order and the offsets of the least height. A move for each row of
    `draws`; stops at the target, or when draws or effort are used up.
    """
    count = len(order)
    now = Packing(order, vector(count), vector(count), vector(count))
    candidate = Packing(vector(count), vector(count), vector(count), vector(count))
    height, spent = refit(size, meets, now, first=0, limit=np.inf)
    cost, least = height + OVERFLOW * _bytes_above(now, target), height
    best[ORDER], best[OFFSET] = order, now.offset
    rank = vector(count)
    rank[order] = np.arange(count)
    for draw in draws:
        if least <= target or spent >= effort:
            break
        over = height - 1 if draw[OVER] < 0.5 else target
        depth = math.log(1 - draw[DEEP]) * DEPTH
        here = rank[_pick(meets, now, over, depth=depth, draw=draw[WHICH])]
        swap = draw[SWAP] < 0.5
        there = int(draw[WHERE] * (count if swap else here))
        spent += PASSES * count
        if here == there:
            continue  # the order would stay as it is; the draw has been counted as work
        _reorder(now.order, candidate.order, here, there, swap=swap)
        first = min(here, there)
        _copy_unmoved(now, candidate, rank, first)
        # Metropolis: exp((cost - price) / heat) >= 1 - draw, solved for the price, so that first fit can stop above it.
        limit = cost - heat * math.log(1 - draw[ACCEPT])
        reached, looked_at = refit(size, meets, candidate, first=first, limit=limit)
        spent += looked_at
        if reached > limit:
            continue
        price = reached + OVERFLOW * _bytes_above(candidate, target)
        if price > limit:
            continue
        cost, height = price, reached
        now, candidate = candidate, now
        rank[now.order] = np.arange(count)
        if height < least:
            least = height
            best[ORDER], best[OFFSET] = now.order, now.offset
    assign(order, now.order)
    return least, spent


# Stages, none of them tuned: the least size of what is arranged, over the peak live bytes, and the effort spent by its
# end. The few large buffers decide on the height, so they come first.
STAGES = ((0.02, 0.4), (0.005, 0.7), (0.001, 0.9), (0.0, 1.0))
# Buffers that are arranged at most, by memory: the matrix that says which of them meet takes the square in bytes.
MOST = 4000
CHUNKS = 40  # of a stage, each at one temperature. Not tuned
HOT, COLD = 0.006, 0.0002  # temperatures over the peak live bytes, at the beginning and the end of a stage. Not tuned
MOVES = 4096  # random moves drawn at a time. Not tuned


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
        """Let buffers join, and anneal until the effort `most` is spent."""
        buffers, ids = self.problem.trace.buffers, np.concatenate([self.order, new])
        size, meets = self.problem.units[ids], meetings(buffers.start[ids], buffers.end[ids], self.problem.trace.n)
        order = np.arange(len(ids)) if len(self.order) else self._greedy(ids, meets)
        own_peak = self.problem.peak_units(ids)
        best, lowest, begin = np.stack([order, order]), 2**62, self.work
        while self.going(most) and lowest > own_peak:
            heat = HOT * (COLD / HOT) ** ((self.work - begin) / (most - begin)) * own_peak
            effort = min((most - begin) // CHUNKS + 1, most - self.work)
            draws, chunk_best = self.rng.random((MOVES, DRAWS)), np.empty_like(best)
            reached, spent = anneal(
                size, meets, order, draws, heat=heat, effort=effort, target=own_peak, best=chunk_best
            )
            self.work += spent
            if reached < lowest:
                best, lowest = chunk_best, reached
                if self.problem.base + (reached - 1) * self.problem.alignment < self.best.height:
                    self.keep(self.problem.around(ids, best[OFFSET]))
                    self.work += REST * (len(self.problem.free) - len(ids))
            self.tell("annealing")
        self.order = ids[best[ORDER]]

    def _greedy(self, ids: I64, meets: NDArray[np.uint8]) -> I64:
        """Return the best of the greedy orders, by first fit."""
        first, last, sections = self.problem.sections(ids)
        size, scratch = self.problem.units[ids], np.empty((3, len(ids)), np.int64)
        best, lowest = np.arange(len(ids)), 2**62
        for key in ORDERS.values():
            order = np.argsort(-key(size, first, last, sections), kind="stable")
            height, spent = refit(size, meets, Packing(order, *scratch), first=0, limit=np.inf)
            self.work += spent
            if height < lowest:
                best, lowest = order, height
        return best
