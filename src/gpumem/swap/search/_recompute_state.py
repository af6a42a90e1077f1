"""What a state drops, recomputes and holds, which variants its ops run, and what follows from that.

A dropped gap is recomputed right before op `recompute_at[gap]`, its place; all that is recomputed at one place is one
replay, in which each op runs once::

    op                    recompute_at
    [ a ] ................. [ replay ][ op ] ... [ b ]      a dropped gap
    [ a ] ===|............. [ replay ][ op ] ... [ b ]      it may be dropped no earlier than op `drop_at[gap]`
    [ a ] ===[out]....[in]============ reads ====[ b ]      a swapped one is due at the earliest replay that reads it

What a replay computes may be held beside its buffer up to an op, and a dead buffer may be held until one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpumem.base.jit import jit
from gpumem.swap.facts.recompute_cost import RecomputableGaps
from gpumem.swap.plan.gaps import Windows
from gpumem.swap.search._operator_choices import Variants
from gpumem.trace import F64, I64, Bool

# Buffers that a replay touches are marked by their number modulo this: where two share a mark, a replay is found anew
# that need not be, none is missed. Not tuned.
MARKS = 256
# Values that can be held beside their buffers; DTR's plans of its own eight logs have up to some hundreds.
PIECES = 4096
READS = 64  # entries of `reads` for each read of the trace: space for so many replays of everything; not tuned
POINTS, LOGGED = range(2)  # in `RecomputeState.used`: points, and entries of `reads`


class RecomputeProblem(NamedTuple):
    """What drops do not change: the gaps of a search as `recompute_cost` sees them. m gaps, n ops, B buffers."""

    columns: RecomputableGaps
    variants: Variants
    live: I64  # 2 n: live bytes at each position with nothing dropped
    value_of: I64  # B + 1: the values of each buffer are `value_of[b]:value_of[b + 1]`
    last_place: I64  # m: the last place at which a gap's value can be recomputed; 0 where it cannot
    worth: F64  # m: bytes per ns of recomputing a value, all else being there
    droppable: I64  # the gaps that can be dropped
    after: I64  # m: the op before the gap, counted on from the iteration in which the value was made
    first: I64  # B: the gaps of each buffer are `first` up to `stop`
    stop: I64
    goal: int  # live bytes that are to be reached

    @classmethod
    def of(
        cls, columns: RecomputableGaps, variants: Variants, windows: Windows, *, last_place: I64, worth: F64, goal: int
    ) -> RecomputeProblem:
        """Take the gaps of `windows`, which ascend by buffer."""
        buffers = np.arange(len(columns.size))
        return cls(
            columns=columns,
            variants=variants,
            live=columns.load,
            value_of=np.searchsorted(columns.holder, np.append(buffers, len(buffers))).astype(np.int64),
            last_place=last_place,
            worth=worth,
            droppable=np.flatnonzero(last_place),
            after=windows.after,
            first=np.searchsorted(windows.buffer, buffers, side="left").astype(np.int64),
            stop=np.searchsorted(windows.buffer, buffers, side="right").astype(np.int64),
            goal=goal,
        )


class RecomputeChoice(NamedTuple):
    """What a state is, apart from what is swapped, and all that a plan records of it."""

    recompute_at: I64  # m: before which op each gap is recomputed; 0 where it is not dropped
    drop_at: I64  # m: before which op it is dropped, if that is later than right after its access; else 0
    variant: I64  # c: which variant each op with a choice runs
    held_until: I64  # B: until which op a dead buffer is held, -1 where it is not
    piece_value: I64  # PIECES: which value is held beside its buffer,
    piece_start: I64  # recomputed right before which op,
    piece_stop: I64  # until which op
    pieces: I64  # 1: so many of these there are

    @classmethod
    def of(cls, recompute: RecomputeProblem) -> RecomputeChoice:
        """Choose nothing."""
        recompute_at, drop_at = np.zeros((2, len(recompute.last_place)), np.int64)
        value, start, stop = np.zeros((3, PIECES), np.int64)
        return cls(
            recompute_at=recompute_at,
            drop_at=drop_at,
            variant=recompute.variants.first[:-1].copy(),
            held_until=np.full(len(recompute.columns.size), -1),
            piece_value=value,
            piece_start=start,
            piece_stop=stop,
            pieces=np.zeros(1, np.int64),
        )

    def copy(self) -> RecomputeChoice:
        """Return a copy that shares nothing."""
        return RecomputeChoice._make(column.copy() for column in self)


class RecomputeState(NamedTuple):
    """What is chosen, and what follows from it."""

    choice: RecomputeChoice
    extra_ns: I64  # n: ns that each op takes more than by its fastest variant
    duration: I64  # n: ns that it takes
    size: I64  # B: bytes of each buffer, workspaces by the variant that runs
    targets: I64  # n: how many values are recomputed to stay at each place
    added_ns: I64  # n: ns of the replay
    scratch: I64  # n: bytes that it needs beside what is live there
    live: I64  # 2 n: live bytes at each position, without scratch
    occupied: I64  # 2 n: with it
    points: I64  # 2 n + 1: positions at which the live bytes can exceed the limit, and those after them
    next_point: I64  # 2 n + 1: of each position, the first point there or later
    due: I64  # m: the position for which a swapped buffer has to be back, and in which iteration
    due_iteration: I64
    touched: Bool  # n x MARKS: buffers that the replay touches
    read_start: I64  # n: what it reads on the device is `reads[read_start:read_start + read_count]`
    read_count: I64
    reads: I64
    used: I64  # 2: points, and entries of `reads`

    @classmethod
    def of(cls, recompute: RecomputeProblem) -> RecomputeState:
        """Choose nothing; `propagate` has to follow."""
        columns = recompute.columns
        ops, gaps, any_droppable = len(columns.duration), len(columns.buffer), len(recompute.droppable) > 0
        due, due_iteration = np.zeros((2, gaps), np.int64)
        targets, added_ns, scratch, read_start, read_count = np.zeros((5, ops), np.int64)
        points, next_point = np.zeros((2, 2 * ops + 1), np.int64)
        return cls(
            choice=RecomputeChoice.of(recompute),
            extra_ns=np.zeros(ops, np.int64),
            duration=columns.duration.copy(),
            size=columns.size.copy(),
            targets=targets,
            added_ns=added_ns,
            scratch=scratch,
            live=recompute.live.copy(),
            occupied=np.zeros(2 * ops, np.int64),
            points=points,
            next_point=next_point,
            due=due,
            due_iteration=due_iteration,
            touched=np.zeros((ops if any_droppable else 0, MARKS), np.bool_),
            read_start=read_start,
            read_count=read_count,
            reads=np.zeros(READS * len(columns.origins.read) if any_droppable else 0, np.int64),
            used=np.zeros(2, np.int64),
        )

    def copy(self) -> RecomputeState:
        """Return a copy that shares nothing but `reads`, to which entries are only ever added."""
        columns: Any = zip(self._fields, self)
        return RecomputeState._make(column if name == "reads" else column.copy() for name, column in columns)


@jit
def copy_choice(target: RecomputeChoice, source: RecomputeChoice) -> None:
    """Copy what is chosen."""
    for gap in range(len(source.recompute_at)):
        target.recompute_at[gap], target.drop_at[gap] = source.recompute_at[gap], source.drop_at[gap]
    for row in range(len(source.variant)):
        target.variant[row] = source.variant[row]
    for buffer in range(len(source.held_until)):
        target.held_until[buffer] = source.held_until[buffer]
    for piece in range(source.pieces[0]):
        target.piece_value[piece] = source.piece_value[piece]
        target.piece_start[piece], target.piece_stop[piece] = source.piece_start[piece], source.piece_stop[piece]
    target.pieces[0] = source.pieces[0]


@jit
def copy_drops(recompute: RecomputeProblem, target: RecomputeState, source: RecomputeState) -> None:
    """Copy what is chosen, and what follows, to another state of the same search; `reads` is shared."""
    copy_choice(target.choice, source.choice)
    for gap in range(len(source.due)):
        target.due[gap], target.due_iteration[gap] = source.due[gap], source.due_iteration[gap]
    for row in range(len(source.choice.variant)):
        op, workspace = recompute.variants.op[row], recompute.variants.workspace[row]
        target.extra_ns[op], target.duration[op] = source.extra_ns[op], source.duration[op]
        target.size[workspace] = source.size[workspace]
    for place in range(len(source.added_ns)):
        # Most places have no replay on either side, and a row of marks each.
        if target.targets[place] or source.targets[place]:
            target.targets[place], target.added_ns[place] = source.targets[place], source.added_ns[place]
            target.scratch[place] = source.scratch[place]
            target.read_start[place], target.read_count[place] = source.read_start[place], source.read_count[place]
            target.touched[place] = source.touched[place]
    for position in range(len(source.live)):
        target.live[position], target.occupied[position] = source.live[position], source.occupied[position]
        target.points[position], target.next_point[position] = source.points[position], source.next_point[position]
    target.next_point[len(source.live)] = source.next_point[len(source.live)]
    target.used[POINTS] = source.used[POINTS]
    target.used[LOGGED] = source.used[LOGGED]


@jit
def compact_if_full(drops: RecomputeState) -> bool:
    """Compact `reads` where less than half of it is free; return whether that was so."""
    full: bool = 2 * drops.used[LOGGED] > len(drops.reads)
    if full:
        compact(drops)
    return full


@jit
def compact(drops: RecomputeState) -> None:
    """Forget what replays read that there are no more."""
    reads, count = drops.reads[: drops.used[LOGGED]].copy(), 0
    for place in range(len(drops.added_ns)):
        if drops.targets[place]:
            start = drops.read_start[place]
            drops.read_start[place] = count
            for entry in range(start, start + drops.read_count[place]):
                drops.reads[count] = reads[entry]
                count += 1
    drops.used[LOGGED] = count
