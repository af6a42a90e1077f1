"""An instance of the depth-first search, its state, and the bounds that tell when it cannot go on; compiled loops.

Time is cut into sections: nothing begins or ends inside one. What cannot fit is pruned: in a section, all that must
lie above some offset is more than there is space for below the ceiling.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumem.base.jit import inner
from gpumem.pool._interval_index import FAR as FAR
from gpumem.trace import I64
from gpumem.trace.lifetimes import meet

# Work is counted in additions to piles, which run over neighbouring sections; what else the search does takes as long
# as so many of these. The ratios decide on nothing but when it gives up, and are not tuned any further.
UNIT = 8  # additions to a unit of the work that is reported
LOOK = 4 * UNIT  # additions for each buffer of a part, at each step
OPTION = UNIT  # additions for each section of a buffer whose options are counted

# The pruning rules. None of them loses the last placement, alone or with any of the others: tests run all 128
# combinations against brute force, and show that each saves work beside the others. That what is left must fit above
# the last offset is no rule, as it saves nothing: PILE and SUPPORT find that earlier.

# In each section, what must lie above an offset has to fit between that and the ceiling. Buffers of one section cannot
# overlap, so their sizes add up. Asked where a bound rose: elsewhere it held before.
PILE = 1
# A buffer that may not lie at its least offset (it is below the floor, or was refused there) rests on one that is still
# to be placed, as every buffer of a canonical placement lies at the bottom or on another. So the lowest top of those
# that it meets bounds it.
SUPPORT = 2
# Where a buffer was refused, PILE is asked at once, with the bound that rose by that. It would be asked at the next
# buffer that is placed, and say the same of what is still to be placed.
REFUSED = 4
# What is interchangeable with a refused buffer, and could go as low, is refused with it: swapping the two turns a
# placement with the one there into a placement with the other there.
ALIKE = 8
# No buffer goes where another would fit wholly below it: all that is left lies at that offset or higher, so the other
# one could be let down below it, and a placement with it there belongs to another choice, refused or still to come.
BENEATH = 16
# Where a buffer raises no other one's least offset, a failure after it is a failure of the frame: what failed did not
# depend on that buffer, so it fails beside any other choice, too.
FREE = 32
# Parts that share no section are searched one after the other: offsets in one do not depend on those in another. Where
# one has no placement the whole has none, so the search goes back to the frame that fell apart, past all the others.
PARTS = 64
ALL = 127


class PackingInstance(NamedTuple):
    """Buffers to place over sections `[first, last)` of a circle, and obstacles that lie already, a row each.

    Sizes and offsets are in units of the alignment. `last > sections` wraps.
    """

    size: I64
    first: I64
    last: I64
    ceiling: I64  # the highest offset at which the buffer may end
    interchangeable: I64  # the first buffer that has the same size, sections and ceiling
    obstacle_size: I64  # obstacles by descending offset
    obstacle_first: I64
    obstacle_last: I64
    obstacle_offset: I64
    sections: int


class PackingState(NamedTuple):
    """Of the search: a row for each buffer, for each section, and for the boundary before each section."""

    min_offset: I64  # of a buffer: the lowest offset that what is placed leaves to it
    refused_below: I64  # of a buffer: below this offset it led nowhere
    rank: I64  # of a buffer: its place in the order of its part
    bound: I64  # of a buffer: no placement has it below this offset
    items: I64  # a permutation of the buffers; a part is a stretch of it, what is placed at its end
    unplaced: I64  # of a section: size of all its buffers that are not placed
    skyline: I64  # of a section: where what is placed ends
    total: I64  # of a section, scratch: a pile's size, or options
    part_number: I64  # of a section
    crossing: I64  # of a boundary: buffers that are not placed and live on both sides of it
    covered: I64  # what the skyline was below each buffer that is placed, section by section
    spent: I64  # one number, the work
    slack: I64  # of a section: bounds may rise by this much, or more, before its pile is too high; -1 where unknown
    tight_before: I64  # of a section, scratch: how many tight sections come before it
    tight: I64  # scratch: the tight sections, those that have to be piled anew
    pile_end: I64  # scratch: where the piles of the tight sections end


class Window(NamedTuple):
    """Sections `[low, high)` in which a bound rose; empty where `low >= high`."""

    low: int
    high: int


@inner
def spend(state: PackingState, work: int) -> int:
    """Count work; return all that is spent."""
    state.spent[0] += work
    return int(state.spent[0])


@inner
def touch(instance: PackingInstance, one: int, other: int) -> bool:
    return bool(
        meet(instance.first[one], instance.last[one], instance.first[other], instance.last[other], instance.sections)
    )


@inner
def clear(instance: PackingInstance, buffer: int, offset: int) -> int:
    """Return the lowest offset from `offset` on where no obstacle is in the buffer's way."""
    # By ascending offset: what was passed cannot be met again further up.
    for row in range(len(instance.obstacle_size) - 1, -1, -1):
        low, top = instance.obstacle_offset[row], instance.obstacle_offset[row] + instance.obstacle_size[row]
        if low < offset + instance.size[buffer] and offset < top:
            first, last = instance.obstacle_first[row], instance.obstacle_last[row]
            if meet(first, last, instance.first[buffer], instance.last[buffer], instance.sections):
                offset = top
    return offset


