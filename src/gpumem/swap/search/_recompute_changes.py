"""Changes of what is dropped, recomputed and held, one at a time; replays are found anew where they can differ.

A change of what is on the device of a buffer from one place to another concerns the replays between them that touch the
buffer, no others; only these are found anew. So are those that run an op which switches its variant. Exact: live bytes
and times are those of the trace that `Plan.apply` makes.

Every change returns False, and leaves the state half changed, where some value cannot be recomputed then, or `reads` is
full. After the last one `propagate` has to follow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.facts.recompute_cost import replayed
from gpumem.swap.plan.replay import FREE, ON_DEVICE, closure, sources
from gpumem.swap.search._recompute_state import (
    LOGGED,
    MARKS,
    POINTS,
    RecomputeChoice,
    RecomputeProblem,
    RecomputeState,
    compact_if_full,
    copy_choice,
)
from gpumem.trace import I64, Bool


class Change(NamedTuple):
    """Where a change of a buffer can concern replays: at places behind `after` through `last`, and at its own two."""

    buffer: int
    after: int
    last: int
    place: int  # whose targets change; 0 for none
    other_place: int


class Reads(NamedTuple):
    """Which buffers a replay reads, and in which version; `ON_DEVICE` for the one that is there."""

    buffer: I64
    version: I64


@jit
def drop(recompute: RecomputeProblem, drops: RecomputeState, gap: int, place: int) -> bool:
    """Recompute the value of a gap right before op `place`, or keep it on the device if that is 0."""
    choice, old, after = drops.choice, drops.choice.recompute_at[gap], recompute.columns.after[gap]
    _count_dropped(recompute, drops, gap, 1)
    choice.recompute_at[gap] = place
    if choice.drop_at[gap] >= place:
        choice.drop_at[gap] = 0
    _count_dropped(recompute, drops, gap, -1)
    drops.targets[old] -= old > 0
    drops.targets[place] += place > 0
    change = Change(recompute.columns.buffer[gap], after, max(old, place), place=old, other_place=place)
    return _update_replays(recompute, drops, change)


@jit
def drop_later(recompute: RecomputeProblem, drops: RecomputeState, gap: int, place: int) -> bool:
    """Drop a gap, which is dropped, no earlier than before op `place`; right after its access if that is 0."""
    choice, old = drops.choice, drops.choice.drop_at[gap]
    if place >= choice.recompute_at[gap]:
        return False
    _count_dropped(recompute, drops, gap, 1)
    choice.drop_at[gap] = place
    _count_dropped(recompute, drops, gap, -1)
    buffer, after = recompute.columns.buffer[gap], recompute.columns.after[gap]
    return _update_replays(recompute, drops, Change(buffer, after, max(old, place), place=0, other_place=0))


@jit
def hold_dead(recompute: RecomputeProblem, drops: RecomputeState, buffer: int, until: int) -> bool:
    """Hold a buffer after its death until op `until`; not at all if that is -1."""
    ops, end, old = len(drops.added_ns), recompute.columns.end[buffer], drops.choice.held_until[buffer]
    if until >= 0 and not (end <= until <= ops and recompute.columns.lives[buffer]):
        return False
    _count_held(drops, buffer, end, old, sign=-1)
    _count_held(drops, buffer, end, until, sign=1)
    drops.choice.held_until[buffer] = until
    return _update_replays(recompute, drops, Change(buffer, end - 1, max(old, until), place=0, other_place=0))


@jit
def hold(recompute: RecomputeProblem, drops: RecomputeState, value: int, start: int, stop: int) -> bool:
    """Recompute a value right before op `start` and hold it beside its buffer until op `stop`."""
    columns, choice, piece = recompute.columns, drops.choice, drops.choice.pieces[0]
    buffer = columns.holder[value]
    born = columns.origins.writer[columns.ends[value] - 1]
    if columns.begins[value] < 0 or not born < start < stop <= len(drops.added_ns):
        return False
    if piece == len(choice.piece_value) or columns.size[buffer] == 0:
        return False
    # `Plan.apply` lets the pieces of a buffer follow one another.
    for other in range(piece):
        same = columns.holder[choice.piece_value[other]] == buffer
        if same and choice.piece_start[other] < stop and start < choice.piece_stop[other]:
            return False
    choice.piece_value[piece], choice.piece_start[piece], choice.piece_stop[piece] = value, start, stop
    choice.pieces[0] = piece + 1
    _count_held(drops, buffer, start, stop, sign=1)
    drops.targets[start] += 1
    return _update_replays(recompute, drops, Change(buffer, start - 1, stop, place=start, other_place=0))


@jit
def release(recompute: RecomputeProblem, drops: RecomputeState, piece: int) -> bool:
    """Hold a piece no longer; the last one takes its number."""
    choice, last = drops.choice, drops.choice.pieces[0] - 1
    buffer = recompute.columns.holder[choice.piece_value[piece]]
    start, stop = choice.piece_start[piece], choice.piece_stop[piece]
    choice.piece_value[piece], choice.piece_start[piece] = choice.piece_value[last], choice.piece_start[last]
    choice.piece_stop[piece], choice.pieces[0] = choice.piece_stop[last], last
    _count_held(drops, buffer, start, stop, sign=-1)
    drops.targets[start] -= 1
    return _update_replays(recompute, drops, Change(buffer, start - 1, stop, place=start, other_place=0))


@jit
def switch_variant(recompute: RecomputeProblem, drops: RecomputeState, row: int, variant: int) -> bool:
    """Run the op of a row of `recompute.variants` by another variant, in replays too."""
    op, workspace = recompute.variants.op[row], recompute.variants.workspace[row]
    _run_by(recompute, drops, row, variant)
    # The op is a source of replays behind it only; those that run it have its workspace marked.
    return _update_replays(recompute, drops, Change(workspace, op, len(drops.added_ns), place=0, other_place=0))


@inner
def _count_dropped(recompute: RecomputeProblem, drops: RecomputeState, gap: int, sign: int) -> None:
    """Add the bytes of a dropped gap, with a sign, where it is off the device."""
    place, drop_at = drops.choice.recompute_at[gap], drops.choice.drop_at[gap]
    first = 2 * drop_at + 1 if drop_at else 2 * recompute.columns.after[gap] + 2
    for position in range(first, 2 * place):
        drops.live[position] += sign * drops.size[recompute.columns.buffer[gap]]


@inner
def _count_held(drops: RecomputeState, buffer: int, start: int, stop: int, sign: int) -> None:
    """Add `sign` times a buffer's bytes from the replay before op `start` through that before op `stop`.

    Nothing where `stop` is -1.
    """
    for position in range(2 * start, min(2 * stop + 1, len(drops.live))):
        drops.live[position] += sign * drops.size[buffer]


@inner
def _update_replays(recompute: RecomputeProblem, drops: RecomputeState, change: Change) -> bool:
    """Find the replays anew that a change concerns."""
    mark = change.buffer % MARKS
    for place in range(change.after + 1, min(change.last + 1, len(drops.added_ns))):
        targets_change = place in (change.place, change.other_place)
        if drops.targets[place] == 0:
            if targets_change:
                drops.added_ns[place] = drops.scratch[place] = drops.read_count[place] = 0
        elif (targets_change or drops.touched[place, mark]) and not _replay(recompute, drops, place):
            return False
    return True


@inner
def _run_by(recompute: RecomputeProblem, drops: RecomputeState, row: int, variant: int) -> None:
    """Let the op of a row run by another variant, and leave its replays as they are."""
    variants = recompute.variants
    op, workspace = variants.op[row], variants.workspace[row]
    extra_ns, size = variants.extra_ns[variant], variants.size[variant]
    drops.live[2 * op + 1] += size - drops.size[workspace]
    drops.duration[op] += extra_ns - drops.extra_ns[op]
    drops.choice.variant[row], drops.extra_ns[op], drops.size[workspace] = variant, extra_ns, size


@inner
def off_device_at(recompute: RecomputeProblem, choice: RecomputeChoice, place: int) -> tuple[Bool, I64]:
    """Return which buffers are dropped during the replay before op `place`, and which versions are held beside them.

    bool[B]: recomputed by that replay or a later one. int64[B]: where the chain of the version that is held stops in
    `Origins.writer`, -1 where none is. See `replay.Present`.
    """
    columns = recompute.columns
    off_device, pieces = np.zeros(len(columns.size), np.bool_), np.full(len(columns.size), -1)
    after, buffer, recompute_at, drop_at = columns.after, columns.buffer, choice.recompute_at, choice.drop_at
    for gap in range(len(recompute_at)):
        if after[gap] < place <= recompute_at[gap] and drop_at[gap] < place:
            off_device[buffer[gap]] = True
    for piece in range(choice.pieces[0]):
        if choice.piece_start[piece] < place <= choice.piece_stop[piece]:
            value = choice.piece_value[piece]
            pieces[columns.holder[value]] = columns.ends[value]
    return off_device, pieces


@inner
def _targets(recompute: RecomputeProblem, drops: RecomputeState, place: int) -> tuple[I64, I64, I64]:
    """The values that are recomputed to stay at a place, and their chains; none at all where one would be two."""
    columns, choice, count = recompute.columns, drops.choice, 0
    value, first, stop = np.zeros((3, drops.targets[place]), np.int64)
    for gap in range(len(choice.recompute_at)):
        if choice.recompute_at[gap] == place:
            value[count], first[count], stop[count] = columns.value[gap], columns.first[gap], columns.stop[gap]
            count += 1
    gaps = count
    for piece in range(choice.pieces[0]):
        if choice.piece_start[piece] == place:
            held = choice.piece_value[piece]
            for target in range(gaps):
                if value[target] == held:
                    return value[:0], first[:0], stop[:0]
            value[count], first[count], stop[count] = held, columns.begins[held], columns.ends[held]
            count += 1
    return value, first, stop


@inner
def replay_ops(
    recompute: RecomputeProblem, drops: RecomputeState, place: int, off_device: Bool, pieces: I64
) -> tuple[I64, I64]:
    """The ops that the replay at a place runs, and the values that stay; none where that cannot be."""
    targets, first, stop = _targets(recompute, drops, place)
    marked, held_until = np.zeros(len(drops.added_ns), np.bool_), drops.choice.held_until
    if len(targets):
        origins = recompute.columns.origins
        obstacle, _ = closure(origins, first, stop, place, off_device, held_until, pieces, marked)
        if obstacle != FREE:
            targets = targets[:0]
    return np.flatnonzero(marked[:place]), targets


@inner
def _replay(recompute: RecomputeProblem, drops: RecomputeState, place: int) -> bool:
    """Find what the replay at a place runs, takes and reads."""
    columns, held_until = recompute.columns, drops.choice.held_until
    off_device, pieces = off_device_at(recompute, drops.choice, place)
    ops, targets = replay_ops(recompute, drops, place, off_device=off_device, pieces=pieces)
    if not len(targets):
        return False
    first, last = np.full(len(columns.holder), -1), np.full(len(columns.holder), -1)
    scratch = np.ones(len(columns.holder), np.bool_)
    drops.scratch[place], drops.added_ns[place] = replayed(
        columns, drops.size, drops.duration, targets, place, off_device, held_until, pieces, ops, first, last, scratch
    )
    _, buffer, version = sources(columns.origins, ops, place, off_device, held_until, pieces)
    return _log_reads(recompute, drops, place, ops, reads=Reads(buffer, version))


@inner
def _log_reads(recompute: RecomputeProblem, drops: RecomputeState, place: int, ops: I64, reads: Reads) -> bool:
    """Mark what a replay touches, and log what it reads on the device; False where `reads` is full.

    Of what it writes, the workspaces of ops with a choice are marked.
    """
    variants = recompute.variants
    drops.touched[place] = False
    # Also where `reads` is full: a count of an earlier replay would let others read beyond the end.
    drops.read_start[place], drops.read_count[place] = drops.used[LOGGED], 0
    for op in ops:
        if variants.row[op] >= 0:
            drops.touched[place, variants.workspace[variants.row[op]] % MARKS] = True
    if drops.used[LOGGED] + len(reads.buffer) > len(drops.reads):
        return False
    for read in range(len(reads.buffer)):
        drops.touched[place, reads.buffer[read] % MARKS] = True
        if reads.version[read] == ON_DEVICE:
            drops.reads[drops.used[LOGGED]] = reads.buffer[read]
            drops.used[LOGGED] += 1
    drops.read_count[place] = drops.used[LOGGED] - drops.read_start[place]
    return True


@jit
def propagate(recompute: RecomputeProblem, drops: RecomputeState) -> None:
    """Find what follows for live bytes and for the deadlines of swapped gaps."""
    columns, ops = recompute.columns, len(drops.added_ns)
    for gap in range(len(drops.due)):
        length = columns.before[gap] - columns.after[gap]
        drops.due[gap] = 2 * (columns.before[gap] % ops) + 1
        drops.due_iteration[gap] = (recompute.after[gap] + length) // ops
    for place in range(ops):
        if drops.targets[place]:
            for entry in range(drops.read_start[place], drops.read_start[place] + drops.read_count[place]):
                _require_before(recompute, drops, drops.reads[entry], place)
    _find_points(recompute, drops)


@inner
def _require_before(recompute: RecomputeProblem, drops: RecomputeState, buffer: int, place: int) -> None:
    """Let a buffer be back before the replay at a place."""
    ops = len(drops.added_ns)
    for gap in range(recompute.first[buffer], recompute.stop[buffer]):
        after = recompute.columns.after[gap] % ops
        length = (drops.due[gap] // 2 - after - 1) % ops + 1
        distance = (place - after - 1) % ops + 1
        if distance < length or (distance == length and drops.due[gap] % 2):
            drops.due[gap], drops.due_iteration[gap] = 2 * place, (recompute.after[gap] + distance) // ops


@inner
def _find_points(recompute: RecomputeProblem, drops: RecomputeState) -> None:
    """Find the positions at which the live bytes can exceed the limit, and the next ones, where copies end and begin.

    Nothing is lost: the limit is never below the goal, and swaps only take bytes away, so where the goal is kept to
    with everything on the device it is kept to by every state.
    """
    ops, count = len(drops.added_ns), 0
    for position in range(2 * ops):
        scratch = drops.scratch[position // 2] if position % 2 == 0 else 0
        drops.occupied[position] = drops.live[position] + scratch
    high = drops.occupied[2 * ops - 1] > recompute.goal
    for position in range(2 * ops):
        drops.next_point[position] = count
        # A place without a replay holds no more than the ops beside it.
        if position % 2 or drops.targets[position // 2]:
            now_high = drops.occupied[position] > recompute.goal
            if now_high or high:
                drops.points[count] = position
                count += 1
            high = now_high
    drops.next_point[2 * ops] = drops.used[POINTS] = count


@jit
def trim_holds(recompute: RecomputeProblem, drops: RecomputeState) -> bool:
    """Hold dead buffers, and what is dropped, no longer than replays read them.

    Nothing is lost: a replay reads the same, and takes what it took. False, and half done, where `reads` is full.
    """
    columns, choice, possible = recompute.columns, drops.choice, True
    for buffer in range(len(choice.held_until)):
        if possible and choice.held_until[buffer] >= 0:
            compact_if_full(drops)
            last = _last_read(drops, buffer, columns.end[buffer] - 1, choice.held_until[buffer])
            possible = hold_dead(recompute, drops, buffer, last)
    for gap in range(len(choice.drop_at)):
        if possible and choice.drop_at[gap]:
            compact_if_full(drops)
            last = _last_read(drops, columns.buffer[gap], columns.after[gap], choice.drop_at[gap])
            possible = drop_later(recompute, drops, gap, max(last, 0))
    return possible


@inner
def _last_read(drops: RecomputeState, buffer: int, after: int, last: int) -> int:
    """The last replay behind `after` through `last` that reads a buffer where it is, -1 where there is none."""
    for place in range(min(last, len(drops.targets) - 1), after, -1):
        if drops.targets[place] and drops.touched[place, buffer % MARKS]:
            for entry in range(drops.read_start[place], drops.read_start[place] + drops.read_count[place]):
                if drops.reads[entry] == buffer:
                    return place
    return -1


@jit
def adopt(recompute: RecomputeProblem, drops: RecomputeState, choice: RecomputeChoice) -> bool:
    """Choose just that; False, and half done, where that cannot be."""
    columns, variants = recompute.columns, recompute.variants
    drops.targets[:], drops.added_ns[:], drops.scratch[:], drops.read_count[:], drops.used[LOGGED] = 0, 0, 0, 0, 0
    for position in range(len(drops.live)):
        drops.live[position] = recompute.live[position]
    for row in range(len(choice.variant)):
        drops.size[variants.workspace[row]] = columns.size[variants.workspace[row]]
        _run_by(recompute, drops, row, choice.variant[row])
    copy_choice(drops.choice, choice)
    choice = drops.choice
    for gap in range(len(choice.recompute_at)):
        drops.targets[choice.recompute_at[gap]] += choice.recompute_at[gap] > 0
        _count_dropped(recompute, drops, gap, -1)
    for piece in range(choice.pieces[0]):
        start, buffer = choice.piece_start[piece], columns.holder[choice.piece_value[piece]]
        drops.targets[start] += 1
        _count_held(drops, buffer, start, choice.piece_stop[piece], sign=1)
    for buffer in range(len(choice.held_until)):
        _count_held(drops, buffer, columns.end[buffer], choice.held_until[buffer], sign=1)
    possible = True
    for place in range(len(drops.added_ns)):
        if drops.targets[place]:
            possible = possible and _replay(recompute, drops, place)
    propagate(recompute, drops)
    return possible
