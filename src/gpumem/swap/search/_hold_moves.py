"""Steps over what is held for replays: what one replay computes, or what dies or is dropped, until another reads it."""

from __future__ import annotations

from gpumem.base.jit import inner, jit
from gpumem.swap.search._copy_orders import draw
from gpumem.swap.search._recompute_changes import drop_later, hold, hold_dead, off_device_at, release, replay_ops
from gpumem.swap.search._recompute_state import MARKS, RecomputeProblem, RecomputeState
from gpumem.trace import I64

NEXT = 4  # replays ahead that something is held for, at most; not tuned
# Of eight steps one ends a hold and one moves the end of a piece; the others hold something more. Not tuned.
END, MOVE_END, HOLD_KINDS = 0, 1, 8


@jit
def change_holds(recompute: RecomputeProblem, drops: RecomputeState, random: I64) -> bool:
    """Hold something for a replay, for longer or shorter, or no longer; False as the changes return it."""
    kind = draw(random, HOLD_KINDS)
    if not len(recompute.droppable):
        return False
    if kind == END:
        return _end_one(recompute, drops, random)
    if kind == MOVE_END and drops.choice.pieces[0]:
        return _move_end(recompute, drops, draw(random, drops.choice.pieces[0]), random)
    place = next_replay(drops, draw(random, len(drops.added_ns)))
    if place < 0:
        return False
    value = _draw_computed(recompute, drops, place, random)
    if value < 0:
        return False
    if draw(random, 2):
        return _hold_for_later(recompute, drops, value, place, random=random)
    return _hold_from_before(recompute, drops, value, place)


@inner
def next_replay(drops: RecomputeState, place: int) -> int:
    """The first replay from a place on, round the circle; -1 where there is none."""
    for _ in range(len(drops.targets)):
        if drops.targets[place]:
            return place
        place = (place + 1) % len(drops.targets)
    return -1


@inner
def _draw_computed(recompute: RecomputeProblem, drops: RecomputeState, place: int, random: I64) -> int:
    """Draw a value that is computed at a place; -1 for one that cannot stay."""
    columns, origins = recompute.columns, recompute.columns.origins
    off_device, pieces = off_device_at(recompute, drops.choice, place)
    ops, _ = replay_ops(recompute, drops, place, off_device=off_device, pieces=pieces)
    if not len(ops):
        return -1
    op = ops[draw(random, len(ops))]
    count = origins.write_ptr[op + 1] - origins.write_ptr[op]
    if not count:
        return -1
    value = columns.write_value[origins.write_ptr[op] + draw(random, count)]
    return int(value) if columns.begins[value] >= 0 else -1


@inner
def _hold_for_later(recompute: RecomputeProblem, drops: RecomputeState, value: int, place: int, random: I64) -> bool:
    """Hold what is computed at a place until one of the next replays that touch its buffer."""
    buffer, skip = recompute.columns.holder[value], draw(random, NEXT)
    stop = _next_use(drops, buffer, place)
    while skip and stop > 0:
        further = _next_use(drops, buffer, stop)
        if further < 0:
            break
        stop, skip = further, skip - 1
    return stop > 0 and hold(recompute, drops, value, start=place, stop=stop)


@inner
def _next_use(drops: RecomputeState, buffer: int, place: int) -> int:
    """The next replay behind a place that touches a buffer, -1 where there is none."""
    for later in range(place + 1, len(drops.targets)):
        if drops.targets[later] and drops.touched[later, buffer % MARKS]:
            return later
    return -1


@inner
def _hold_from_before(recompute: RecomputeProblem, drops: RecomputeState, value: int, place: int) -> bool:
    """Hold what was there before a place until its replay: a dropped value, a piece, or a dead buffer."""
    columns, choice = recompute.columns, drops.choice
    buffer = columns.holder[value]
    for gap in range(recompute.first[buffer], recompute.stop[buffer]):
        if columns.after[gap] < place < choice.recompute_at[gap] and columns.value[gap] == value:
            return drop_later(recompute, drops, gap, place)
    for piece in range(choice.pieces[0]):
        if choice.piece_value[piece] == value and choice.piece_stop[piece] < place:
            start = choice.piece_start[piece]
            return release(recompute, drops, piece) and hold(recompute, drops, value, start=start, stop=place)
    return columns.end[buffer] <= place and hold_dead(recompute, drops, buffer, place)


@inner
def _end_one(recompute: RecomputeProblem, drops: RecomputeState, random: I64) -> bool:
    """Hold one thing less, drawn: a piece, a dead buffer, or a dropped one."""
    choice, droppable, kind = drops.choice, recompute.droppable, draw(random, 3)
    if kind == 0 and choice.pieces[0]:
        return release(recompute, drops, draw(random, choice.pieces[0]))
    if kind == 1:
        buffer = draw(random, len(choice.held_until))
        for _ in range(len(choice.held_until)):
            if choice.held_until[buffer] >= 0:
                return hold_dead(recompute, drops, buffer, -1)
            buffer = (buffer + 1) % len(choice.held_until)
    row = draw(random, len(droppable))
    for _ in range(len(droppable)):
        if choice.drop_at[droppable[row]]:
            return drop_later(recompute, drops, droppable[row], 0)
        row = (row + 1) % len(droppable)
    return False


@inner
def _move_end(recompute: RecomputeProblem, drops: RecomputeState, piece: int, random: I64) -> bool:
    """Hold a piece until another replay: one after its start, drawn among the next."""
    value, start = drops.choice.piece_value[piece], drops.choice.piece_start[piece]
    return release(recompute, drops, piece) and _hold_for_later(recompute, drops, value, start, random=random)
