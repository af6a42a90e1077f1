"""Scores: what is evicted first is the storage with the lowest, as the printed heuristics have them.

A score is `time / (bytes * staleness)`, without some of its parts by some heuristics. The time is that of the storage
and of evicted storages about it::

    eq       of the classes of its evicted neighbours        msps   of all evicted ones that it is made of
    dtr      of all evicted ones that it is made of,         local  of none
             and of all that are made of it                  lru    no time and no bytes: what was used longest ago
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner
from gpumem.swap.dtr._classes import NOBODY, Classes, count_once
from gpumem.swap.dtr.storages import Remade
from gpumem.trace import I64, Bool

NOTHING, ALONE, SOURCES, CLASSES, NEIGHBOURHOOD = range(5)  # whose time counts


class Scoring(NamedTuple):
    """The parts of a heuristic's score."""

    time: int
    by_bytes: bool
    by_staleness: bool


HEURISTICS = {  # by the paper's names: h_DTR, h_DTR^eq, h_DTR^local, h_LRU, h_size, h_MSPS
    "dtr": Scoring(NEIGHBOURHOOD, True, True),
    "eq": Scoring(CLASSES, True, True),
    "local": Scoring(ALONE, True, True),
    "lru": Scoring(NOTHING, False, True),
    "size": Scoring(NOTHING, True, False),
    "msps": Scoring(SOURCES, True, False),
}


class Neighbourhoods(NamedTuple):
    """Of each storage what its evicted neighbourhood takes, as far as that is known."""

    above: I64  # ns of the evicted storages that it is made of, and these of
    below: I64  # ns of those made of it
    known_above: Bool
    known_below: Bool
    ignored: Bool  # what a walk that only counts strikes out
    seen: I64  # the last walk that came by
    todo: I64
    walks: I64  # 1


@inner
def unknown(storages: int) -> Neighbourhoods:
    """Return what nothing is known of."""
    rows, marks = np.zeros((4, storages), np.int64), np.zeros((3, storages), np.bool_)
    return Neighbourhoods(rows[0], rows[1], marks[0], marks[1], marks[2], rows[2], rows[3], np.zeros(1, np.int64))


@inner
def walk(s: Remade, r: Neighbourhoods, away: Bool, storage: int, ptr: I64, idx: I64, known: Bool) -> int:
    """Return the ns of all evicted storages that rows lead to from one; `known` is struck out of what is beyond."""
    r.walks[0] += 1
    time, count = 0, 1
    r.todo[0] = storage
    r.seen[storage] = r.walks[0]
    while count > 0:
        count -= 1
        at = r.todo[count]
        for k in range(ptr[at], ptr[at + 1]):
            other = idx[k]
            if r.seen[other] == r.walks[0]:
                continue
            r.seen[other] = r.walks[0]
            if away[other]:
                time += s.cost[other]
                r.todo[count] = other
                count += 1
            else:
                known[other] = False
    return time


@inner
def changed(s: Remade, r: Neighbourhoods, away: Bool, storage: int) -> None:
    """Forget what is known of all that has this storage, which went or came, in its evicted neighbourhood."""
    walk(s, r, away, storage, s.need_ptr, s.need, r.known_below)
    walk(s, r, away, storage, s.user_ptr, s.user, r.known_above)
    r.known_above[storage] = r.known_below[storage] = False


@inner
def time_of(kind: int, s: Remade, r: Neighbourhoods, c: Classes, away: Bool, storage: int) -> int:
    """The ns that count for a storage on the device."""
    if kind == NOTHING:
        return 1
    time: int = s.cost[storage]
    if kind == CLASSES:
        c.used[1] += 1
        for k in range(s.need_ptr[storage], s.need_ptr[storage + 1]):
            if c.node[s.need[k]] != NOBODY:
                time += count_once(c, s.need[k])
        for k in range(s.user_ptr[storage], s.user_ptr[storage + 1]):
            if c.node[s.user[k]] != NOBODY:
                time += count_once(c, s.user[k])
    if kind in (SOURCES, NEIGHBOURHOOD):
        if not r.known_above[storage]:
            r.above[storage] = walk(s, r, away, storage, s.need_ptr, s.need, r.ignored)
            r.known_above[storage] = True
        time += r.above[storage]
    if kind == NEIGHBOURHOOD:
        if not r.known_below[storage]:
            r.below[storage] = walk(s, r, away, storage, s.user_ptr, s.user, r.ignored)
            r.known_below[storage] = True
        time += r.below[storage]
    return time


@inner
def score_of(how: Scoring, time: int, size: int, stale: int) -> float:
    """The score of a storage; infinite where it has no bytes or was used just now, and these count."""
    under = 1.0
    if how.by_bytes:
        under *= size
    if how.by_staleness:
        under *= stale
    return time / under if under > 0 else np.inf
