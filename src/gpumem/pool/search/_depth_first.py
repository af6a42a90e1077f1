"""Depth-first search for a placement below given ceilings; compiled loops over bare arrays.

Any placement can be let down until each buffer lies at the bottom or on another, and then be built from the lowest
offset up. So a step puts one of the buffers whose *least* offset (the top of what lies under it) is low enough::

    address ^        +------+
            |        |  C   |        C's least offset is the top of B
            |   +----+--+---+
            |   |   B   |   | D      D could go lower than C: D comes first,
            |   +---+---+   |        or it needs to rest on something that is not there yet
            |   | A |       |
            +---+---+-------+------> time, in sections: nothing begins or ends inside one

Each frame of the search has a part of the buffers to place, none below its *floor*, the offset of the frame
before. Of those that can go lowest it places one, by the order of the part. If that leads nowhere it is *refused*,
and another is placed. What shares no section with the rest is searched apart, from the bottom, in an order of its own.
`_packing` has the pruning rules and why they lose nothing, `_parts` the frames, `_moves` the changes and their undo.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import inlined, inner, jit
from gpumem.pool.search._moves import (
    count_placed,
    move_to_end,
    note,
    place,
    push_up,
    refuse,
    reserve,
    undo,
    unplace,
)
from gpumem.pool.search._packing import (
    ALL,
    BENEATH,
    FAR,
    FREE,
    LOOK,
    PARTS,
    PILE,
    REFUSED,
    UNIT,
    PackingInstance,
    PackingState,
    Window,
    bind,
    clear,
    count_options,
    fewest_options,
    holds,
    spend,
)
from gpumem.pool.search._parts import FRAME, WAIT, Frames, SearchOptions, Waits, rank, split
from gpumem.trace import F64, I64

# How a search ends: all is placed; no placement exists; out of nodes or work. Only compared: any numbers do.
SOLVED, IMPOSSIBLE, GAVE_UP = 1, 0, -1
IN_ORDER, FEWEST, LEVEL = range(3)  # which of those that can go lowest: see `_choose`


@inlined
def _lowest(instance: PackingInstance, state: PackingState, part: I64, floor: int, rules: int) -> int:
    """Return the buffer that can go lowest, the first by order; -1 where none can, or another fits below it."""
    beneath, best, lowest = FAR, -1, FAR
    for buffer in part:
        offset = state.min_offset[buffer]
        beneath = min(beneath, offset + instance.size[buffer])
        if offset < floor or offset < state.refused_below[buffer]:
            continue
        if best < 0 or offset < lowest or (offset == lowest and state.rank[buffer] < state.rank[best]):
            best, lowest = buffer, offset
    return -1 if rules & BENEATH and best >= 0 and lowest >= beneath else best


@inlined
def _choose(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, state: PackingState, frames: Frames, options: SearchOptions, at: int, first: int
) -> int:
    """Return the buffer to place instead of the `first` by order, at the same offset.

    It is the one with the fewest options in some section: if that section cannot be filled, this shows at once, before
    anything is built elsewhere. Ties go to what would end level with something else, for `LEVEL`, and then by
    order.
    """
    frame = frames[at]
    part, offset = state.items[frame.low : frame.high], state.min_offset[first]
    _, rise = bind(instance, state, part, floor=frame.floor, rules=options.rules, window=Window(0, 0))
    if rise > 0:
        state.slack[:] = -1  # unknown again: no `holds` takes this rise of the bounds off it
    count_options(instance, state, part, options.ceiling)
    best, fewest, best_rank = first, FAR, FAR
    for buffer in part:
        if state.min_offset[buffer] != offset or offset < state.refused_below[buffer]:
            continue
        count = fewest_options(instance, state, buffer)
        if count > fewest:
            continue
        own_rank = state.rank[buffer]
        if options.choice == LEVEL:  # levelness first, then order: each rank is below the number of buffers
            own_rank -= _levelness(
                instance, state, buffer, first=frame.first, last=frame.last, ceiling=options.ceiling
            ) * len(instance.size)
        if count < fewest or own_rank < best_rank:
            best, fewest, best_rank = buffer, count, own_rank
    return best


@inner
def _levelness(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, state: PackingState, buffer: int, first: int, last: int, ceiling: int
) -> int:
    """Rate how level a buffer's top would be with what lies beside it.

    2 for each side where the skyline is as high. At an end of the part, or beside a section where nothing is left to
    place, 1 if it ends at the ceiling.
    `[first, last)` are the sections of its part. So holes are filled, and flat stretches of the skyline grow.
    """
    sections, top = instance.sections, state.min_offset[buffer] + instance.size[buffer]
    before, after = (instance.first[buffer] + sections - 1) % sections, instance.last[buffer] % sections
    level = 0
    if instance.first[buffer] == first % sections or state.unplaced[before] == 0:
        level += top == ceiling
    elif state.skyline[before] == top:
        level += 2
    if after == last % sections or state.unplaced[after] == 0:
        level += top == ceiling
    elif state.skyline[after] == top:
        level += 2
    return level


@inlined
def _backtrack(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance,
    state: PackingState,
    frames: Frames,
    options: SearchOptions,
    at: int,
    trail: I64,
    length: int,
) -> tuple[int, int, I64, int]:
    """Go back to the last frame that has another buffer to place, undoing all after it.

    Return the frame, or -1 where none has; the buffer; the trail and its length.
    """
    rules = options.rules
    while at >= 0:
        frame = frames[at]
        part, buffer = state.items[frame.low : frame.high], frame.buffer
        trail = reserve(trail, length, 2 * len(part))  # what `refuse` here and `push_up` after it note at most
        if buffer >= 0:
            length = undo(state, trail, length, frame.trail_mark)
            unplace(instance, state, frames, at)
            state.slack[:] = -1  # unknown again: more is to be placed than when it was computed
            spend(state, LOOK * len(part))
            length, window = refuse(instance, state, part, buffer, trail=trail, length=length, rules=rules)
            frame.trail_mark = length
            if rules & REFUSED and not frame.is_over:
                window, rise = bind(instance, state, part, floor=frame.floor, rules=rules, window=window)
                frame.is_over = not holds(instance, state, part, ceiling=options.ceiling, window=window, rise=rise)
        if not frame.is_over:
            buffer = _lowest(instance, state, part, floor=frame.floor, rules=rules)
            if buffer >= 0 and options.choice != IN_ORDER:
                buffer = _choose(instance, state, frames, options, at=at, first=buffer)
            if buffer >= 0:
                return at, buffer, trail, length
        length = undo(state, trail, length, frame.trail_begin)
        parent, at = frame.parent, at - 1
        while at > parent:  # parts beside the one that failed: placing them otherwise does not help
            unplace(instance, state, frames, at)
            at -= 1
    return at, -1, trail, length


@inlined
def _begin_frame(  # noqa: PLR0913, PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance,
    state: PackingState,
    frames: Frames,
    waits: Waits,
    weight: F64,
    order: int,
    at: int,
    trail: I64,
    length: int,
    cut: bool,
) -> tuple[int, I64, int]:
    """Begin the next frame: of what is left of the part, of the first of the parts it falls into, or of one that waits.

    Return it, or -1 where nothing is left; the trail and its length. `cut`: whether what is left may fall into parts.
    """
    frame, new = frames[at], frames[at + 1]
    low, high = frame.low, frame.high - (at >= 0)  # what it placed is the last of its part
    if low < high and not cut:
        new.low, new.high, new.first, new.last = low, high, frame.first, frame.last
        new.parent, new.waiting, new.waits_used = at, frame.waiting, frame.waits_used
        new.floor, new.trail_begin = state.min_offset[frame.buffer], length
    else:
        head = split(instance, state, frames, waits, at=at, low=low, high=high) - 1 if low < high else frame.waiting
        if head < 0:
            return -1, trail, length
        wait = waits[head]
        new.low, new.high, new.first, new.last = wait.low, wait.high, wait.first, wait.last
        new.parent, new.waiting, new.waits_used = wait.parent, wait.following, head + 1
        new.floor, new.trail_begin = 0, length
        part = state.items[new.low : new.high]
        trail = reserve(trail, length, len(part))
        for buffer in part:  # a refusal holds while nothing goes below the floor; a part has a floor of 0
            length = note(state, trail, length, buffer)
            state.refused_below[buffer] = 0
        rank(instance, state, part, weight=weight, order=order)
    new.trail_mark, new.buffer, new.is_over = length, -1, 0
    return at + 1, trail, length


@inlined
def _begin(instance: PackingInstance, state: PackingState, frames: Frames, options: SearchOptions) -> bool:
    """Set up least offsets, counts and the first part; return whether all can still fit."""
    for buffer in range(len(instance.size)):
        state.min_offset[buffer] = clear(instance, buffer, 0)
        if state.min_offset[buffer] + instance.size[buffer] > instance.ceiling[buffer]:
            return False
        count_placed(instance, state, buffer, 1)
    # Frame -1, the last row, is the root: it placed nothing, and all is left.
    frames[-1].high, frames[-1].last, frames[-1].waiting = len(instance.size), instance.sections, -1
    state.slack[:] = -1
    if options.rules & PILE:
        _, rise = bind(instance, state, state.items, floor=0, rules=options.rules, window=Window(0, 0))
        window = Window(0, instance.sections)
        return holds(instance, state, state.items, ceiling=options.ceiling, window=window, rise=rise)
    return True


@jit
def _search(  # noqa: PLR0913, PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance,
    state: PackingState,
    frames: Frames,
    waits: Waits,
    weight: F64,
    options: SearchOptions,
    nodes: int,
    work: int,
    offset: I64,
) -> int:
    """Search; see `pack`. Return how it ended."""
    rules = options.rules
    if not _begin(instance, state, frames, options):
        return IMPOSSIBLE
    at, trail, length, cut = -1, np.empty((4, 0), np.int64), 0, True
    while True:
        at, trail, length = _begin_frame(
            instance,
            state,
            frames,
            waits,
            weight=weight,
            order=options.order,
            at=at,
            trail=trail,
            length=length,
            cut=cut,
        )
        if at < 0:
            return SOLVED
        fits = False
        while not fits:
            at, buffer, trail, length = _backtrack(instance, state, frames, options, at=at, trail=trail, length=length)
            if at < 0:
                return IMPOSSIBLE
            frame = frames[at]
            part = state.items[frame.low : frame.high]
            nodes -= 1
            spent = spend(state, LOOK * len(part))
            if nodes < 0 or spent > work:
                return GAVE_UP
            frame.buffer, offset[buffer] = buffer, state.min_offset[buffer]
            move_to_end(part, buffer)
            part = part[: len(part) - 1]
            cut = place(instance, state, frames, at) and rules & PARTS != 0
            length, fits, window = push_up(instance, state, part, buffer, trail=trail, length=length)
            # Where it raised nothing (the window is empty), no other choice helps if this one fails: see `FREE`.
            frame.is_over = fits and rules & FREE and window.low > window.high
            if fits and rules & PILE:
                window, rise = bind(instance, state, part, floor=offset[buffer], rules=rules, window=window)
                fits = holds(instance, state, part, ceiling=options.ceiling, window=window, rise=rise)


def pack(
    instance: PackingInstance, order: int, choice: int, weight: F64, *, nodes: int, work: int, rules: int = ALL
) -> tuple[int, int, I64]:
    """Look for offsets below the ceilings; return `SOLVED`, `IMPOSSIBLE` or `GAVE_UP`, the work done, the offsets.

    Gives up after `nodes` buffers were placed, or when about `work` buffers and sections were looked at. `weight`:
    scales the length, area, start and end by which a buffer is ordered. Deterministic. Exact with any set of `rules`:
    `IMPOSSIBLE` means that there is no placement.
    """
    count, sections = len(instance.size), instance.sections
    by_buffer, by_section = np.zeros((4, count), np.int64), np.zeros((9, sections + 1), np.int64)
    covered, spent = np.zeros(int((instance.last - instance.first).sum()), np.int64), np.zeros(1, np.int64)
    rows = (*by_buffer, np.arange(count), *by_section[:5, :sections], covered, spent, *by_section[5:])
    state = PackingState(*rows)
    frames, waits = np.rec.array(np.zeros(count + 1, FRAME)), np.rec.array(np.zeros(count + 1, WAIT))
    options = SearchOptions(int(instance.ceiling.max(initial=0)), order, choice, rules)
    offset, most = np.zeros(count, np.int64), UNIT * min(work, FAR // UNIT)
    status = _search(
        instance, state, frames, waits, weight=weight, options=options, nodes=nodes, work=most, offset=offset
    )
    return status, int(state.spent[0]) // UNIT, offset
