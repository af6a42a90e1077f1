"""States of the beam search: skylines, what they still have to place, and what that must lose; compiled loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import assign, inner
from gpumem.pool.search._packing import FAR, PackingInstance, add
from gpumem.trace import I64
from gpumem.trace.lifetimes import meet

TRIES = 20  # buffers that a state tries, those that give up least first; 10 and 100 found as much
POWER = 4  # of a section's loss: of 1 (the sum), 2, 4 and 8 the one that solved most of ten perfect instances
GIVE_UP = -1
PRIME = 2**31 - 1  # two states of a round have one hash so seldom that nothing is lost by it


class Skylines(NamedTuple):
    """A row for each state."""

    top: I64  # by section
    left: I64  # bytes that are not placed, by section
    offset: I64  # by buffer that is placed
    least: I64  # offset that the skyline allows, by buffer
    order: I64  # buffers, those that are not placed first, by descending least offset
    many: I64  # of those
    mark: I64  # a hash of skyline and what is placed


class Goal(NamedTuple):
    """What all states have in common, and room to work in."""

    load: I64  # by section
    ceiling: int  # the highest of all
    pile: I64  # scratch, by section
    end: I64
    seen: I64  # hashes of the states that a round came to


@inner
def fits(p: PackingInstance, s: Skylines, k: int, j: int, ceiling: int) -> bool:
    """Whether a buffer, where it can go lowest, leaves enough for the others of its sections."""
    n, at = p.sections, s.least[k, j]
    for x in range(p.first[j], p.last[j]):
        if at + s.left[k, x - n if x >= n else x] > ceiling:
            return False
    return bool(at + p.size[j] <= p.ceiling[j])


@inner
def look(p: PackingInstance, s: Skylines, k: int, ceiling: int, fitting: I64, cross: I64) -> int:
    """Count the buffers that fit into each section, at its skyline, and those that cross the boundary before it.

    Returns over how many sections the buffers extend, together.
    """
    n, area = p.sections, 0
    fitting[:], cross[:] = 0, 0
    for j in s.order[k, : s.many[k]]:
        area += p.last[j] - p.first[j]
        add(cross, p.first[j] + 1, p.last[j], 1)
        if fits(p, s, k, j, ceiling):
            for x in range(p.first[j], p.last[j]):
                t = x - n if x >= n else x
                fitting[t] += s.top[k, t] == s.least[k, j]
    return int(area)


@inner
def stretch(s: Skylines, k: int, t: int, cross: I64) -> tuple[int, int, int]:
    """Return the arc around a section that is as high as it, and the height of the lower wall beside it.

    Nothing rests on the other side of a boundary that nothing crosses, so that is a wall of any height.
    """
    n, level, first, last = s.top.shape[1], s.top[k, t], t, t + 1
    while last - first < n and cross[first % n] and s.top[k, (first - 1) % n] == level:
        first -= 1
    while last - first < n and cross[last % n] and s.top[k, last % n] == level:
        last += 1
    wall = FAR
    if last - first < n and cross[first % n]:
        wall = s.top[k, (first - 1) % n]
    if last - first < n and cross[last % n]:
        wall = min(wall, s.top[k, last % n])
    return first % n, first % n + last - first, wall


@inner
def valley(s: Skylines, k: int, fitting: I64, cross: I64) -> int:
    """Return the valley's section that the fewest buffers fit into, of those the lowest."""
    best = -1
    for t in range(s.top.shape[1]):
        if s.left[k, t] == 0 or (best >= 0 and fitting[t] > fitting[best]):
            continue
        lower = best < 0 or fitting[t] < fitting[best] or s.top[k, t] < s.top[k, best]
        if lower and stretch(s, k, t, cross)[2] > s.top[k, t]:
            best = t
    return best


@inner
def _waste(p: PackingInstance, s: Skylines, k: int, j: int) -> int:
    """Return what a buffer gives up below it."""
    n, found = p.sections, 0
    for x in range(p.first[j], p.last[j]):
        found += s.least[k, j] - s.top[k, x - n if x >= n else x]
    return found