@inner
def add(row: I64, first: int, last: int, change: int) -> bool:
    """Change the entries of an arc; return whether one of them is 0 now."""
    count, has_zero = len(row), False
    if first >= count:
        first, last = first - count, last - count
    for section in range(first, min(last, count)):
        row[section] += change
        has_zero = has_zero or bool(row[section] == 0)
    for section in range(last - count):
        row[section] += change
        has_zero = has_zero or bool(row[section] == 0)
    return has_zero


@inner
def most(row: I64, first: int, last: int) -> int:
    """Return the largest entry of an arc."""
    count, largest = len(row), 0
    for section in range(first, min(last, count)):
        largest = max(largest, row[section])
    for section in range(last - count):
        largest = max(largest, row[section])
    return largest


@inner
def _support(instance: PackingInstance, state: PackingState, part: I64, buffer: int, floor: int) -> int:
    """Return the lowest offset where a buffer could lie on another one of the part, none of which goes below `floor`.

    It lies on an obstacle only where another buffer keeps it from lying below that.
    """
    lowest = FAR
    for other in part:
        top = max(state.min_offset[other], floor) + instance.size[other]
        if top < lowest and other != buffer and touch(instance, other, buffer):
            lowest = top
    return lowest


@inner
def bind(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, state: PackingState, part: I64, floor: int, rules: int, window: Window
) -> tuple[Window, int]:
    """Bound each buffer of a part from below; sort the part by descending bound.

    Return the window widened by the sections where a bound rose, and the largest rise. A buffer goes where it can,
    or, if that is below the floor or was refused, on something that is placed later.
    """
    rise = 0
    for buffer in part:
        before, state.bound[buffer] = state.bound[buffer], state.min_offset[buffer]
        may_not = state.min_offset[buffer] < floor or state.min_offset[buffer] < state.refused_below[buffer]
        if rules & SUPPORT and may_not:
            state.bound[buffer] = _support(instance, state, part, buffer, floor=floor)
            window = widen(instance, window, buffer)
        rise = max(rise, state.bound[buffer] - before)
    # By insertion: hardly anything moved since the last time, so this is linear.
    for place in range(1, len(part)):
        buffer = part[place]
        while place > 0 and state.bound[part[place - 1]] < state.bound[buffer]:
            part[place] = part[place - 1]
            place -= 1
        part[place] = buffer
    return window, rise


@inner
def _tight(instance: PackingInstance, state: PackingState, window: Window, rise: int) -> int:
    """List the sections of a window where a rise of the bounds may be too much; return how many there are.

    If no bound rises by more than that, no pile ends higher than before by more than that:
    so where the slack was larger the pile still fits, and is not looked at.
    """
    count = 0
    for section in range(window.low, window.high):
        state.tight_before[section] = count
        state.slack[section] -= rise
        # Obstacles do not rise with the bounds: one that a bound passes leaves the pile, so slack says nothing there.
        if state.slack[section] < 0 or len(instance.obstacle_size) > 0:
            state.tight[count], state.total[count], state.pile_end[count] = section, 0, 0
            count += 1
    state.tight_before[window.high] = count
    return count


