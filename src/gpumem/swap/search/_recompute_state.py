"""Values that a state drops and makes again, and ways in which ops run: what runs where, what it takes and holds.

A dropped gap `g` is made again right before op `at[g]`; all that is made again at one place is one replay::

    op                          at
    [ a ] ................. [ reruns ][ op ] ... [ b ]      a dropped gap
    [ a ] ===[out]....[in]============ reads ====[ b ]      a swapped one is due at the earliest replay that reads it

One drop more or less changes the replays that lie over its gap and touch its buffer, no others; only these are made
anew. So are those that run an op which takes another of its ways. Exact: loads and times are those of the trace that
`Plan.apply` makes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.facts.recompute_cost import MadeAgain, loads, replayed
from gpumem.swap.plan.gaps import Windows
from gpumem.swap.plan.replay import FREE, ON_DEVICE, closure, sources
from gpumem.swap.search._operator_choices import Ways
from gpumem.trace import F64, I64, Bool

MARKS = 256  # buffers that a replay touches are marked by their number modulo this


class Replays(NamedTuple):
    """What drops do not change: the gaps of a search as `recompute_cost` sees them. m gaps, n ops, B buffers."""

    made: MadeAgain
    ways: Ways
    load: I64  # 2 n: bytes at each position with nothing dropped
    until: I64  # B: until when a dead buffer is held, -1 where it is not
    lasts: I64  # m: the last place at which a gap's value can be made again; 0 where it cannot
    worth: F64  # m: bytes per ns of making a value again, all else being there
    can: I64  # the gaps that can be dropped
    after: I64  # m: the op before the gap, counted on from the iteration in which the value was made
    first: I64  # B: the gaps of each buffer are `first` up to `stop`
    stop: I64
    goal: int  # bytes that the load may come to

    @classmethod
    def of(cls, made: MadeAgain, ways: Ways, until: I64, w: Windows, lasts: I64, worth: F64, goal: int) -> Replays:
        """Take the gaps of `w`, which ascend by buffer."""
        count = np.arange(len(made.size))
        first, stop = (np.searchsorted(w.buffer, count, side=side).astype(np.int64) for side in ("left", "right"))
        load = loads(made, np.zeros_like(lasts), until)
        return cls(made, ways, load, until, lasts, worth, np.flatnonzero(lasts), w.after, first, stop, goal)


class Drops(NamedTuple):
    """What is made again before which op, which way each op runs, and what follows from it."""

    at: I64  # m: right before which op; 0 where the gap is not dropped
    by: I64  # c: which way each op with a choice runs
    longer: I64  # n: ns that each op takes more than by its fastest
    duration: I64  # n: ns that it takes
    size: I64  # B: bytes of each buffer, workspaces by what runs
    wanted: I64  # n: how many of them at each place
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
        """Drop nothing."""
        n, m, places = len(r.made.duration), len(r.made.buffer), len(r.can) > 0
        at, due, due_turn = (np.zeros(m, np.int64) for _ in range(3))
        runs = (r.ways.first[:-1].copy(), np.zeros(n, np.int64), r.made.duration.copy(), r.made.size.copy())
        wanted, added, beside, start, length = (np.zeros(n, np.int64) for _ in range(5))
        points, next_point = (np.zeros(2 * n + 1, np.int64) for _ in range(2))
        marks = np.zeros((n if places else 0, MARKS), np.bool_)
        read = np.zeros(64 * len(r.made.origins.read) if places else 0, np.int64)
        held, load = np.zeros(2 * n, np.int64), r.load.copy()
        follows = (wanted, added, beside, load, held, points, next_point, due, due_turn)
        d = cls(at, *runs, *follows, marks, start, length, read, np.zeros(2, np.int64))
        settle(r, d)
        return d

    def copy(self) -> Drops:
        """Return a copy that shares nothing but what is only ever added to."""
        return Drops._make(c if name == "read" else c.copy() for name, c in zip(self._fields, self))


@jit
def remember(r: Replays, to: Drops, d: Drops) -> None:
    """Copy what is dropped, which ways ops run, and what follows, to another one of the same search."""
    for g in range(len(d.at)):
        to.at[g], to.due[g], to.due_turn[g] = d.at[g], d.due[g], d.due_turn[g]
    for k in range(len(d.by)):
        op, own = r.ways.op[k], r.ways.own[k]
        to.by[k], to.longer[op] = d.by[k], d.longer[op]
        to.duration[op], to.size[own] = d.duration[op], d.size[own]
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
def drop(r: Replays, d: Drops, g: int, at: int) -> bool:
    """Make the value of gap `g` again right before op `at`, or keep it if that is 0; `settle` has to follow.

    False, and all is half done, where some value cannot be made again, or there is no room to note what is read.
    """
    old, b, after = d.at[g], r.made.buffer[g], r.made.after[g]
    d.at[g] = at
    for q in range(2 * after + 2, 2 * max(old, at)):
        d.load[q] += r.made.size[b] * (int(q < 2 * old) - int(q < 2 * at))
    d.wanted[old] -= old > 0
    d.wanted[at] += at > 0
    for q in range(after + 1, max(old, at) + 1):
        if d.wanted[q] == 0:
            if q == old:
                d.added[q] = d.beside[q] = d.length[q] = 0
        elif (q in (old, at) or d.marks[q, b % MARKS]) and not _replay(r, d, q):
            return False
    return True


@jit
def choose(r: Replays, d: Drops, k: int, way: int) -> bool:
    """Run the op of row `k` of `r.ways` by another way, in replays too; `settle` has to follow. False as in `drop`."""
    op, own = r.ways.op[k], r.ways.own[k]
    _run_by(r, d, k, way)
    for q in range(op + 1, len(d.added)):
        if d.wanted[q] and d.marks[q, own % MARKS] and not _replay(r, d, q):
            return False
    return True


@inner
def _run_by(r: Replays, d: Drops, k: int, way: int) -> None:
    """Let the op of a row run by another way, and say nothing yet of its reruns."""
    op, own, longer, size = r.ways.op[k], r.ways.own[k], r.ways.longer[way], r.ways.size[way]
    d.load[2 * op + 1] += size - d.size[own]
    d.duration[op] += longer - d.longer[op]
    d.by[k], d.longer[op], d.size[own] = way, longer, size


@inner
def _replay(r: Replays, d: Drops, place: int) -> bool:
    """Find out what runs again at a place."""
    m, v = r.made, r.made.origins
    absent = np.zeros(len(m.size), np.bool_)
    wanted, count = np.zeros(d.wanted[place], np.int64), 0
    for g in range(len(d.at)):
        if m.after[g] < place <= d.at[g]:
            absent[m.buffer[g]] = True
            if d.at[g] == place:
                wanted[count] = g
                count += 1
    again = np.zeros(len(m.duration), np.bool_)
    none = np.full(len(m.size), -1)
    stuck, _ = closure(v, m.first[wanted], m.stop[wanted], place, absent, r.until, none, again)
    ops = np.flatnonzero(again[:place])
    if stuck != FREE:
        return False
    first, last = np.full(m.values[0], -1), np.full(m.values[0], -1)
    scratch = np.ones(m.values[0], np.bool_)
    d.beside[place], d.added[place] = replayed(
        m, d.size, d.duration, wanted, place, absent, r.until, ops, first, last, scratch
    )
    _, read, whole = sources(v, ops, place, absent, r.until, none)
    return _note(r, d, place, ops, read, whole)


@inner
def _note(r: Replays, d: Drops, place: int, ops: I64, read: I64, whole: I64) -> bool:
    """Note what a replay touches, and what it reads on the device; False where there is no room for that.

    Of what it writes, the workspaces of ops with a choice are marked.
    """
    d.marks[place] = False
    d.start[place] = d.used[1]
    for op in ops:
        if r.ways.row[op] >= 0:
            d.marks[place, r.ways.own[r.ways.row[op]] % MARKS] = True
    if d.used[1] + len(read) > len(d.read):
        return False
    for k in range(len(read)):
        d.marks[place, read[k] % MARKS] = True
        if whole[k] == ON_DEVICE:
            d.read[d.used[1]] = read[k]
            d.used[1] += 1
    d.length[place] = d.used[1] - d.start[place]
    return True


@jit
def settle(r: Replays, d: Drops) -> None:
    """Find what follows for the load and for swapped gaps."""
    n = len(d.added)
    for g in range(len(d.at)):
        d.due[g], d.due_turn[g] = 2 * (r.made.before[g] % n) + 1, (r.after[g] + _length(r, g)) // n
    for place in range(n):
        if d.wanted[place]:
            for k in range(d.start[place], d.start[place] + d.length[place]):
                _needed(r, d, d.read[k], place)
    _points(r, d)


@inner
def _needed(r: Replays, d: Drops, b: int, place: int) -> None:
    """Let buffer `b` be back before the reruns of a place."""
    n = len(d.added)
    for g in range(r.first[b], r.stop[b]):
        after = r.made.after[g] % n
        length = (d.due[g] // 2 - after - 1) % n + 1
        far = (place - after - 1) % n + 1
        if far < length or (far == length and d.due[g] % 2):
            d.due[g], d.due_turn[g] = 2 * place, (r.after[g] + far) // n


@inner
def _length(r: Replays, g: int) -> int:
    return int(r.made.before[g] - r.made.after[g])


@inner
def _points(r: Replays, d: Drops) -> None:
    """Find the positions at which the load can be too high, and the next ones, where copies end and begin."""
    n, count = len(d.added), 0
    for q in range(2 * n):
        d.held[q] = d.load[q] + (d.beside[q // 2] if q % 2 == 0 else 0)
    high = d.held[2 * n - 1] > r.goal
    for q in range(2 * n):
        d.next_point[q] = count
        if q % 2 or d.wanted[q // 2]:
            now = d.held[q] > r.goal
            if now or high:
                d.points[count] = q
                count += 1
            high = now
    d.next_point[2 * n] = d.used[0] = count


@jit
def fill(r: Replays, d: Drops, at: I64, by: I64) -> bool:
    """Drop just what `at` says, and run ops by the ways `by`; False, and all is half done, where that cannot be."""
    fine, m = True, r.made
    d.wanted[:], d.added[:], d.beside[:], d.length[:], d.used[1] = 0, 0, 0, 0, 0
    for q in range(len(d.load)):
        d.load[q] = r.load[q]
    for k in range(len(by)):
        d.size[r.ways.own[k]] = r.made.size[r.ways.own[k]]
        _run_by(r, d, k, by[k])
    for g in range(len(at)):
        d.at[g] = at[g]
        d.wanted[at[g]] += at[g] > 0
        for q in range(2 * m.after[g] + 2, 2 * at[g]):
            d.load[q] -= m.size[m.buffer[g]]
    for place in range(len(d.added)):
        if d.wanted[place]:
            fine = fine and _replay(r, d, place)
    settle(r, d)
    return fine


@jit
def tidy(r: Replays, d: Drops) -> None:
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
