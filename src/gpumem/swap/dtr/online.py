"""The simulated runtime of DTR: one iteration, op by op, that evicts when it is short of memory (figure 1 of the paper).

Before an op all that it reads is locked; what is evicted is made again, in turn, by what it was made of. Each of these
and the op itself first evict until there is room: the storage with the lowest score among those that nobody has locked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.dtr._classes import NOBODY, Classes, alone, classes, join, leave
from gpumem.swap.dtr.scores import CLASSES, NEIGHBOURHOOD, SOURCES, Reach, Score, changed, reaches, score_of, time_of
from gpumem.swap.dtr.storages import Storages
from gpumem.trace import I64, Bool

RAN, NO_ROOM, TOO_LONG = range(3)  # how an iteration ended
EVICT, IGNORE, BANISH = range(3)  # what becomes of a storage that nobody refers to
POLICIES = {"evict": EVICT, "ignore": IGNORE, "banish": BANISH}
HELD, CLOCK, AGAIN, POOL, PUT, STAYS, GONE, RERUNS, PEAK = range(9)  # counts of a run


class Stays(NamedTuple):
    """Rows over the times that storages were on the device: from the place before `first` until `until` begins.

    `read`: the last place in there at which a rerun read it, -1 where none did. A row without a storage is none.
    """

    storage: I64
    first: I64
    until: I64
    read: I64


class Run(NamedTuple):
    """What an iteration within a budget came to."""

    how: int  # `RAN`, or where it stopped
    op: int  # the last one that was begun
    base: int  # ns of all ops
    again: int  # ns of all reruns
    reruns: int
    evictions: int
    peak: int  # bytes
    stays: Stays


class _Device(NamedTuple):
    """The device and what is known of it."""

    here: Bool  # the storage is on the device
    away: Bool  # it was evicted
    locks: I64
    used: I64  # ns: when it was used last
    pool: I64  # what may be evicted; count[POOL] of them
    place: I64  # where in the pool, -1 where it is not
    order: I64  # when it came there
    since: I64  # the place from which on it is on the device
    read: I64  # the last place at which a rerun found it there
    row: I64  # the last row of `stays` that it has
    stays: Stays
    count: I64


class _Work(NamedTuple):
    """What is being made, one for the sake of the one before it."""

    row: I64
    next: I64  # the next entry of the row to look at
    wanted: Bool  # of each entry: it was not there when the row was begun


@jit
def follow(s: Storages, budget: int, how: Score, policy: int, most: int, room: int) -> Run:
    """Run an iteration; it stops where reruns take more than `most` ns, or more than `room` storages were evicted."""
    n, count = len(s.duration), len(s.size)
    d = _device(count, room)
    c, r = classes(count, count + room + 1 if how.time == CLASSES else 1), reaches(count)
    w = _Work(np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64), np.zeros(len(s.need), np.bool_))
    ended, op = RAN, 0
    for op in range(n):
        if how.time == CLASSES:
            for k in range(s.start_ptr[op], s.start_ptr[op + 1]):
                alone(c, s.start[k], 0)
        ended = _make(s, d, w, c, r, how, budget, op, most, room)
        if ended != RAN:
            break
        for k in range(s.end_ptr[op], s.end_ptr[op + 1]):
            _release(s, d, c, r, how, policy, s.end[k], op)
    rows = d.count[STAYS]
    stays = Stays(d.stays.storage[:rows], d.stays.first[:rows], d.stays.until[:rows], d.stays.read[:rows])
    return Run(
        ended, op, s.duration.sum(), d.count[AGAIN], d.count[RERUNS], d.count[GONE], d.count[PEAK], stays
    )


@inner
def _device(count: int, room: int) -> _Device:
    """An empty one."""
    rows, none, marks = np.zeros((5, count), np.int64), np.full((3, count), NOBODY), np.zeros((2, count), np.bool_)
    stays, counts = np.full((4, count + room + 1), -1), np.zeros(9, np.int64)
    counts[CLOCK] = 1
    return _Device(
        marks[0],
        marks[1],
        rows[0],
        rows[1],
        rows[2],
        none[0],
        rows[3],
        rows[4],
        none[1],
        none[2],
        Stays(stays[0], stays[1], stays[2], stays[3]),
        counts,
    )


@inner
def _make(
    s: Storages, d: _Device, w: _Work, c: Classes, r: Reach, how: Score, budget: int, op: int, most: int, room: int
) -> int:
    """Run an op, and before it whatever it takes; `w` holds what waits for what."""
    count, depth = len(s.size), 0
    _begin(s, d, w, 0, count + op)
    while depth >= 0:
        row = w.row[depth]
        k = _next(s, d, w, depth)
        if k >= 0:  # an entry that is to be made
            depth += 1
            _begin(s, d, w, depth, s.need[k])
            continue
        final = row == count + op
        bytes_ = _new_bytes(s, op) if final else s.scratch[row]
        while d.count[HELD] + s.before[op] + bytes_ > budget:
            victim = _victim(s, d, c, r, how)
            if victim == NOBODY:
                return NO_ROOM
            if d.count[GONE] >= room:
                return TOO_LONG
            d.count[GONE] += 1
            _evict(s, d, c, r, how, victim, op)
        d.count[PEAK] = max(d.count[PEAK], d.count[HELD] + s.before[op] + bytes_)
        if final:
            _run(s, d, c, r, how, op)
        else:
            _rerun(s, d, c, r, how, row, op)
        for k in range(s.need_ptr[row], s.need_ptr[row + 1]):
            _unlock(d, s.need[k])
        if d.count[AGAIN] > most:
            return TOO_LONG
        depth -= 1
    return RAN


@inner
def _begin(s: Storages, d: _Device, w: _Work, depth: int, row: int) -> None:
    """Lock what is there of all that a row needs."""
    w.row[depth], w.next[depth] = row, s.need_ptr[row]
    for k in range(s.need_ptr[row], s.need_ptr[row + 1]):
        d.used[s.need[k]] = d.count[CLOCK]
    for k in range(s.need_ptr[row], s.need_ptr[row + 1]):
        w.wanted[k] = not d.here[s.need[k]]
        if d.here[s.need[k]]:
            _lock(d, s.need[k])


@inner
def _next(s: Storages, d: _Device, w: _Work, depth: int) -> int:
    """The next entry that is not there, -1 where all are; those that are, by now, are locked on the way."""
    row = w.row[depth]
    while w.next[depth] < s.need_ptr[row + 1]:
        k = w.next[depth]
        if w.wanted[k]:
            if not d.here[s.need[k]]:
                return k
            _lock(d, s.need[k])
        w.next[depth] += 1
    return -1


@inner
def _new_bytes(s: Storages, op: int) -> int:
    """The bytes of all that begins at an op."""
    found = s.fixed[op] - s.before[op]
    for k in range(s.start_ptr[op], s.start_ptr[op + 1]):
        found += s.size[s.start[k]]
    return found


@inner
def _run(s: Storages, d: _Device, c: Classes, r: Reach, how: Score, op: int) -> None:
    """Run an op for the first time."""
    d.count[CLOCK] += s.duration[op]
    for k in range(s.start_ptr[op], s.start_ptr[op + 1]):
        b = s.start[k]
        d.here[b], d.since[b] = True, op
        d.count[HELD] += s.size[b]
        if how.time == CLASSES:
            leave(c, b, s.cost[b])
    for k in range(s.ready_ptr[op], s.ready_ptr[op + 1]):
        b = s.made[k]
        d.used[b] = d.count[CLOCK]
        _put(d, b)
        if how.time == SOURCES or how.time == NEIGHBOURHOOD:
            changed(s, r, d.away, b)


@inner
def _rerun(s: Storages, d: _Device, c: Classes, r: Reach, how: Score, storage: int, op: int) -> None:
    """Run a chain again; what it makes besides stays as well, and whatever was there already goes at once."""
    d.count[CLOCK] += s.cost[storage]
    d.count[AGAIN] += s.cost[storage]
    d.count[RERUNS] += 1
    for k in range(s.need_ptr[storage], s.need_ptr[storage + 1]):
        if d.since[s.need[k]] < op:
            d.read[s.need[k]] = op
    _back(s, d, c, r, how, storage, op)
    for k in range(s.beside_ptr[storage], s.beside_ptr[storage + 1]):
        if d.away[s.beside[k]]:
            _back(s, d, c, r, how, s.beside[k], op)


@inner
def _back(s: Storages, d: _Device, c: Classes, r: Reach, how: Score, storage: int, op: int) -> None:
    """A storage is on the device again."""
    d.here[storage], d.away[storage] = True, False
    d.count[HELD] += s.size[storage]
    d.since[storage], d.read[storage] = op, -1
    row = d.row[storage]
    if row >= 0 and d.stays.until[row] == op:  # it went at this very place: as if it had not
        d.since[storage], d.read[storage] = d.stays.first[row], d.stays.read[row]
        d.stays.storage[row] = NOBODY
        d.row[storage] = -1
    _put(d, storage)
    if how.time == CLASSES:
        leave(c, storage, s.cost[storage])
    elif how.time == SOURCES or how.time == NEIGHBOURHOOD:
        changed(s, r, d.away, storage)


@inner
def _evict(s: Storages, d: _Device, c: Classes, r: Reach, how: Score, storage: int, place: int) -> None:
    """Take a storage off the device; until `place` begins it was there."""
    d.here[storage], d.away[storage] = False, True
    d.count[HELD] -= s.size[storage]
    _take(d, storage)
    if d.since[storage] < place:
        row = d.count[STAYS]
        d.stays.storage[row], d.stays.first[row] = storage, d.since[storage]
        d.stays.until[row], d.stays.read[row] = place, d.read[storage]
        d.row[storage] = row
        d.count[STAYS] += 1
    if how.time == CLASSES:
        alone(c, storage, s.cost[storage])
        for k in range(s.need_ptr[storage], s.need_ptr[storage + 1]):
            if c.node[s.need[k]] != NOBODY:
                join(c, storage, s.need[k])
        for k in range(s.user_ptr[storage], s.user_ptr[storage + 1]):
            if c.node[s.user[k]] != NOBODY:
                join(c, storage, s.user[k])
    elif how.time == SOURCES or how.time == NEIGHBOURHOOD:
        changed(s, r, d.away, storage)


@inner
def _release(s: Storages, d: _Device, c: Classes, r: Reach, how: Score, policy: int, storage: int, op: int) -> None:
    """Nobody refers to a storage any more after an op."""
    if policy == EVICT and d.here[storage]:
        _evict(s, d, c, r, how, storage, op + 1)


@inner
def _victim(s: Storages, d: _Device, c: Classes, r: Reach, how: Score) -> int:
    """The storage with the lowest score: of equal ones the last in the pool, of several 0 the first, as in simrd."""
    best, lowest, rank = NOBODY, np.inf, 0
    for k in range(d.count[POOL]):
        b = d.pool[k]
        time = time_of(how.time, s, r, c, d.away, b)
        score = score_of(how, time, s.size[b], d.count[CLOCK] - d.used[b])
        order = d.order[b] if score == 0 else -d.order[b]
        if best == NOBODY or score < lowest or (score == lowest and order < rank):
            best, lowest, rank = b, score, order
    return best


@inner
def _put(d: _Device, storage: int) -> None:
    """Let a storage be evicted."""
    k = d.count[POOL]
    d.pool[k], d.place[storage], d.order[storage] = storage, k, d.count[PUT]
    d.count[POOL] += 1
    d.count[PUT] += 1


@inner
def _take(d: _Device, storage: int) -> None:
    """Let a storage not be evicted; the last of the pool takes its place."""
    k, last = d.place[storage], d.pool[d.count[POOL] - 1]
    d.pool[k], d.place[last] = last, k
    d.place[storage] = -1
    d.count[POOL] -= 1


@inner
def _lock(d: _Device, storage: int) -> None:
    if d.locks[storage] == 0:
        _take(d, storage)
    d.locks[storage] += 1


@inner
def _unlock(d: _Device, storage: int) -> None:
    d.locks[storage] -= 1
    if d.locks[storage] == 0:
        _put(d, storage)
