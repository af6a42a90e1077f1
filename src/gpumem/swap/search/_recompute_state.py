"""What a state drops, makes again and holds, by which ways its ops run, and what follows from that.

A dropped gap `g` is made again right before op `at[g]`; all that is made again at one place is one replay::

    op                          at
    [ a ] ................. [ reruns ][ op ] ... [ b ]      a dropped gap
    [ a ] ===|.........................[reruns] .[ b ]      it may stay until op `later[g]`, for replays up to there
    [ a ] ===[out]....[in]============ reads ====[ b ]      a swapped one is due at the earliest replay that reads it

What a replay makes may stay as a piece, up to an op, and a dead buffer may outlive its death until one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpumem.base.jit import jit
from gpumem.swap.facts.recompute_cost import MadeAgain
from gpumem.swap.plan.gaps import Windows
from gpumem.swap.search._operator_choices import Ways
from gpumem.trace import F64, I64, Bool

MARKS = 256  # buffers that a replay touches are marked by their number modulo this
PIECES = 4096  # that can be held beside their buffers; DTR's plans of its own eight logs have up to some hundreds


class Replays(NamedTuple):
    """What drops do not change: the gaps of a search as `recompute_cost` sees them. m gaps, n ops, B buffers."""

    made: MadeAgain
    ways: Ways
    load: I64  # 2 n: bytes at each position with nothing dropped
    value_of: I64  # B + 1: the values of each buffer are `value_of[b]:value_of[b + 1]`
    lasts: I64  # m: the last place at which a gap's value can be made again; 0 where it cannot
    worth: F64  # m: bytes per ns of making a value again, all else being there
    can: I64  # the gaps that can be dropped
    after: I64  # m: the op before the gap, counted on from the iteration in which the value was made
    first: I64  # B: the gaps of each buffer are `first` up to `stop`
    stop: I64
    goal: int  # bytes that the load may come to

    @classmethod
    def of(cls, made: MadeAgain, ways: Ways, w: Windows, lasts: I64, worth: F64, goal: int) -> Replays:
        """Take the gaps of `w`, which ascend by buffer."""
        count = np.arange(len(made.size))
        first, stop = (np.searchsorted(w.buffer, count, side=side).astype(np.int64) for side in ("left", "right"))
        value_of = np.searchsorted(made.holder, np.append(count, len(count))).astype(np.int64)
        return cls(made, ways, made.load, value_of, lasts, worth, np.flatnonzero(lasts), w.after, first, stop, goal)


class Decided(NamedTuple):
    """What a state is, apart from what is swapped, and all that a plan says of it."""

    at: I64  # m: before which op each gap is made again; 0 where it is not dropped
    later: I64  # m: before which op it is dropped, if that is later than right after its access; else 0
    by: I64  # c: which way each op with a choice runs
    until: I64  # B: until when a dead buffer is held, -1 where it is not
    value: I64  # PIECES: what is held beside its buffer, and
    start: I64  # made again right before which op
    stop: I64  # until which op
    pieces: I64  # 1: so many of these there are

    @classmethod
    def of(cls, r: Replays) -> Decided:
        """Choose nothing."""
        at, later = np.zeros((2, len(r.lasts)), np.int64)
        value, start, stop = np.zeros((3, PIECES), np.int64)
        until, pieces = np.full(len(r.made.size), -1), np.zeros(1, np.int64)
        return cls(at, later, r.ways.first[:-1].copy(), until, value, start, stop, pieces)

    def copy(self) -> Decided:
        """Return a copy that shares nothing."""
        return Decided._make(column.copy() for column in self)


class Drops(NamedTuple):
    """What is chosen, and what follows from it."""

    c: Decided
    longer: I64  # n: ns that each op takes more than by its fastest
    duration: I64  # n: ns that it takes
    size: I64  # B: bytes of each buffer, workspaces by what runs
    wanted: I64  # n: how many values come back or are to stay at each place
    added: I64  # n: ns of the reruns
    beside: I64  # n: bytes that they need beside what is held there
    load: I64  # 2 n: bytes held at each position, without scratch
    held: I64  # 2 n: with it
    points: I64  # 2 n + 1: positions at which the load can be too high, and those after them
    next_point: I64  # 2 n + 1: of each position, the first point there or later
    due: I64  # m: the position for which a swapped buffer has to be back, and in which turn
    due_turn: I64
    marks: Bool  # n x MARKS: buffers that the reruns touch
    start: I64  # n: what they read on the device is `read[start:start + length]`
    length: I64
    read: I64
    used: I64  # 2: points, and entries of `read`

    @classmethod
    def of(cls, r: Replays) -> Drops:
        """Choose nothing; `settle` has to follow."""
        n, m, places = len(r.made.duration), len(r.made.buffer), len(r.can) > 0
        due, due_turn = np.zeros((2, m), np.int64)
        runs = (np.zeros(n, np.int64), r.made.duration.copy(), r.made.size.copy())
        wanted, added, beside, start, length = np.zeros((5, n), np.int64)
        points, next_point = np.zeros((2, 2 * n + 1), np.int64)
        marks = np.zeros((n if places else 0, MARKS), np.bool_)
        read = np.zeros(64 * len(r.made.origins.read) if places else 0, np.int64)
        held, load = np.zeros(2 * n, np.int64), r.load.copy()
        follows = (wanted, added, beside, load, held, points, next_point, due, due_turn)
        return cls(Decided.of(r), *runs, *follows, marks, start, length, read, np.zeros(2, np.int64))

    def copy(self) -> Drops:
        """Return a copy that shares nothing but what is only ever added to."""
        columns: Any = zip(self._fields, self)
        return Drops._make(c if name == "read" else c.copy() for name, c in columns)


@jit
def choose_all(to: Decided, c: Decided) -> None:
    """Copy what is chosen."""
    for g in range(len(c.at)):
        to.at[g], to.later[g] = c.at[g], c.later[g]
    for k in range(len(c.by)):
        to.by[k] = c.by[k]
    for b in range(len(c.until)):
        to.until[b] = c.until[b]
    for k in range(c.pieces[0]):
        to.value[k], to.start[k], to.stop[k] = c.value[k], c.start[k], c.stop[k]
    to.pieces[0] = c.pieces[0]


@jit
def remember(r: Replays, to: Drops, d: Drops) -> None:
    """Copy what is chosen, and what follows, to another one of the same search."""
    choose_all(to.c, d.c)
    for g in range(len(d.due)):
        to.due[g], to.due_turn[g] = d.due[g], d.due_turn[g]
    for k in range(len(d.c.by)):
        op, own = r.ways.op[k], r.ways.own[k]
        to.longer[op], to.duration[op], to.size[own] = d.longer[op], d.duration[op], d.size[own]
    for i in range(len(d.added)):
        if to.wanted[i] or d.wanted[i]:
            to.wanted[i], to.added[i], to.beside[i] = d.wanted[i], d.added[i], d.beside[i]
            to.start[i], to.length[i] = d.start[i], d.length[i]
            to.marks[i] = d.marks[i]
    for q in range(len(d.load)):
        to.load[q], to.held[q], to.points[q], to.next_point[q] = d.load[q], d.held[q], d.points[q], d.next_point[q]
    to.next_point[len(d.load)] = d.next_point[len(d.load)]
    to.used[0] = d.used[0]
    to.used[1] = d.used[1]


@jit
def make_room(d: Drops) -> bool:
    """Tidy up where less than half of the room for what replays read is left; return whether that was so."""
    full: bool = 2 * d.used[1] > len(d.read)
    if full:
        tidy(d)
    return full


@jit
def tidy(d: Drops) -> None:
    """Forget what replays read that there are no more."""
    read, count = d.read[: d.used[1]].copy(), 0
    for place in range(len(d.added)):
        if d.wanted[place]:
            start = d.start[place]
            d.start[place] = count
            for k in range(start, start + d.length[place]):
                d.read[count] = read[k]
                count += 1
    d.used[1] = count
