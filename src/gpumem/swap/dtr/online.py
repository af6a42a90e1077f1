"""The simulated runtime of DTR: one iteration, op by op, that evicts when it is short of memory (the paper's figure 1).

Before an op all that it reads is locked; what is evicted is recomputed from its sources, depth first. Each of these
recomputations, and the op itself, first evicts until its outputs fit: the storage with the lowest score that is not
locked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.dtr._classes import NONE, add_class, leave_class, no_classes
from gpumem.swap.dtr._device import (
    CLOCK,
    EVICTIONS,
    INTERVALS,
    LIVE,
    PEAK,
    RECOMPUTATIONS,
    RECOMPUTE_NS,
    ResidencyIntervals,
    add_to_pool,
    arrive,
    empty_device,
    end_interval,
    lock,
    unlock,
)
from gpumem.swap.dtr._eviction import (
    BANISH,
    NO_ROOM as NO_ROOM,
    POLICIES as POLICIES,
    RAN as RAN,
    TOO_LONG as TOO_LONG,
    DtrRuntime,
    RunLimits,
    banish,
    evict_for,
    forget_neighbours,
    release,
    return_storage,
)
from gpumem.swap.dtr.scores import CLASSES, Scoring, no_neighbourhoods
from gpumem.swap.dtr.storages import DtrStorages
from gpumem.trace import I64, Bool


class OnlineRun(NamedTuple):
    """An iteration within a budget.

    `how` it ended: `RAN`, `NO_ROOM` where nothing was left to evict, `TOO_LONG`; `op`: the last one that was begun.
    `base`: ns of all ops, `recompute_ns`: of the recomputations, of which there were `recomputations`. `peak`: bytes.
    `residency`: when each storage was on the device.
    """

    how: int
    op: int
    base: int
    recompute_ns: int
    recomputations: int
    evictions: int
    peak: int
    residency: ResidencyIntervals


class _Stack(NamedTuple):
    """What is being computed, each for the sake of the one before it: rows of `DtrStorages.need`."""

    row: I64
    entry: I64  # of the row: the next one to look at
    lacking: Bool  # of each entry: it was off the device when its row was begun


@jit
def follow(storages: DtrStorages, limits: RunLimits, scoring: Scoring, policy: int) -> OnlineRun:
    """Run an iteration until its end, or until it exceeds one of the limits."""
    ops, count = len(storages.duration), len(storages.size)
    # A node for each storage that begins or is evicted; nodes are never used twice.
    nodes = 2 * count + limits.evictions + 1 if scoring.time == CLASSES else 1
    device = empty_device(count, count + limits.evictions + 1)
    around = no_neighbourhoods(device.evicted)
    runtime = DtrRuntime(
        storages, device, no_classes(count, nodes), around, scoring=scoring, policy=policy, limits=limits
    )
    depth = np.zeros((2, count + 1), np.int64)  # no storage is needed for itself, so that the stack is no deeper
    stack = _Stack(depth[0], depth[1], np.zeros(len(storages.need.idx), np.bool_))
    ended, op = RAN, 0
    for op in range(ops):
        _announce(runtime, op)
        ended = _perform(runtime, stack, op)
        if ended != RAN:
            break
        for storage in storages.end.idx[storages.end.ptr[op] : storages.end.ptr[op + 1]]:
            release(runtime, storage, op)
    for storage in range(count):
        if device.on_device[storage]:
            end_interval(device, storage, ops)
    rows, counts, intervals = device.counts[INTERVALS], device.counts, device.intervals
    return OnlineRun(
        how=ended,
        op=op,
        base=storages.duration.sum(),
        recompute_ns=counts[RECOMPUTE_NS],
        recomputations=counts[RECOMPUTATIONS],
        evictions=counts[EVICTIONS],
        peak=counts[PEAK],
        residency=ResidencyIntervals(
            intervals.storage[:rows], intervals.first[:rows], intervals.until[:rows], intervals.read[:rows]
        ),
    )


@inner
def _announce(runtime: DtrRuntime, op: int) -> None:
    """What an op will make is a neighbour from now on, though one that takes no time: so simrd has it."""
    start = runtime.storages.start
    if runtime.scoring.time == CLASSES:
        for storage in start.idx[start.ptr[op] : start.ptr[op + 1]]:
            add_class(runtime.classes, storage, 0)


@inner
def _perform(runtime: DtrRuntime, stack: _Stack, op: int) -> int:
    """Run an op, and before it recompute depth first what it reads; return how that ended."""
    storages, counts, limits = runtime.storages, runtime.device.counts, runtime.limits
    depth, op_row = 0, len(storages.size) + op
    _lock_all(runtime, stack, 0, op_row)
    while depth >= 0:
        entry = _next_lacking(runtime, stack, depth)
        if entry != NONE:
            depth += 1
            _lock_all(runtime, stack, depth, storages.need.idx[entry])
            continue  # that one first; this row goes on at the same entry once it is back
        row = stack.row[depth]
        new_bytes = _bytes_begun(storages, op) if row == op_row else storages.scratch[row]
        ended = evict_for(runtime, limits.budget - storages.before[op] - new_bytes, op)
        if ended != RAN:
            return ended
        counts[PEAK] = max(counts[PEAK], counts[LIVE] + storages.before[op] + new_bytes)
        if row == op_row:
            _run(runtime, op)
        else:
            _recompute(runtime, row, op)
        _unlock_all(runtime, row, op)
        if counts[RECOMPUTE_NS] > limits.recompute_ns:
            return TOO_LONG
        depth -= 1
    return RAN


@inner
def _lock_all(runtime: DtrRuntime, stack: _Stack, depth: int, row: int) -> None:
    """Begin a row: lock what is on the device of all that it needs; each counts as used now."""
    need, device = runtime.storages.need, runtime.device
    stack.row[depth], stack.entry[depth] = row, need.ptr[row]
    for entry in range(need.ptr[row], need.ptr[row + 1]):
        storage = need.idx[entry]
        device.last_used[storage] = device.counts[CLOCK]
        stack.lacking[entry] = not device.on_device[storage]
        if device.on_device[storage]:
            lock(device, storage)


@inner
def _next_lacking(runtime: DtrRuntime, stack: _Stack, depth: int) -> int:
    """The next entry that is off the device, `NONE` if there is none; those that returned are locked on the way."""
    need, device = runtime.storages.need, runtime.device
    stop = need.ptr[stack.row[depth] + 1]
    while stack.entry[depth] < stop:
        entry = stack.entry[depth]
        if stack.lacking[entry]:
            if not device.on_device[need.idx[entry]]:
                return int(entry)
            lock(device, need.idx[entry])
        stack.entry[depth] += 1
    return NONE


@inner
def _unlock_all(runtime: DtrRuntime, row: int, op: int) -> None:
    """End a row; what it needed may be banished."""
    need, device = runtime.storages.need, runtime.device
    for storage in need.idx[need.ptr[row] : need.ptr[row + 1]]:
        unlock(device, storage)
    if runtime.policy == BANISH:
        for storage in need.idx[need.ptr[row] : need.ptr[row + 1]]:
            if device.dead[storage]:
                banish(runtime, storage, op)


@inner
def _bytes_begun(storages: DtrStorages, op: int) -> int:
    """The bytes of all that begins at an op."""
    begun: int = storages.fixed[op] - storages.before[op]
    for storage in storages.start.idx[storages.start.ptr[op] : storages.start.ptr[op + 1]]:
        begun += storages.size[storage]
    return begun


@inner
def _run(runtime: DtrRuntime, op: int) -> None:
    """Run an op for the first time."""
    storages, device = runtime.storages, runtime.device
    device.counts[CLOCK] += storages.duration[op]
    for storage in storages.start.idx[storages.start.ptr[op] : storages.start.ptr[op + 1]]:
        arrive(device, storage, storages.size[storage], op)
        if runtime.scoring.time == CLASSES:
            leave_class(runtime.classes, storage, storages.cost[storage])
    for storage in storages.ready.idx[storages.ready.ptr[op] : storages.ready.ptr[op + 1]]:
        device.last_used[storage] = device.counts[CLOCK]
        add_to_pool(device, storage)
        forget_neighbours(runtime, storage)


@inner
def _recompute(runtime: DtrRuntime, storage: int, op: int) -> None:
    """Recompute a storage by its chain; other outputs of the chain that were evicted return with it, and stay."""
    storages, device = runtime.storages, runtime.device
    device.counts[CLOCK] += storages.cost[storage]
    device.counts[RECOMPUTE_NS] += storages.cost[storage]
    device.counts[RECOMPUTATIONS] += 1
    for source in storages.need.idx[storages.need.ptr[storage] : storages.need.ptr[storage + 1]]:
        if device.since[source] < op:
            device.read[source] = op
    return_storage(runtime, storage, op)
    for output in storages.beside.idx[storages.beside.ptr[storage] : storages.beside.ptr[storage + 1]]:
        if device.evicted[output]:
            return_storage(runtime, output, op)
