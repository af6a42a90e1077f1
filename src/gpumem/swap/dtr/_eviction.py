"""The simulated runtime of DTR evicts and frees storages, and lets them return: what each of these changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner
from gpumem.swap.dtr._classes import NONE, Classes, add_class, leave_class
from gpumem.swap.dtr._device import (
    CLOCK,
    EVICTIONS,
    LIVE,
    POOL,
    DeviceState,
    add_to_pool,
    arrive,
    depart,
    lock,
)
from gpumem.swap.dtr.scores import (
    CLASSES,
    NEIGHBOURHOOD,
    SOURCES,
    Neighbourhoods,
    Scoring,
    forget,
    score_of,
    time_of,
)
from gpumem.swap.dtr.storages import DtrStorages
from gpumem.swap.facts.union_find import join

RAN, NO_ROOM, TOO_LONG = range(3)  # how an iteration ended
EVICT, IGNORE, BANISH = range(3)  # what becomes of a storage that the program refers to no more
POLICIES = {"evict": EVICT, "ignore": IGNORE, "banish": BANISH}


class RunLimits(NamedTuple):
    """What ends a run: bytes of the device, ns of recomputation, evictions."""

    budget: int
    recompute_ns: int
    evictions: int


class DtrRuntime(NamedTuple):
    """What the runtime knows of storages, what is on its device, and by which rules it evicts."""

    storages: DtrStorages
    device: DeviceState
    classes: Classes
    around: Neighbourhoods
    scoring: Scoring
    policy: int
    limits: RunLimits


@inner
def evict_for(runtime: DtrRuntime, most: int, op: int) -> int:
    """Evict until storages have no more than `most` bytes on the device; return how that ended."""
    counts = runtime.device.counts
    while counts[LIVE] > most:
        victim = _victim(runtime)
        if victim == NONE:
            return NO_ROOM
        if counts[EVICTIONS] >= runtime.limits.evictions:
            return TOO_LONG
        counts[EVICTIONS] += 1
        evict(runtime, victim, op)
    return RAN


@inner
def _victim(runtime: DtrRuntime) -> int:
    """The storage with the lowest score: of equal ones the last in the pool, of several 0 the first, as in simrd."""
    device, storages, scoring = runtime.device, runtime.storages, runtime.scoring
    best, lowest, rank, clock = NONE, np.inf, 0, device.counts[CLOCK]
    for storage in device.pool[: device.counts[POOL]]:
        time = time_of(scoring.time, storages, runtime.around, runtime.classes, storage=storage)
        score = score_of(scoring, time, storages.size[storage], clock - device.last_used[storage])
        order = device.entered[storage] if score == 0 else -device.entered[storage]
        if best == NONE or score < lowest or (score == lowest and order < rank):
            best, lowest, rank = storage, score, order
    return best


@inner
def return_storage(runtime: DtrRuntime, storage: int, op: int) -> None:
    """A storage is back on the device."""
    storages = runtime.storages
    arrive(runtime.device, storage, storages.size[storage], op)
    add_to_pool(runtime.device, storage)
    if runtime.scoring.time == CLASSES:
        leave_class(runtime.classes, storage, storages.cost[storage])
    forget_neighbours(runtime, storage)


@inner
def evict(runtime: DtrRuntime, storage: int, place: int) -> None:
    """Take a storage off the device right before op `place`, and join its class with those of its neighbours."""
    storages, classes = runtime.storages, runtime.classes
    depart(runtime.device, storage, storages.size[storage], place)
    runtime.device.evicted[storage] = True
    if runtime.scoring.time == CLASSES:
        add_class(classes, storage, storages.cost[storage])
        for source in storages.need.idx[storages.need.ptr[storage] : storages.need.ptr[storage + 1]]:
            if classes.node[source] != NONE:
                join(classes.parent, classes.ns, classes.node[storage], classes.node[source])
        for user in storages.user.idx[storages.user.ptr[storage] : storages.user.ptr[storage + 1]]:
            if classes.node[user] != NONE:
                join(classes.parent, classes.ns, classes.node[storage], classes.node[user])
    forget_neighbours(runtime, storage)


@inner
def forget_neighbours(runtime: DtrRuntime, storage: int) -> None:
    if runtime.scoring.time in (SOURCES, NEIGHBOURHOOD):
        forget(runtime.storages, runtime.around, storage)


@inner
def release(runtime: DtrRuntime, storage: int, op: int) -> None:
    """After an op the program refers to a storage no more."""
    runtime.device.dead[storage] = True
    if runtime.policy == EVICT and runtime.device.on_device[storage]:
        evict(runtime, storage, op + 1)
    elif runtime.policy == BANISH:
        banish(runtime, storage, op + 1)


@inner
def banish(runtime: DtrRuntime, storage: int, place: int) -> None:
    """Free a storage for good if nothing that was made of it is evicted; all of that is locked from then on."""
    storages, device = runtime.storages, runtime.device
    users = storages.user.idx[storages.user.ptr[storage] : storages.user.ptr[storage + 1]]
    for user in users:
        if device.evicted[user]:
            return
    if device.on_device[storage]:
        depart(device, storage, storages.size[storage], place)
    device.evicted[storage] = False
    if runtime.classes.node[storage] != NONE:
        leave_class(runtime.classes, storage, storages.cost[storage])
    forget_neighbours(runtime, storage)
    for user in users:
        if device.on_device[user] and not device.bound[user]:
            device.bound[user] = True
            lock(device, user)
