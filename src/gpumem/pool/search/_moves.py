"""What a step of the depth-first search changes, and how each change is undone; compiled loops.

================================  =============================================  ==============================
change                            what it writes                                 its undo
================================  =============================================  ==============================
`place` a frame's buffer          skyline, unplaced bytes, crossing counts       `unplace`
`push_up` those that it meets     their least offsets, each noted on the trail   `undo` down to the frame's mark
`refuse` it at its offset         `refused_below`, noted on the trail            `undo` down to the frame's beginning
`move_to_end` of its part         the order of the part                          none: any order is right
================================  =============================================  ==============================

An entry of the trail is the row of one buffer as it was before it changed.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import assign, inner
from gpumem.pool.search._packing import ALIKE, PackingInstance, PackingState, Window, add, clear, touch, widen
from gpumem.pool.search._parts import Frames
from gpumem.trace import I64

BUFFER, MIN_OFFSET, REFUSED_BELOW, RANK = range(4)  # rows of the trail, an entry a column


@inner
def reserve(trail: I64, length: int, more: int) -> I64:
    """Return a trail with space for `more` entries beyond its length."""
    if length + more <= trail.shape[1]:
        return trail
    longer = np.empty((4, 2 * (length + more)), np.int64)
    for row in range(4):
        assign(longer[row], trail[row, :length])
    return longer


@inner
def note(state: PackingState, trail: I64, length: int, buffer: int) -> int:
    """Note a buffer's row before it changes; return the trail's length."""
    trail[BUFFER, length], trail[MIN_OFFSET, length] = buffer, state.min_offset[buffer]
    trail[REFUSED_BELOW, length], trail[RANK, length] = state.refused_below[buffer], state.rank[buffer]
    return length + 1


@inner
def undo(state: PackingState, trail: I64, length: int, until: int) -> int:
    """Undo the latest changes, until the trail is as long as it was; return that length."""
    while length > until:
        length -= 1
        buffer = trail[BUFFER, length]
        state.min_offset[buffer], state.refused_below[buffer] = trail[MIN_OFFSET, length], trail[REFUSED_BELOW, length]
        state.rank[buffer] = trail[RANK, length]
    return length


@inner
def count_placed(instance: PackingInstance, state: PackingState, buffer: int, sign: int) -> bool:
    """Count a buffer as placed (sign -1) or as not placed (1); return whether nothing crosses some boundary now."""
    first, last = instance.first[buffer], instance.last[buffer]
    add(state.unplaced, first, last, sign * instance.size[buffer])
    return bool(add(state.crossing, first + 1, last, sign))


@inner
def place(instance: PackingInstance, state: PackingState, frames: Frames, at: int) -> bool:
    """Place a frame's buffer at its least offset; return whether nothing crosses some boundary now."""
    buffer, saved = frames[at].buffer, frames[at].covered
    for unwrapped in range(instance.first[buffer], instance.last[buffer]):
        section = unwrapped - instance.sections if unwrapped >= instance.sections else unwrapped
        state.covered[saved] = state.skyline[section]
        state.skyline[section] = state.min_offset[buffer] + instance.size[buffer]
        saved += 1
    frames[at + 1].covered = saved
    return count_placed(instance, state, buffer, -1)


@inner
def unplace(instance: PackingInstance, state: PackingState, frames: Frames, at: int) -> int:
    """Undo `place` of a frame, whose buffer must be the last one placed; return that buffer."""
    buffer, saved = frames[at].buffer, frames[at].covered
    for unwrapped in range(instance.first[buffer], instance.last[buffer]):
        section = unwrapped - instance.sections if unwrapped >= instance.sections else unwrapped
        state.skyline[section] = state.covered[saved]
        saved += 1
    count_placed(instance, state, buffer, 1)
    frames[at].buffer = -1
    return int(buffer)


@inner
def refuse(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, state: PackingState, part: I64, buffer: int, trail: I64, length: int, rules: int
) -> tuple[int, Window]:
    """Bar a buffer, and interchangeable ones, from its offset; return the trail's length and the buffer's sections."""
    offset, alike = state.min_offset[buffer], instance.interchangeable[buffer]
    for other in part:
        is_alike = rules & ALIKE and instance.interchangeable[other] == alike and state.min_offset[other] == offset
        if other == buffer or is_alike:
            length = note(state, trail, length, other)
            state.refused_below[other] = offset + 1
    return length, widen(instance, Window(instance.sections, 0), buffer)


@inner
def move_to_end(part: I64, buffer: int) -> None:
    """Move a buffer to the end of its part."""
    place = 0
    while part[place] != buffer:
        place += 1
    part[place], part[len(part) - 1] = part[len(part) - 1], buffer


@inner
def push_up(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, state: PackingState, part: I64, buffer: int, trail: I64, length: int
) -> tuple[int, bool, Window]:
    """Raise what meets a buffer above it; return the trail's length, whether all fits, the sections of what rose."""
    top, window = state.min_offset[buffer] + instance.size[buffer], Window(instance.sections, 0)
    for other in part:
        if state.min_offset[other] < top and touch(instance, buffer, other):
            length = note(state, trail, length, other)
            state.min_offset[other] = clear(instance, other, top)
            if state.min_offset[other] + instance.size[other] > instance.ceiling[other]:
                return length, False, window
            window = widen(instance, window, other)
    return length, True, window
