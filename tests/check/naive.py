"""Plain and slow forms of oracles: every pair of buffers. The quick forms are held against them."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from gpumem.trace import I64, Bool, Trace
from gpumem.trace.placement import Placement


def conflicts(trace: Trace, placement: Placement | None) -> list[tuple[I64, I64]]:
    """For each op, the ops it conflicts with: earlier ones of its iteration, and ones of the iteration before."""
    n, b = trace.n, trace.buffers
    touch, write = np.zeros((len(b), n), np.bool_), np.zeros((len(b), n), np.bool_)
    touch[trace.ops.reads.idx, trace.ops.reads.rows()] = True
    write[trace.ops.writes.idx, trace.ops.writes.rows()] = True
    touch |= write
    back = (np.arange(n)[:, None] - np.arange(n) - 1) % n + 1  # positions from op x back to the last op y
    found = np.zeros((n, n), np.bool_)
    for j in range(len(b)):
        ops = np.flatnonzero(touch[j])
        pairs = np.ix_(ops, ops)
        either = write[j][ops][:, None] | write[j][ops]
        forever = b.persistent[j] and b.end[j] - b.start[j] == n
        if placement is None and not b.host[j] and not forever:  # only ops of the same lifetime
            either &= back[pairs] <= ((ops - b.start[j]) % n)[:, None]
        found[pairs] |= either
    if placement is not None:
        for j in np.flatnonzero(~b.host & (b.size > 0)).tolist():
            over = same_bytes(trace, placement, j)
            touched, written = touch[over].any(axis=0), write[over].any(axis=0)
            found[touch[j]] |= written
            found[write[j]] |= touched
    steps = np.arange(n)
    return [(np.flatnonzero(row & (steps < x)), np.flatnonzero(row & (steps >= x))) for x, row in enumerate(found)]


def clock(trace: Trace, duration: I64, placement: Placement | None, iterations: int) -> I64:
    """When each op starts in each iteration: when its stream is free and all that it conflicts with has ended."""
    waits_for, ready = conflicts(trace, placement), dict[int, int]()
    start, end = np.zeros((2, iterations, trace.n), np.int64)
    for k, i in np.ndindex(iterations, trace.n):
        this, last = waits_for[i]
        before = end[k - 1, last] if k else end[0, :0]
        stream = int(trace.ops.stream[i])
        start[k, i] = max([ready.get(stream, 0), *end[k, this].tolist(), *before.tolist()])
        end[k, i] = ready[stream] = start[k, i] + duration[i]
    return start


def same_bytes(trace: Trace, placement: Placement, j: int) -> Bool:
    """The other device buffers that share bytes with `j`."""
    b, at = trace.buffers, placement.offset
    over: Bool = ~b.host & (b.size > 0) & (at < at[j] + b.size[j]) & (at[j] < at + b.size)
    over[j] = False
    return over


def overlapping(trace: Trace, at: I64) -> set[tuple[int, int]]:
    """The pairs of device buffers that share a byte during a step: every pair is looked at."""
    b, n = trace.buffers, trace.n
    found = set()
    for j, k in combinations(np.flatnonzero(~b.host & (b.size > 0)).tolist(), 2):
        bytes_meet = at[j] < at[k] + b.size[k] and at[k] < at[j] + b.size[j]
        times_meet = (b.start[k] - b.start[j]) % n < b.end[j] - b.start[j]
        times_meet |= (b.start[j] - b.start[k]) % n < b.end[k] - b.start[k]
        if bytes_meet and times_meet:
            found.add((j, k))
    return found


def over_budget(trace: Trace, limit: int, *, host: bool) -> int:
    """The first step at which more than `limit` bytes are held, all buffers added up at each; -1 if there is none."""
    b = trace.buffers
    for step in range(trace.n):
        held = int(b.size[(b.host == host) & ((step - b.start) % trace.n < b.end - b.start)].sum())
        if held > limit:
            return step
    return -1
