"""The frames of the depth-first search, and the parts into which what is left falls, each in an order of its own."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gpumem.base.jit import assign, inner
from gpumem.pool.search._packing import PackingInstance, PackingState, most
from gpumem.trace import F64, I64

FULL_LENGTH_AREA, FULL_AREA_LENGTH, LENGTH_AREA, AREA, END, START = range(6)  # what goes first at one offset
FULL, LENGTH, BYTES, LAST, FIRST = range(5)  # keys: what its fullest section has to place, time, area, end, start
KEYS = (  # by which each of these orders goes, the first one first
    (FULL, LENGTH, BYTES),
    (FULL, BYTES, LENGTH),
    (LENGTH, BYTES, FULL),
    (BYTES, LENGTH, FULL),
    (LAST, LENGTH, BYTES),  # gradients live to the end of the iteration, as a stack of stairs
    (FIRST, LENGTH, BYTES),
)

# Records, and not a `NamedTuple` of columns: 17 arrays fewer to pass to the loop, and the three loops that take them
# compile in 4.8 s instead of 7.1.
Frames: TypeAlias = "np.recarray[Any, Any]"
Waits: TypeAlias = "np.recarray[Any, Any]"
FRAME = [  # one for each buffer that is placed, and one more for what is placed next
    ("low", np.int64),  # its part is `items[low:high]`
    ("high", np.int64),
    ("first", np.int64),  # the part's sections are `[first, last)` of the circle
    ("last", np.int64),
    ("parent", np.int64),  # the frame whose rest fell into parts, this one's among them: if the part fails, that fails
    ("waiting", np.int64),  # the first of the parts that wait, -1 where none does
    ("waits_used", np.int64),  # how many entries of the waiting list are in use
    ("trail_begin", np.int64),  # length of the trail when the frame began
    ("trail_mark", np.int64),  # and with what was refused since
    ("floor", np.int64),  # offset of the frame before: nothing goes lower
    ("buffer", np.int64),  # that it has placed, -1 where there is none
    ("covered", np.int64),  # where what the skyline was below it begins in `PackingState.covered`
    ("is_over", np.int64),  # whether no other buffer is worth a try
]
WAIT = [  # a part that waits for its turn, in a linked list: the last one that was added is its head
    ("low", np.int64),
    ("high", np.int64),
    ("first", np.int64),
    ("last", np.int64),
    ("parent", np.int64),
    ("following", np.int64),
]


class SearchOptions(NamedTuple):
    """How the search goes about it."""

    ceiling: int  # the highest of all buffers
    order: int  # `FULL_LENGTH_AREA` to `START`: see `KEYS`
    choice: int  # `IN_ORDER`, `FEWEST` or `LEVEL`: see `_depth_first`
    rules: int  # which pruning rules: see `_packing`


@inner
def _number_parts(instance: PackingInstance, state: PackingState, first: int, last: int) -> tuple[int, int]:
    """Number the parts between boundaries that nothing crosses; return their first section and how many they are."""
    sections, count, length = instance.sections, 0, last - first
    if length == sections:  # the whole circle begins where it can be cut
        for section in range(sections):
            if state.crossing[section] == 0:
                first = section
                break
    for step in range(length):
        section = (first + step) % sections
        if step > 0 and state.crossing[section] == 0:
            count += 1
        state.part_number[section] = count
    return first, count + 1


@inner
def split(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, state: PackingState, frames: Frames, waits: Waits, at: int, low: int, high: int
) -> int:
    """Sort `items[low:high]` by the parts it falls into, and let these wait, the leftmost first in turn.

    Return how many entries of the waiting list are in use then.
    """
    frame = frames[at]
    first, count = _number_parts(instance, state, frame.first, frame.last)
    # A counting sort: `ends` has where each part ends, and begins at 0.
    ends = np.zeros(count + 1, np.int64)
    for buffer in state.items[low:high]:
        ends[state.part_number[instance.first[buffer] % instance.sections] + 1] += 1
    for part in range(count):
        ends[part + 1] += ends[part]
    by_part, to = np.empty(high - low, np.int64), ends[:count].copy()
    for buffer in state.items[low:high]:
        part = state.part_number[instance.first[buffer] % instance.sections]
        by_part[to[part]] = buffer
        to[part] += 1
    assign(state.items[low:high], by_part)
    # From the right, so that the leftmost becomes the head of the list.
    used, waiting, end = frame.waits_used, frame.waiting, frame.last - frame.first
    for step in range(end - 1, -1, -1):
        section = (first + step) % instance.sections
        if step > 0 and state.crossing[section]:
            continue
        part = state.part_number[section]
        if ends[part + 1] > ends[part]:
            wait = waits[used]
            wait.low, wait.high, wait.parent, wait.following = low + ends[part], low + ends[part + 1], at, waiting
            wait.first, wait.last = section, section + end - step
            waiting = used
            used += 1
        end = step
    return int(used)


@inner
def rank(instance: PackingInstance, state: PackingState, part: I64, weight: F64, order: int) -> None:
    """Put a part in order: by what its fullest section has to place, by length, area, start or end."""
    keys, by = np.empty((5, len(part))), part.copy()
    for column, buffer in enumerate(part):
        first, last = instance.first[buffer], instance.last[buffer]
        keys[FULL, column] = -most(state.unplaced, first, last)
        keys[LENGTH, column] = -(last - first) * weight[buffer]
        keys[BYTES, column] = keys[LENGTH, column] * instance.size[buffer]
        keys[LAST, column] = -last * weight[buffer]
        keys[FIRST, column] = first * weight[buffer]
        state.rank[buffer] = column  # until all have their rank
    _sort(by, keys, KEYS[order], state.rank)
    for place, buffer in enumerate(by):
        state.rank[buffer] = place


@inner
def _sort(by: I64, keys: F64, order: tuple[int, int, int], column: I64) -> None:
    """Sort buffers by three keys, equals by number: Shell's sort, as NumPy's two take three seconds to compile."""
    gap = 1
    while gap < len(by) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for place in range(gap, len(by)):
            buffer, to = by[place], place
            while to >= gap and _precedes(buffer, by[to - gap], keys, order=order, column=column):
                by[to] = by[to - gap]
                to -= gap
            by[to] = buffer
        gap //= 3


@inner
def _precedes(buffer: int, other: int, keys: F64, order: tuple[int, int, int], column: I64) -> bool:
    for key in order:
        own_key, other_key = keys[key, column[buffer]], keys[key, column[other]]
        if own_key != other_key:
            return bool(own_key < other_key)
    return buffer < other  # or the order of a part would depend on how it came about
