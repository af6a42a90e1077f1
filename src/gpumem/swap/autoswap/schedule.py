"""AutoSwap's schedule: copies out in the order of their accesses, copies in planned backwards from theirs.

Backwards in time, a copy-in is a copy-out: it follows its access, queues behind the one before it, and takes the
buffer off the device. So one sweep serves both, on the time line and on its mirror image::

    op          a                                                   b
    device   ===|=================|                      |==========|===
                    queue   copy out                 copy in   queue
    forwards    |------------------> held        held <-------------|  backwards
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import jit
from gpumem.simulator.machine import Machine
from gpumem.simulator.timeline import Timeline
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.plan import Swap
from gpumem.swap.plan.gaps import Gaps, needs_copy_out
from gpumem.trace import I64, Trace

TURNS = 3  # a queue that spills over the boundary is right in the second turn, and its end lies in the third


def schedule(trace: Trace, machine: Machine, chosen: Gaps, load: I64, limit: int, line: Timeline) -> list[Swap]:
    """Return a swap for each chosen gap (section IV-E).

    Parameters
    ----------
    trace, machine
    chosen : Gaps
        In the order of `gaps`.
    load : int64[n]
        Bytes held at each op with all of them absent over their whole gaps; at most `limit`.
    line : Timeline
        Of the unswapped iteration.

    Notes
    -----
    A copy-out starts after its access and after the copy-out before it; its buffer is released at the first op
    expected to start after it has ended. Where the load would exceed the limit, the oldest copy in the queue is
    released at once and the expected time line moves on to its end: that op will wait, and those behind it find
    more copies done. Copies in are the same backwards. Which gap the bytes come from matters: an op must wait for
    the copy that ends next, not for the last one in the queue. With one copy engine, each direction sees the
    time that the other takes. O(n + m + ops held) for m gaps.
    """
    n, size = trace.n, chosen.size
    length = chosen.before - chosen.after
    out_ns = np.where(needs_copy_out(chosen), machine.out.copy_ns(size), 0)
    in_ns = machine.into.copy_ns(size)
    forwards = _Direction.of(line.start, line.end, line.makespan, chosen.after, length, size, out_ns)
    last = max(line.makespan, int(line.end.max()))
    backwards = _Direction.of(
        last - line.end[::-1], last - line.start[::-1], line.makespan, n - 1 - chosen.before % n, length, size, in_ns
    )
    idle = np.zeros(n, np.int64)
    if machine.duplex:
        ahead, late = backwards.hold(load[::-1], limit, idle), forwards.hold(load, limit, idle)
    else:  # the first guess of the one direction is all that the other can go by
        ahead = backwards.hold(load[::-1], limit, idle)
        late = forwards.hold(load, limit, _at(chosen.before - ahead, in_ns, n))
        ahead = backwards.hold(load[::-1], limit, _at(chosen.after + 1 + late, out_ns, n)[::-1])
    release, prefetch = chosen.after + 1, chosen.before.copy()
    room = LiveBytes.of(trace, limit, (release, prefetch, size))
    for k in np.argsort(chosen.after, kind="stable").tolist():
        release[k] = room.hold(release[k], release[k] + late[k], size[k])
    ahead = np.minimum(ahead, chosen.before - release)
    for k in np.argsort(chosen.before % n, kind="stable").tolist():
        prefetch[k] = room.fetch(prefetch[k] - ahead[k], prefetch[k], size[k])
    return Swap.each(chosen, release, prefetch)


def _at(place: I64, copy_ns: I64, n: int) -> I64:
    """Nanoseconds of copies at each op."""
    return np.bincount(place % n, copy_ns, n).astype(np.int64)


class _Direction(NamedTuple):
    """One direction of the link, in the time that the copies of this direction follow their accesses in."""

    start: I64  # of each op, ns
    end: I64
    makespan: int
    rows: I64  # by op
    order: I64  # the copies that follow the op's accesses
    length: I64  # of each copy: ops until the other access
    size: I64
    copy_ns: I64

    @classmethod
    def of(cls, start: I64, end: I64, makespan: int, access: I64, length: I64, size: I64, copy_ns: I64) -> _Direction:
        """Sort the copies by their `access`."""
        order = np.argsort(access, kind="stable")
        rows = np.searchsorted(access[order], np.arange(len(start) + 1))
        flat = np.ascontiguousarray  # mirror images are no plain columns
        return cls(flat(start), flat(end), makespan, rows, order, length, size, copy_ns)

    def hold(self, load: I64, limit: int, other: I64) -> I64:
        """Return for how many ops behind its access each buffer is held; `other` copies go first at each op."""
        held = np.zeros(len(self.order), np.int64)
        _sweep(self, np.ascontiguousarray(load), limit, np.ascontiguousarray(other), held)
        return held


@jit
def _sweep(d: _Direction, load: I64, limit: int, other: I64, held: I64) -> None:
    """Follow the queue of copies round the circle; write for how many ops each buffer is `held`."""
    n, m = len(d.start), len(d.order)
    queue, done, since = np.zeros(TURNS * m, np.int64), np.zeros(TURNS * m, np.int64), np.zeros(TURNS * m, np.int64)
    first, behind, bytes_held, delay, free = 0, 0, 0, 0, 0
    for step in range(TURNS * n):
        op = step % n
        shift = step // n * d.makespan
        now = d.start[op] + shift + delay
        while first < behind:
            k, ops = queue[first], step - since[first]
            full = load[op] + bytes_held > limit
            if not full and done[first] > now and ops < d.length[k]:
                break
            if full and done[first] > now:  # this op waits for the copy
                delay += done[first] - now
                now = done[first]
            held[k] = min(ops, d.length[k]) - 1
            bytes_held -= d.size[k]
            first += 1
        if other[op] > 0:
            free = max(free, now) + other[op]
        for x in range(d.rows[op], d.rows[op + 1]):
            k = d.order[x]
            if d.copy_ns[k] == 0:  # the host holds the value already
                held[k] = 0
                continue
            free = max(free, d.end[op] + shift + delay) + d.copy_ns[k]
            queue[behind], done[behind], since[behind] = k, free, step
            bytes_held += d.size[k]
            behind += 1
