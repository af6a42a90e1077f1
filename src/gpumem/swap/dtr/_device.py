"""What is on the device in a simulated run, what of that may be evicted, and when each storage was there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner
from gpumem.swap.dtr._classes import NONE
from gpumem.trace import I64, Bool

# Indexes of `DeviceState.counts`: bytes of the storages on the device, ns since the start, ns of recomputations, how
# many storages are in the pool and how many ever came to it, how many residency intervals, evictions and recomputations
# there were, and the most bytes.
LIVE, CLOCK, RECOMPUTE_NS, POOL, POOLED, INTERVALS, EVICTIONS, RECOMPUTATIONS, PEAK, COUNTS = range(10)


class ResidencyIntervals(NamedTuple):
    """Rows over intervals in which a storage was on the device: from the place before op `first` until op `until`.

    `read`: the last place in there at which a recomputation read it, -1 where none did. A row whose storage is -1 is
    empty.
    """

    storage: I64
    first: I64
    until: I64
    read: I64


class DeviceState(NamedTuple):
    """Columns over storages, and counts."""

    on_device: Bool
    evicted: Bool
    dead: Bool  # the program refers to it no more
    bound: Bool  # a source of it was banished, so it may not be evicted
    locks: I64
    last_used: I64  # ns
    pool: I64  # what may be evicted; counts[POOL] of them
    slot: I64  # where in the pool, `NONE` where it is not
    entered: I64  # the number of its entry to the pool
    since: I64  # the place from which on it is on the device
    read: I64  # the last place at which a recomputation found it there
    row: I64  # its last row of `intervals`
    intervals: ResidencyIntervals
    counts: I64


@inner
def empty_device(storages: int, rows: int) -> DeviceState:
    """Return a device with nothing on it, and space for some intervals; its clock begins at 1, as simrd's."""
    flags, zeros = np.zeros((4, storages), np.bool_), np.zeros((4, storages), np.int64)
    none, columns = np.full((3, storages), NONE), np.full((4, rows), NONE)
    counts = np.zeros(COUNTS, np.int64)
    counts[CLOCK] = 1
    return DeviceState(
        on_device=flags[0],
        evicted=flags[1],
        dead=flags[2],
        bound=flags[3],
        locks=zeros[0],
        last_used=zeros[1],
        pool=np.zeros(storages, np.int64),
        slot=none[0],
        entered=zeros[2],
        since=zeros[3],
        read=none[1],
        row=none[2],
        intervals=ResidencyIntervals(columns[0], columns[1], columns[2], columns[3]),
        counts=counts,
    )


@inner
def add_to_pool(device: DeviceState, storage: int) -> None:
    """Let a storage be evicted."""
    slot = device.counts[POOL]
    device.pool[slot], device.slot[storage], device.entered[storage] = storage, slot, device.counts[POOLED]
    device.counts[POOL] += 1
    device.counts[POOLED] += 1


@inner
def remove_from_pool(device: DeviceState, storage: int) -> None:
    """Let a storage not be evicted, if it may; the last of the pool takes its slot."""
    slot = device.slot[storage]
    if slot != NONE:
        last = device.pool[device.counts[POOL] - 1]
        device.pool[slot], device.slot[last] = last, slot
        device.slot[storage] = NONE
        device.counts[POOL] -= 1


@inner
def lock(device: DeviceState, storage: int) -> None:
    """Keep a storage on the device."""
    remove_from_pool(device, storage)
    device.locks[storage] += 1


@inner
def unlock(device: DeviceState, storage: int) -> None:
    """Take a lock off; without the last one the storage may be evicted."""
    device.locks[storage] -= 1
    if device.locks[storage] == 0:
        add_to_pool(device, storage)


@inner
def arrive(device: DeviceState, storage: int, size: int, place: int) -> None:
    """A storage comes onto the device before op `place`.

    One that was evicted at this very place continues its interval: a plan need not evict it.
    """
    intervals = device.intervals
    device.on_device[storage], device.evicted[storage] = True, False
    device.counts[LIVE] += size
    device.since[storage], device.read[storage] = place, NONE
    row = device.row[storage]
    if row >= 0 and intervals.until[row] == place:
        device.since[storage], device.read[storage] = intervals.first[row], intervals.read[row]
        intervals.storage[row] = NONE
        device.row[storage] = NONE


@inner
def depart(device: DeviceState, storage: int, size: int, place: int) -> None:
    """A storage leaves the device before op `place`."""
    device.on_device[storage] = False
    device.counts[LIVE] -= size
    remove_from_pool(device, storage)
    end_interval(device, storage, place)


@inner
def end_interval(device: DeviceState, storage: int, place: int) -> None:
    """Add the row of an interval that ends before op `place`; one that began at this very place is none."""
    if device.since[storage] < place:
        row, intervals = device.counts[INTERVALS], device.intervals
        intervals.storage[row], intervals.first[row] = storage, device.since[storage]
        intervals.until[row], intervals.read[row] = place, device.read[storage]
        device.row[storage] = row
        device.counts[INTERVALS] += 1
