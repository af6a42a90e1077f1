"""What is on the device in a simulated run, what of that may be evicted, and when each storage was there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner
from gpumem.swap.dtr._classes import NOBODY
from gpumem.trace import I64, Bool

HELD, CLOCK, AGAIN, POOL, PUT, STAYS, GONE, RERUNS, PEAK = range(9)  # in `DeviceState.tally`


class ResidencyIntervals(NamedTuple):
    """Rows over the times that storages were on the device: from the place before op `first` until op `until` begins.

    `read`: the last place in there at which a rerun read it, -1 where none did. A row without a storage is none.
    """

    storage: I64
    first: I64
    until: I64
    read: I64


class DeviceState(NamedTuple):
    """Columns over storages, and counts."""

    here: Bool  # it is on the device
    away: Bool  # it was evicted
    dead: Bool  # nobody refers to it any more
    bound: Bool  # what it was made of was banished, so it may not be evicted
    locks: I64
    used: I64  # ns: when it was used last
    pool: I64  # what may be evicted; tally[POOL] of them
    place: I64  # where in the pool, `NOBODY` where it is not
    order: I64  # when it came there
    since: I64  # the place from which on it is on the device
    read: I64  # the last place at which a rerun found it there
    row: I64  # the last row of `stays` that it has
    stays: ResidencyIntervals
    tally: I64


@inner
def empty_device(storages: int, rows: int) -> DeviceState:
    """Return a device with nothing on it, and room for some stays; its clock begins at 1, as simrd's."""
    marks, zeros, none = (
        np.zeros((4, storages), np.bool_),
        np.zeros((5, storages), np.int64),
        np.full((3, storages), -1),
    )
    stays, count = np.full((4, rows), -1), np.zeros(9, np.int64)
    count[CLOCK] = 1
    here, away, dead, bound = marks[0], marks[1], marks[2], marks[3]
    locks, used, pool, order, since = zeros[0], zeros[1], zeros[2], zeros[3], zeros[4]
    s = ResidencyIntervals(stays[0], stays[1], stays[2], stays[3])
    return DeviceState(here, away, dead, bound, locks, used, pool, none[0], order, since, none[1], none[2], s, count)


@inner
def put(d: DeviceState, storage: int) -> None:
    """Let a storage be evicted."""
    k = d.tally[POOL]
    d.pool[k], d.place[storage], d.order[storage] = storage, k, d.tally[PUT]
    d.tally[POOL] += 1
    d.tally[PUT] += 1


@inner
def take(d: DeviceState, storage: int) -> None:
    """Let a storage not be evicted, if it may; the last of the pool takes its place."""
    k = d.place[storage]
    if k != NOBODY:
        last = d.pool[d.tally[POOL] - 1]
        d.pool[k], d.place[last] = last, k
        d.place[storage] = NOBODY
        d.tally[POOL] -= 1


@inner
def lock(d: DeviceState, storage: int) -> None:
    """Keep a storage where it is."""
    take(d, storage)
    d.locks[storage] += 1


@inner
def unlock(d: DeviceState, storage: int) -> None:
    """Take a lock off; the last one lets the storage be evicted."""
    d.locks[storage] -= 1
    if d.locks[storage] == 0:
        put(d, storage)


@inner
def come(d: DeviceState, storage: int, size: int, place: int) -> None:
    """A storage comes before op `place`. One that went at this very place is as if it had not: it could have stayed."""
    d.here[storage], d.away[storage] = True, False
    d.tally[HELD] += size
    d.since[storage], d.read[storage] = place, -1
    row = d.row[storage]
    if row >= 0 and d.stays.until[row] == place:
        d.since[storage], d.read[storage] = d.stays.first[row], d.stays.read[row]
        d.stays.storage[row] = NOBODY
        d.row[storage] = -1


@inner
def go(d: DeviceState, storage: int, size: int, place: int) -> None:
    """A storage goes before op `place`."""
    d.here[storage] = False
    d.tally[HELD] -= size
    take(d, storage)
    note(d, storage, place)


@inner
def note(d: DeviceState, storage: int, place: int) -> None:
    """Add the row of a stay that ends; one that began at this very place is none."""
    if d.since[storage] < place:
        row = d.tally[STAYS]
        d.stays.storage[row], d.stays.first[row] = storage, d.since[storage]
        d.stays.until[row], d.stays.read[row] = place, d.read[storage]
        d.row[storage] = row
        d.tally[STAYS] += 1