@inner
def _pile(state: PackingState, size: int, bound: int, since: int, until: int) -> int:
    """Add a buffer to the piles of the tight sections `[since, until)`; return where the highest of them ends."""
    worst = 0
    spend(state, until - since)
    for place in range(since, until):
        state.total[place] += size
        state.pile_end[place] = max(state.pile_end[place], state.total[place] + bound)
        worst = max(worst, state.pile_end[place])
    return worst


@inner
def _pile_obstacles(instance: PackingInstance, state: PackingState, window: Window, row: int, bound: int) -> int:
    """Add the obstacles from `row` on that lie above a bound to the piles; return the next row."""
    sections = instance.sections
    while row < len(instance.obstacle_size) and instance.obstacle_offset[row] >= bound:
        for unwrapped in range(instance.obstacle_first[row], instance.obstacle_last[row]):
            if window.low <= unwrapped % sections < window.high:
                state.total[state.tight_before[unwrapped % sections]] += instance.obstacle_size[row]
        row += 1
    return row


@inner
def holds(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, state: PackingState, part: I64, ceiling: int, window: Window, rise: int
) -> bool:
    """Whether, in each section, what must lie above an offset fits between that and the highest ceiling: see `PILE`.

    The part is sorted by descending bound, so that what was piled so far is all that lies above the next one. Only
    sections of the window are looked at: in the others nothing rose; and of these only those where `rise` may be too
    much. Where it does not hold, the slack has to be forgotten.
    """
    if window.low >= window.high:
        return True
    row, count = 0, _tight(instance, state, window, rise)
    for buffer in part:
        first, last, size = instance.first[buffer], instance.last[buffer], instance.size[buffer]
        bound = state.bound[buffer]
        since, until, wrapped = (
            max(window.low, first),
            min(window.high, last),
            min(window.high, last - instance.sections),
        )
        if since >= until and window.low >= wrapped:
            continue
        if bound + size > instance.ceiling[buffer]:
            return False
        row = _pile_obstacles(instance, state, window, row=row, bound=bound)
        before = state.tight_before
        if since < until and _pile(state, size, bound, since=before[since], until=before[until]) > ceiling:
            return False
        if window.low < wrapped and _pile(state, size, bound, since=0, until=before[wrapped]) > ceiling:
            return False
    for place in range(count):
        state.slack[state.tight[place]] = ceiling - state.pile_end[place]
    return True


@inner
def widen(instance: PackingInstance, window: Window, buffer: int) -> Window:
    """Return the window with the sections of a buffer in it; all sections where it wraps."""
    if instance.last[buffer] > instance.sections:
        return Window(0, instance.sections)
    return Window(min(window.low, instance.first[buffer]), max(window.high, instance.last[buffer]))


@inner
def count_options(instance: PackingInstance, state: PackingState, part: I64, ceiling: int) -> None:
    """Count in each section's total which buffers can be the lowest there and leave enough for the rest."""
    sections = instance.sections
    for buffer in part:
        spend(state, OPTION * (instance.last[buffer] - instance.first[buffer]))
        for unwrapped in range(instance.first[buffer], instance.last[buffer]):
            state.total[unwrapped - sections if unwrapped >= sections else unwrapped] = 0
    for buffer in part:
        for unwrapped in range(instance.first[buffer], instance.last[buffer]):
            section = unwrapped - sections if unwrapped >= sections else unwrapped
            state.total[section] += state.bound[buffer] + state.unplaced[section] <= ceiling


@inner
def fewest_options(instance: PackingInstance, state: PackingState, buffer: int) -> int:
    """Return the fewest options that a section of the buffer has."""
    options, sections = FAR, instance.sections
    for unwrapped in range(instance.first[buffer], instance.last[buffer]):
        options = min(options, state.total[unwrapped - sections if unwrapped >= sections else unwrapped])
    return options
