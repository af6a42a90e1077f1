"""States of the beam search: skylines, what they still have to place, and what that must lose; compiled loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import assign, inner
from gpumem.pool.search._packing import FAR, PackingInstance, add
from gpumem.trace import I64
from gpumem.trace.lifetimes import meet

TRIES = 20  # buffers that a state tries, those that give up least first; 10 and 100 found as much
# The empty bytes of a section count to this power. Of 1 (the sum), 2, 4 and 8 the one that solved most of ten perfect
# instances.
POWER = 4
GIVE_UP = -1  # instead of a buffer: a valley is given up
# Hashes are modulo a prime: two states of a round have the same one so seldom that nothing is lost by it.
PRIME = 2**31 - 1


class Skylines(NamedTuple):
    """States, a row each."""

    top: I64  # by section: the skyline
    unplaced: I64  # by section: bytes that are not placed
    offset: I64  # by buffer that is placed
    min_offset: I64  # by buffer: the lowest that the skyline allows
    order: I64  # buffers, those that are not placed first, by descending lowest offset
    waiting: I64  # how many are not placed
    hash: I64  # of skyline and what is placed


class Arc(NamedTuple):
    """Sections `[first, last)` of the circle, and where they end after a step, or the wall beside them."""

    first: int
    last: int
    top: int


class Goal(NamedTuple):
    """What all states have in common, and scratch space."""

    live: I64  # by section: bytes of all its buffers
    ceiling: int  # the highest of all
    pile: I64  # scratch, by section
    end: I64  # scratch, by section
    seen: I64  # hashes of the states that a round came to


@inner
def fits(instance: PackingInstance, skylines: Skylines, state: int, buffer: int, ceiling: int) -> bool:
    """Whether a buffer, where it can go lowest, leaves enough for the others of its sections."""
    sections, offset = instance.sections, skylines.min_offset[state, buffer]
    for unwrapped in range(instance.first[buffer], instance.last[buffer]):
        section = unwrapped - sections if unwrapped >= sections else unwrapped
        if offset + skylines.unplaced[state, section] > ceiling:
            return False
    return bool(offset + instance.size[buffer] <= instance.ceiling[buffer])


@inner
def look(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, skylines: Skylines, state: int, ceiling: int, fitting: I64, cross: I64
) -> int:
    """Count the buffers that fit into each section, at its skyline, and those that cross the boundary before it.

    Returns over how many sections the buffers extend, together.
    """
    sections, area = instance.sections, 0
    fitting[:], cross[:] = 0, 0
    for buffer in skylines.order[state, : skylines.waiting[state]]:
        area += instance.last[buffer] - instance.first[buffer]
        add(cross, instance.first[buffer] + 1, instance.last[buffer], 1)
        if fits(instance, skylines, state, buffer, ceiling=ceiling):
            for unwrapped in range(instance.first[buffer], instance.last[buffer]):
                section = unwrapped - sections if unwrapped >= sections else unwrapped
                fitting[section] += skylines.top[state, section] == skylines.min_offset[state, buffer]
    return int(area)


@inner
def stretch(skylines: Skylines, state: int, section: int, cross: I64) -> Arc:
    """Return the arc around a section that is as high as it, and the height of the lower wall beside it.

    Nothing rests on the other side of a boundary that nothing crosses, so that is a wall of any height.
    """
    sections, level, first, last = skylines.top.shape[1], skylines.top[state, section], section, section + 1
    while last - first < sections and cross[first % sections] and skylines.top[state, (first - 1) % sections] == level:
        first -= 1
    while last - first < sections and cross[last % sections] and skylines.top[state, last % sections] == level:
        last += 1
    wall = FAR
    if last - first < sections and cross[first % sections]:
        wall = skylines.top[state, (first - 1) % sections]
    if last - first < sections and cross[last % sections]:
        wall = min(wall, skylines.top[state, last % sections])
    return Arc(first % sections, first % sections + last - first, wall)


@inner
def valley(skylines: Skylines, state: int, fitting: I64, cross: I64) -> int:
    """Return the valley's section that the fewest buffers fit into, of those the lowest."""
    best = -1
    for section in range(skylines.top.shape[1]):
        if skylines.unplaced[state, section] == 0 or (best >= 0 and fitting[section] > fitting[best]):
            continue
        lower = best < 0 or fitting[section] < fitting[best] or skylines.top[state, section] < skylines.top[state, best]
        if lower and stretch(skylines, state, section, cross).top > skylines.top[state, section]:
            best = section
    return best


@inner
def _waste(instance: PackingInstance, skylines: Skylines, state: int, buffer: int) -> int:
    """Return what a buffer gives up below it."""
    sections, waste = instance.sections, 0
    for unwrapped in range(instance.first[buffer], instance.last[buffer]):
        section = unwrapped - sections if unwrapped >= sections else unwrapped
        waste += skylines.min_offset[state, buffer] - skylines.top[state, section]
    return waste


