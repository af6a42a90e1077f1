"""Steps over drops: recompute a value, keep it, swap it instead, or recompute it elsewhere; switch a variant."""

from __future__ import annotations

from gpumem.base.jit import inner
from gpumem.swap.search._copy_orders import draw, reorder, toggle
from gpumem.swap.search._evaluate import IN, State
from gpumem.swap.search._hold_moves import change_holds, next_replay
from gpumem.swap.search._recompute_changes import drop, propagate, switch_variant
from gpumem.swap.search._recompute_state import (
    MARKS,
    POINTS,
    RecomputeProblem,
    RecomputeState,
    compact_if_full,
    copy_drops,
)
from gpumem.trace import I64

# Of a hundred steps over drops, how many switch the variant of an op, where ops have a choice; not tuned.
SWITCHING = 30
HOLDING = 25  # of the others, how many change what is held for replays; not tuned
LOOKS = 16  # draws at most, until a gap or an op with a choice is at the worst position; not tuned


@inner
def change_drops(state: State, recompute: RecomputeProblem, before: RecomputeState, random: I64) -> bool:
    """Change what is dropped, or how an op runs, at random; False where something could not be recomputed then.

    `before`: a copy of the drops, to which a caller goes back.
    """
    drops, swaps = state.drops, state.swaps
    # Entries of `reads` move when it is compacted: the copy has to point to where they are then.
    if compact_if_full(drops):
        copy_drops(recompute, before, drops)
    if len(recompute.variants.op) and (not len(recompute.droppable) or draw(random, 100) < SWITCHING):
        possible = _switch_some(state, recompute, random)
        propagate(recompute, drops)
        return possible
    if draw(random, 100) < HOLDING and next_replay(drops, 0) >= 0:
        possible = change_holds(recompute, drops, random)
    else:
        possible = _drop_some(state, recompute, random)
    if possible:
        propagate(recompute, drops)
        for gap in range(len(drops.due)):
            if swaps.selected[gap] and drops.due[gap] != before.due[gap]:
                reorder(state.problem, drops, swaps, gap)
    return possible


@inner
def _drop_some(state: State, recompute: RecomputeProblem, random: I64) -> bool:
    """Drop a gap, drawn; or, if it is dropped, keep it, swap it instead, or recompute it elsewhere.

    Often another gap changes the other way in the same step: one change alone would seldom be accepted, as it exceeds
    the limit or takes more time.
    """
    problem, drops, swaps = state.problem, state.drops, state.swaps
    gap, kind = _draw_gap(state, recompute, random), draw(random, 4)
    if drops.choice.recompute_at[gap]:
        place = _draw_place(recompute, drops, gap, random) if kind == 2 else 0
        possible = place != drops.choice.recompute_at[gap] and drop(recompute, drops, gap, place)
        if kind == 0:
            toggle(problem, drops, swaps, gap)
        elif kind == 3 and possible:
            other = _draw_gap(state, recompute, random)
            possible = other != gap and _drop_one_more(state, recompute, other, random)
    else:
        possible = True
        if kind == 0:
            possible = _keep_one(recompute, drops, random)
        elif kind == 1 and swaps.lengths[IN]:
            toggle(problem, drops, swaps, swaps.ins[draw(random, swaps.lengths[IN])])
        possible = possible and _drop_one_more(state, recompute, gap, random)
    return possible


@inner
def _draw_gap(state: State, recompute: RecomputeProblem, random: I64) -> int:
    """Draw a gap that can be dropped, three times in four one around the point that exceeds the limit by most."""
    droppable, columns, worst = recompute.droppable, recompute.columns, _worst_position(state)
    gap = droppable[draw(random, len(droppable))]
    if draw(random, 4):
        for _ in range(LOOKS):
            if 2 * columns.after[gap] + 1 < worst < 2 * columns.before[gap]:
                break
            gap = droppable[draw(random, len(droppable))]
    return int(gap)


@inner
def _worst_position(state: State) -> int:
    """The position that exceeded the limit by most; points may have become fewer since."""
    drops = state.drops
    return int(drops.points[min(state.times.worst[0], max(drops.used[POINTS] - 1, 0))])


@inner
def _draw_place(recompute: RecomputeProblem, drops: RecomputeState, gap: int, random: I64) -> int:
    """Draw where to recompute a gap's value: as late as it can be, or with a replay before that touches its buffer.

    Each of these replays is as likely as the next (reservoir sampling).
    """
    after, last, chosen, seen = recompute.columns.after[gap], recompute.last_place[gap], recompute.last_place[gap], 0
    if draw(random, 2):
        mark = recompute.columns.buffer[gap] % MARKS
        for place in range(after + 1, last + 1):
            if drops.targets[place] and drops.touched[place, mark]:
                seen += 1
                if not draw(random, seen):
                    chosen = place
    return int(chosen)


@inner
def _drop_one_more(state: State, recompute: RecomputeProblem, gap: int, random: I64) -> bool:
    """Drop a gap that is not dropped yet, and swap it no longer."""
    drops, swaps = state.drops, state.swaps
    if drops.choice.recompute_at[gap]:
        return False
    if swaps.selected[gap]:
        toggle(state.problem, drops, swaps, gap)
    return drop(recompute, drops, gap, _draw_place(recompute, drops, gap, random))


@inner
def _keep_one(recompute: RecomputeProblem, drops: RecomputeState, random: I64) -> bool:
    """Keep one of the dropped values, the next one after a random gap."""
    droppable = recompute.droppable
    row = draw(random, len(droppable))
    for _ in range(len(droppable)):
        if drops.choice.recompute_at[droppable[row]]:
            return drop(recompute, drops, droppable[row], 0)
        row = (row + 1) % len(droppable)
    return True


@inner
def _switch_some(state: State, recompute: RecomputeProblem, random: I64) -> bool:
    """Draw another variant for an op: half of the time one that runs at the worst point, else any, or a faster one."""
    variants, current = recompute.variants, state.drops.choice.variant
    kind, row = draw(random, 4), draw(random, len(variants.op))
    if kind < 2:
        row = _draw_op_at_worst(state, recompute, row, random)
    first, count = variants.first[row], variants.first[row + 1] - variants.first[row]
    if kind == 2 and current[row] > first:
        count = current[row] - first + 1
    variant = first + draw(random, count - 1)
    # Any but the one that it runs by: those from it on are one further.
    return switch_variant(recompute, state.drops, row, variant + (variant >= current[row]))


@inner
def _draw_op_at_worst(state: State, recompute: RecomputeProblem, row: int, random: I64) -> int:
    """The row of the op with a choice at the worst point, or of one that its replay runs; `row` where there is none."""
    drops, variants, position = state.drops, recompute.variants, _worst_position(state)
    op = position // 2
    if position % 2:
        return int(variants.row[op] if variants.row[op] >= 0 else row)
    for _ in range(LOOKS if drops.targets[op] else 0):
        other = draw(random, len(variants.op))
        if drops.touched[op, variants.workspace[other] % MARKS]:
            return other
    return row
