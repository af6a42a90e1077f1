"""The simulated runtime of DTR: one iteration, op by op, that evicts when it is short of memory (the paper's figure 1).

Before an op all that it reads is locked; what is evicted is made again, in turn, by what it was made of. Each of these
and the op itself first evict until there is room: the storage with the lowest score among those that nobody has locked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.dtr._classes import NOBODY, Classes, alone, classes, leave
from gpumem.swap.dtr._device import (
    AGAIN,
    CLOCK,
    GONE,
    HELD,
    PEAK,
    POOL,
    RERUNS,
    STAYS,
    DeviceState,
    ResidencyIntervals,
    come,
    empty_device,
    go,
    lock,
    note,
    put,
    unlock,
)
from gpumem.swap.dtr.scores import (
    CLASSES,
    NEIGHBOURHOOD,
    SOURCES,
    Neighbourhoods,
    Scoring,
    changed,
    score_of,
    time_of,
    unknown,
)
from gpumem.swap.dtr.storages import Remade
from gpumem.swap.facts.union_find import join
from gpumem.trace import I64, Bool

RAN, NO_ROOM, TOO_LONG = range(3)  # how an iteration ended
EVICT, IGNORE, BANISH = range(3)  # what becomes of a storage that nobody refers to
POLICIES = {"evict": EVICT, "ignore": IGNORE, "banish": BANISH}


class OnlineRun(NamedTuple):
    """What an iteration within a budget came to.

    `how` it ended: `RAN`, `NO_ROOM` where nothing was left to evict, `TOO_LONG`; `op`: the last one that was begun.
    `base`: ns of all ops, `again`: ns of the reruns. `peak`: bytes. `stays`: when each storage was on the device.
    """

    how: int
    op: int
    base: int
    again: int
    reruns: int
    evictions: int
    peak: int
    stays: ResidencyIntervals


class _Runtime(NamedTuple):
    s: Remade
    d: DeviceState
    c: Classes
    r: Neighbourhoods
    how: Scoring
    policy: int


class _Waiting(NamedTuple):
    """What is being made, each for the sake of the one before it: rows of `Remade.need`."""

    row: I64
    entry: I64  # of the row: the next one to look at
    lacking: Bool  # of each entry: it was not there when its row was begun


@jit
def follow(s: Remade, budget: int, how: Scoring, policy: int, most: int, room: int) -> OnlineRun:
    """Run an iteration; it stops where reruns take more than `most` ns, or more than `room` storages were evicted."""
    n, count = len(s.duration), len(s.size)
    nodes = 2 * count + room + 1 if how.time == CLASSES else 1
    d = empty_device(count, count + room + 1)
    x = _Runtime(s, d, classes(count, nodes), unknown(count), how, policy)
    depth = np.zeros((2, count + 1), np.int64)
    w = _Waiting(depth[0], depth[1], np.zeros(len(s.need), np.bool_))
    ended, op = RAN, 0
    for op in range(n):
        _begun(x, op)
        ended = _make(x, w, budget, op, most, room)
        if ended != RAN:
            break
        for k in range(s.end_ptr[op], s.end_ptr[op + 1]):
            _release(x, s.end[k], op)
    for b in range(count):  # what is there at the end
        if d.here[b]:
            note(d, b, n)
    rows, m = d.tally[STAYS], d.tally
    stays = ResidencyIntervals(d.stays.storage[:rows], d.stays.first[:rows], d.stays.until[:rows], d.stays.read[:rows])
    return OnlineRun(ended, op, s.duration.sum(), m[AGAIN], m[RERUNS], m[GONE], m[PEAK], stays)


@inner
def _begun(x: _Runtime, op: int) -> None:
    """What an op will make is a neighbour from now on, though one that takes nothing."""
    if x.how.time == CLASSES:
        for k in range(x.s.start_ptr[op], x.s.start_ptr[op + 1]):
            alone(x.c, x.s.start[k], 0)


@inner
def _make(x: _Runtime, w: _Waiting, budget: int, op: int, most: int, room: int) -> int:
    """Run an op, and before it whatever it takes: depth first."""
    depth, final = 0, len(x.s.size) + op
    _lock_all(x, w, 0, final)
    while depth >= 0:
        k = _next(x, w, depth)
        if k != NOBODY:
            depth += 1
            _lock_all(x, w, depth, x.s.need[k])
            continue
        row = w.row[depth]
        new = _begin_bytes(x.s, op) if row == final else x.s.scratch[row]
        ended = _free(x, budget - x.s.before[op] - new, op, room)
        if ended != RAN:
            return ended
        x.d.tally[PEAK] = max(x.d.tally[PEAK], x.d.tally[HELD] + x.s.before[op] + new)
        if row == final:
            _run(x, op)
        else:
            _rerun(x, row, op)
        _unlock_all(x, row, op)
        if x.d.tally[AGAIN] > most:
            return TOO_LONG
        depth -= 1
    return RAN


@inner
def _lock_all(x: _Runtime, w: _Waiting, depth: int, row: int) -> None:
    """Begin a row: lock what is there of all that it needs; each counts as used now."""
    s, d = x.s, x.d
    w.row[depth], w.entry[depth] = row, s.need_ptr[row]
    for k in range(s.need_ptr[row], s.need_ptr[row + 1]):
        b = s.need[k]
        d.used[b] = d.tally[CLOCK]
        w.lacking[k] = not d.here[b]
        if d.here[b]:
            lock(d, b)


@inner
def _next(x: _Runtime, w: _Waiting, depth: int) -> int:
    """The next entry that is not there; those that came are locked on the way. `NOBODY` where all are there."""
    s, d = x.s, x.d
    stop = s.need_ptr[w.row[depth] + 1]
    while w.entry[depth] < stop:
        k = w.entry[depth]
        if w.lacking[k]:
            if not d.here[s.need[k]]:
                return int(k)
            lock(d, s.need[k])
        w.entry[depth] += 1
    return NOBODY


@inner
def _unlock_all(x: _Runtime, row: int, op: int) -> None:
    """End a row; what it needed may be banished."""
    s, d = x.s, x.d
    for k in range(s.need_ptr[row], s.need_ptr[row + 1]):
        unlock(d, s.need[k])
    if x.policy == BANISH:
        for k in range(s.need_ptr[row], s.need_ptr[row + 1]):
            if d.dead[s.need[k]]:
                _banish(x, s.need[k], op)


@inner
def _begin_bytes(s: Remade, op: int) -> int:
    """The bytes of all that begins at an op."""
    found: int = s.fixed[op] - s.before[op]
    for k in range(s.start_ptr[op], s.start_ptr[op + 1]):
        found += s.size[s.start[k]]
    return found


@inner
def _free(x: _Runtime, most: int, op: int, room: int) -> int:
    """Evict until storages hold no more than `most` bytes."""
    while x.d.tally[HELD] > most:
        victim = _victim(x)
        if victim == NOBODY:
            return NO_ROOM
        if x.d.tally[GONE] >= room:
            return TOO_LONG
        x.d.tally[GONE] += 1
        _evict(x, victim, op)
    return RAN


@inner
def _victim(x: _Runtime) -> int:
    """The storage with the lowest score: of equal ones the last in the pool, of several 0 the first, as in simrd."""
    d, best, lowest, rank = x.d, NOBODY, np.inf, 0
    for k in range(d.tally[POOL]):
        b = d.pool[k]
        time = time_of(x.how.time, x.s, x.r, x.c, d.away, b)
        score = score_of(x.how, time, x.s.size[b], d.tally[CLOCK] - d.used[b])
        order = d.order[b] if score == 0 else -d.order[b]
        if best == NOBODY or score < lowest or (score == lowest and order < rank):
            best, lowest, rank = b, score, order
    return best


@inner
def _run(x: _Runtime, op: int) -> None:
    """Run an op for the first time."""
    s, d = x.s, x.d
    d.tally[CLOCK] += s.duration[op]
    for k in range(s.start_ptr[op], s.start_ptr[op + 1]):
        come(d, s.start[k], s.size[s.start[k]], op)
        if x.how.time == CLASSES:
            leave(x.c, s.start[k], s.cost[s.start[k]])
    for k in range(s.ready_ptr[op], s.ready_ptr[op + 1]):
        d.used[s.made[k]] = d.tally[CLOCK]
        put(d, s.made[k])
        _changed(x, s.made[k])


@inner
def _rerun(x: _Runtime, storage: int, op: int) -> None:
    """Run a chain again; what it makes besides stays as well, and a second one of what is there goes at once."""
    s, d = x.s, x.d
    d.tally[CLOCK] += s.cost[storage]
    d.tally[AGAIN] += s.cost[storage]
    d.tally[RERUNS] += 1
    for k in range(s.need_ptr[storage], s.need_ptr[storage + 1]):
        if d.since[s.need[k]] < op:
            d.read[s.need[k]] = op
    _back(x, storage, op)
    for k in range(s.beside_ptr[storage], s.beside_ptr[storage + 1]):
        if d.away[s.beside[k]]:
            _back(x, s.beside[k], op)


@inner
def _back(x: _Runtime, storage: int, op: int) -> None:
    """A storage is on the device again."""
    come(x.d, storage, x.s.size[storage], op)
    put(x.d, storage)
    if x.how.time == CLASSES:
        leave(x.c, storage, x.s.cost[storage])
    _changed(x, storage)


@inner
def _evict(x: _Runtime, storage: int, place: int) -> None:
    """Take a storage off the device; until `place` begins it was there."""
    s, c = x.s, x.c
    go(x.d, storage, s.size[storage], place)
    x.d.away[storage] = True
    if x.how.time == CLASSES:
        alone(c, storage, s.cost[storage])
        for k in range(s.need_ptr[storage], s.need_ptr[storage + 1]):
            if c.node[s.need[k]] != NOBODY:
                join(c.above, c.worth, c.node[storage], c.node[s.need[k]])
        for k in range(s.user_ptr[storage], s.user_ptr[storage + 1]):
            if c.node[s.user[k]] != NOBODY:
                join(c.above, c.worth, c.node[storage], c.node[s.user[k]])
    _changed(x, storage)


@inner
def _changed(x: _Runtime, storage: int) -> None:
    if x.how.time in (SOURCES, NEIGHBOURHOOD):
        changed(x.s, x.r, x.d.away, storage)


@inner
def _release(x: _Runtime, storage: int, op: int) -> None:
    """Nobody refers to a storage any more after an op."""
    x.d.dead[storage] = True
    if x.policy == EVICT and x.d.here[storage]:
        _evict(x, storage, op + 1)
    elif x.policy == BANISH:
        _banish(x, storage, op + 1)


@inner
def _banish(x: _Runtime, storage: int, place: int) -> None:
    """Free a storage for good if nothing that was made of it is evicted; all that stays where it is from then on."""
    s, d = x.s, x.d
    for k in range(s.user_ptr[storage], s.user_ptr[storage + 1]):
        if d.away[s.user[k]]:
            return
    if d.here[storage]:
        go(d, storage, s.size[storage], place)
    d.away[storage] = False
    if x.c.node[storage] != NOBODY:
        leave(x.c, storage, s.cost[storage])
    _changed(x, storage)
    for k in range(s.user_ptr[storage], s.user_ptr[storage + 1]):
        user = s.user[k]
        if d.here[user] and not d.bound[user]:
            d.bound[user] = True
            lock(d, user)
