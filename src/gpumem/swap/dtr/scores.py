"""Scores: the storage with the lowest score is evicted first, by the heuristics as printed (section 4.1, appendix C).

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
from gpumem.swap.dtr._classes import NONE, Classes, begin_query, count_once
from gpumem.swap.dtr.storages import BufferRows, DtrStorages
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
    """Of each storage the ns of its evicted neighbourhood, kept until an eviction or a return changes it."""

    evicted: Bool  # the column of the device
    above: I64  # ns of the evicted storages that it is made of, and these of
    below: I64  # ns of those made of it
    known_above: Bool  # whether `above` is right
    known_below: Bool
    ignored: Bool  # where a walk that only counts clears marks
    seen: I64  # the last walk that came by
    pending: I64  # storages that a walk has still to leave
    walks: I64  # 1: how many there were


WALKS = 0  # the index of `Neighbourhoods.walks`


@inner
def no_neighbourhoods(evicted: Bool) -> Neighbourhoods:
    """Return neighbourhoods of which none is known; `evicted` is the column of the device."""
    rows, marks = np.zeros((4, len(evicted)), np.int64), np.zeros((3, len(evicted)), np.bool_)
    return Neighbourhoods(
        evicted=evicted,
        above=rows[0],
        below=rows[1],
        known_above=marks[0],
        known_below=marks[1],
        ignored=marks[2],
        seen=rows[2],
        pending=rows[3],
        walks=np.zeros(1, np.int64),
    )


@inner
def walk(storages: DtrStorages, around: Neighbourhoods, storage: int, rows: BufferRows, known: Bool) -> int:
    """Return the ns of all evicted storages that `rows` lead to from one, through evicted ones.

    Where the walk ends, at storages on the device, `known` is cleared: their neighbourhoods have this storage.
    """
    ptr, idx, seen, pending = rows.ptr, rows.idx, around.seen, around.pending
    around.walks[WALKS] += 1
    number = around.walks[WALKS]
    ns, count = 0, 1
    pending[0] = storage
    seen[storage] = number
    while count > 0:
        count -= 1
        at = pending[count]
        for entry in range(ptr[at], ptr[at + 1]):  # a slice would count references in the hottest loop
            other = idx[entry]
            if seen[other] == number:
                continue
            seen[other] = number
            if around.evicted[other]:
                ns += storages.cost[other]
                pending[count] = other
                count += 1
            else:
                known[other] = False
    return ns


@inner
def forget(storages: DtrStorages, around: Neighbourhoods, storage: int) -> None:
    """Forget the neighbourhoods that have this storage, which was evicted or returned."""
    walk(storages, around, storage, rows=storages.need, known=around.known_below)
    walk(storages, around, storage, rows=storages.user, known=around.known_above)
    around.known_above[storage] = around.known_below[storage] = False


@inner
def time_of(kind: int, storages: DtrStorages, around: Neighbourhoods, classes: Classes, storage: int) -> int:
    """The ns that count for a storage on the device."""
    if kind == NOTHING:
        return 1
    ns: int = storages.cost[storage]
    if kind == CLASSES:
        ns += _neighbour_classes(storages, classes, storage)
    if kind in (SOURCES, NEIGHBOURHOOD):
        if not around.known_above[storage]:
            around.above[storage] = walk(storages, around, storage, rows=storages.need, known=around.ignored)
            around.known_above[storage] = True
        ns += around.above[storage]
    if kind == NEIGHBOURHOOD:
        if not around.known_below[storage]:
            around.below[storage] = walk(storages, around, storage, rows=storages.user, known=around.ignored)
            around.known_below[storage] = True
        ns += around.below[storage]
    return ns


@inner
def _neighbour_classes(storages: DtrStorages, classes: Classes, storage: int) -> int:
    """The ns of the classes of all evicted neighbours, each once."""
    begin_query(classes)
    ns = 0
    for source in storages.need.idx[storages.need.ptr[storage] : storages.need.ptr[storage + 1]]:
        if classes.node[source] != NONE:
            ns += count_once(classes, source)
    for user in storages.user.idx[storages.user.ptr[storage] : storages.user.ptr[storage + 1]]:
        if classes.node[user] != NONE:
            ns += count_once(classes, user)
    return ns


@inner
def score_of(scoring: Scoring, time: int, size: int, stale: int) -> float:
    """The score of a storage; infinite where it has no bytes or was used just now, and these count."""
    divisor = 1.0
    if scoring.by_bytes:
        divisor *= size
    if scoring.by_staleness:
        divisor *= stale
    return time / divisor if divisor > 0 else np.inf
