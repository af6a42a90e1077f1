"""From a plan to what a search has chosen of it, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gpumem.swap.plan import Hold, Plan, Recompute
from gpumem.swap.search._recompute_state import PIECES, RecomputeChoice, RecomputeProblem


def choice_of(recompute: RecomputeProblem, rows: Mapping[tuple[int, int], int], plan: Plan) -> RecomputeChoice:
    """Return what a plan drops and holds, as far as a state can; `rows`: of gaps, by buffer and first access.

    It cannot hold a value as it was before its last change in place.
    """
    choice, columns = RecomputeChoice.of(recompute), recompute.columns
    for drop in (decision for decision in plan.decisions if isinstance(decision, Recompute)):
        gap = rows.get((drop.buffer, drop.after), -1)
        if gap >= 0 and recompute.last_place[gap]:
            choice.recompute_at[gap] = drop.at
    # Holds after drops: one of a dropped value delays its drop.
    for hold in (decision for decision in plan.decisions if isinstance(decision, Hold)):
        gap = rows.get((hold.buffer, hold.after), -1)
        if hold.at >= 0:
            _add_pieces(recompute, choice, hold)
        elif gap >= 0 and choice.recompute_at[gap]:
            choice.drop_at[gap] = hold.until
        elif hold.after in (-1, columns.origins.last_access(hold.buffer)):
            choice.held_until[hold.buffer] = hold.until if hold.until >= columns.end[hold.buffer] else -1
    return choice


def _add_pieces(recompute: RecomputeProblem, choice: RecomputeChoice, hold: Hold) -> None:
    """Hold the value that a buffer has after an access, recomputed beside it; nothing where no more can be held."""
    if choice.pieces[0] == PIECES:
        return
    columns, left = recompute.columns, recompute.columns.origins.left
    row = columns.origins.after(hold.buffer, hold.after)
    values = np.arange(recompute.value_of[hold.buffer], recompute.value_of[hold.buffer + 1])
    same = (columns.begins[values] == left.first[row]) & (columns.ends[values] == left.stop[row])
    for value in values[same].tolist():
        piece = int(choice.pieces[0])
        choice.piece_value[piece], choice.piece_start[piece] = value, hold.at
        choice.piece_stop[piece], choice.pieces[0] = hold.until, piece + 1


def decisions_of(recompute: RecomputeProblem, choice: RecomputeChoice) -> Iterator[Recompute | Hold]:
    """Yield what a choice stands for, but for the variants of ops."""
    columns, ops = recompute.columns, len(recompute.columns.duration)
    gap = np.flatnonzero(choice.recompute_at)
    drops = (columns.buffer[gap], columns.after[gap], columns.before[gap], choice.recompute_at[gap])
    yield from (Recompute(*row) for row in zip(*(column.tolist() for column in drops)))
    gap = np.flatnonzero(choice.drop_at)
    yield from map(Hold, columns.buffer[gap].tolist(), choice.drop_at[gap].tolist(), columns.after[gap].tolist())
    buffer = np.flatnonzero(choice.held_until >= 0)
    yield from map(Hold, buffer.tolist(), np.minimum(choice.held_until[buffer], ops).tolist())
    pieces = slice(0, int(choice.pieces[0]))
    value = choice.piece_value[pieces]
    after = columns.origins.writer[columns.ends[value] - 1]
    held = (columns.holder[value], choice.piece_stop[pieces], after, choice.piece_start[pieces])
    yield from (Hold(*row) for row in zip(*(column.tolist() for column in held)))
