"""Placement below a ceiling by ejection; compiled loops over bare arrays.

Buffers are numbered by weight, the greatest first. The first that is out goes in where what lies in its way weighs
least, and that is out then::

    address ^  ------------------------ ceiling        ------------------------
            |     +---+                                   +---+
            |     | x |  +-----+                          | x |+------+
            |     +---+  |  y  |         u goes in:       +---+|  u   |     y is out, and goes in elsewhere:
            |            +-----+                               |      |     below, or in place of what weighs less
            |      |   z    |                             +----+--+   +
            +--------------------------> time

What went in by force weighs more from then on, so the same buffers do not turn each other out for ever. A buffer for
which there is room takes the hole that fits best, at its lower or upper end by chance: stacks grow from both ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumem.arcs import meet
from gpumem.base.jit import inner, jit
from gpumem.trace import F64, I64

OUT = -1
STUCK = 2**48  # what an obstacle weighs: more than all else together
FAR = 2**62
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