@inner
def to_try(p: PackingInstance, s: Skylines, k: int, first: int, last: int, ceiling: int) -> I64:
    """Return the buffers to try in an arc, what gives up least first, and of these the largest area."""
    found, count = np.empty((3, s.many[k]), np.int64), 0
    for j in s.order[k, : s.many[k]]:
        if meet(first, last, p.first[j], p.last[j], p.sections) and fits(p, s, k, j, ceiling):
            found[0, count], found[1, count] = j, _waste(p, s, k, j)
            found[2, count] = -p.size[j] * (p.last[j] - p.first[j])
            count += 1
    by = np.argsort(found[2, :count], kind="mergesort")
    by = by[np.argsort(found[1, :count][by], kind="mergesort")]
    return found[0, :count][by[:TRIES]]


@inner
def _mixed(mark: int, k: int, value: int) -> int:
    """Return the hash of a state in which `value` is added to some entry `k`, whose own number looks random."""
    return (mark + value % PRIME * ((k + 1) * 48271 % PRIME * 16807 % PRIME)) % PRIME


@inner
def copy(s: Skylines, k: int, o: Skylines, to: int) -> None:
    """Copy a state to a row of a table."""
    assign(o.top[to], s.top[k])
    assign(o.left[to], s.left[k])
    assign(o.offset[to], s.offset[k])
    assign(o.least[to], s.least[k])
    assign(o.order[to], s.order[k])
    o.many[to], o.mark[to] = s.many[k], s.mark[k]


@inner
def lift(p: PackingInstance, s: Skylines, k: int, j: int, first: int, last: int, top: int) -> None:
    """Raise the skyline to `top` in an arc, by a buffer or, where `j` is `GIVE_UP`, by nothing."""
    n, size = p.sections, p.size[j] if j != GIVE_UP else 0
    for x in range(first, last):
        t = x - n if x >= n else x
        s.mark[k] = _mixed(s.mark[k], t, top - s.top[k, t])
        s.top[k, t] = top
        s.left[k, t] -= size
    if j != GIVE_UP:
        s.offset[k, j] = top - size
        s.mark[k] = _mixed(s.mark[k], n + j, 1)
    order, high, level, low = np.empty((3, s.many[k]), np.int64), 0, 0, 0
    for i in s.order[k, : s.many[k]]:  # what is lifted is level then, so that descending order takes no sort
        if i == j:
            continue
        if s.least[k, i] < top and meet(first, last, p.first[i], p.last[i], n):
            s.least[k, i] = top
            order[1, level] = i
            level += 1
        elif s.least[k, i] >= top:
            order[0, high] = i
            high += 1
        else:
            order[2, low] = i
            low += 1
    assign(s.order[k], order[0, :high])
    assign(s.order[k, high:], order[1, :level])
    assign(s.order[k, high + level :], order[2, :low])
    s.many[k] = high + level + low


@inner
def loss(p: PackingInstance, s: Skylines, k: int, goal: Goal) -> float:
    """Return what the sections must lose, in parts of the ceiling, each to the power; -1 where something cannot fit."""
    n, pile, end = p.sections, goal.pile, goal.end
    pile[:], end[:] = 0, s.top[k]
    for j in s.order[k, : s.many[k]]:
        at, size = s.least[k, j], p.size[j]
        if at + size > p.ceiling[j]:
            return -1.0
        for x in range(p.first[j], p.last[j]):
            t = x - n if x >= n else x
            pile[t] += size
            end[t] = max(end[t], at + pile[t])
    found = 0.0
    for t in range(n):
        if end[t] > goal.ceiling:
            return -1.0
        found += (max(end[t] - goal.load[t], 0) / goal.ceiling) ** POWER
    return found


@inner
def rest(p: PackingInstance, s: Skylines, k: int, j: int) -> tuple[int, int, int]:
    """Return the arc of a buffer, and where it ends if it rests on the skyline."""
    return p.first[j], p.last[j], s.least[k, j] + p.size[j]


@inner
def row(count: int) -> I64:
    """Make room; a row of a table would be another kind of array."""
    return np.empty(count, np.int64)