@inner
def to_try(instance: PackingInstance, skylines: Skylines, state: int, arc: Arc, ceiling: int) -> I64:
    """Return the buffers to try in an arc, what gives up least first, and of these the largest area."""
    most, count = skylines.waiting[state], 0
    buffers, waste, area = vector(most), vector(most), vector(most)
    for buffer in skylines.order[state, :most]:
        first, last = instance.first[buffer], instance.last[buffer]
        if not meet(arc.first, arc.last, first, last, instance.sections):
            continue
        if fits(instance, skylines, state, buffer, ceiling=ceiling):
            buffers[count], waste[count] = buffer, _waste(instance, skylines, state, buffer)
            area[count] = instance.size[buffer] * (last - first)
            count += 1
    by = np.argsort(-area[:count], kind="mergesort")
    by = by[np.argsort(waste[:count][by], kind="mergesort")]
    return buffers[:count][by[:TRIES]]


@inner
def _mixed(hash_: int, entry: int, value: int) -> int:
    """Return the hash of a state in which `value` is added to an entry, whose own number looks random."""
    return (hash_ + value % PRIME * ((entry + 1) * 48271 % PRIME * 16807 % PRIME)) % PRIME


@inner
def copy(skylines: Skylines, state: int, other: Skylines, to: int) -> None:
    """Copy a state to a row of a table."""
    assign(other.top[to], skylines.top[state])
    assign(other.unplaced[to], skylines.unplaced[state])
    assign(other.offset[to], skylines.offset[state])
    assign(other.min_offset[to], skylines.min_offset[state])
    assign(other.order[to], skylines.order[state])
    other.waiting[to], other.hash[to] = skylines.waiting[state], skylines.hash[state]


@inner
def lift(instance: PackingInstance, skylines: Skylines, state: int, buffer: int, arc: Arc) -> None:
    """Raise the skyline in an arc to its top, by a buffer or, where `buffer` is `GIVE_UP`, by nothing."""
    sections, size = instance.sections, instance.size[buffer] if buffer != GIVE_UP else 0
    for unwrapped in range(arc.first, arc.last):
        section = unwrapped - sections if unwrapped >= sections else unwrapped
        skylines.hash[state] = _mixed(skylines.hash[state], section, arc.top - skylines.top[state, section])
        skylines.top[state, section] = arc.top
        skylines.unplaced[state, section] -= size
    if buffer != GIVE_UP:
        skylines.offset[state, buffer] = arc.top - size
        skylines.hash[state] = _mixed(skylines.hash[state], sections + buffer, 1)
    _sort_waiting(instance, skylines, state, buffer, arc=arc)


@inner
def _sort_waiting(instance: PackingInstance, skylines: Skylines, state: int, placed: int, arc: Arc) -> None:
    """Raise what meets an arc to its top, and sort what waits by descending lowest offset.

    What is raised is level then, so it goes between what was as high and what is lower: that takes no sort.
    """
    count = skylines.waiting[state]
    higher, raised, lower = vector(count), vector(count), vector(count)
    high, level, low = 0, 0, 0
    for buffer in skylines.order[state, :count]:
        if buffer == placed:
            continue
        first, last = instance.first[buffer], instance.last[buffer]
        is_lower = skylines.min_offset[state, buffer] < arc.top
        if is_lower and meet(arc.first, arc.last, first, last, instance.sections):
            skylines.min_offset[state, buffer] = arc.top
            raised[level] = buffer
            level += 1
        elif not is_lower:
            higher[high] = buffer
            high += 1
        else:
            lower[low] = buffer
            low += 1
    assign(skylines.order[state], higher[:high])
    assign(skylines.order[state, high:], raised[:level])
    assign(skylines.order[state, high + level :], lower[:low])
    skylines.waiting[state] = high + level + low


@inner
def loss(instance: PackingInstance, skylines: Skylines, state: int, goal: Goal) -> float:
    """Return the sum over sections of (bytes that must stay empty / ceiling) ** `POWER`; -1 where one cannot fit.

    A section's empty bytes: a lower bound of the top that it will have, less the bytes of all its buffers. What cannot
    fit is a buffer below its own ceiling, or a section below the highest one.
    """
    sections, pile, end = instance.sections, goal.pile, goal.end
    pile[:], end[:] = 0, skylines.top[state]
    for buffer in skylines.order[state, : skylines.waiting[state]]:
        offset, size = skylines.min_offset[state, buffer], instance.size[buffer]
        if offset + size > instance.ceiling[buffer]:
            return -1.0
        for unwrapped in range(instance.first[buffer], instance.last[buffer]):
            section = unwrapped - sections if unwrapped >= sections else unwrapped
            pile[section] += size
            end[section] = max(end[section], offset + pile[section])
    total = 0.0
    for section in range(sections):
        if end[section] > goal.ceiling:
            return -1.0
        total += (max(end[section] - goal.live[section], 0) / goal.ceiling) ** POWER
    return total


@inner
def resting(instance: PackingInstance, skylines: Skylines, state: int, buffer: int) -> Arc:
    """Return the arc of a buffer that rests on the skyline."""
    top = skylines.min_offset[state, buffer] + instance.size[buffer]
    return Arc(instance.first[buffer], instance.last[buffer], top)


@inner
def vector(count: int) -> I64:
    """Return an uninitialised array; a row of a table would be another type to Numba."""
    return np.empty(count, np.int64)
