"""AutoSwap's schedule (section IV-E): copies out in the order of their accesses, copies in planned backwards in time.

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

# Turns round the iteration: a queue that spills over the boundary is right in the second; its end lies in the third.
TURNS = 3


def schedule(trace: Trace, machine: Machine, chosen: Gaps, *, load: I64, limit: int, line: Timeline) -> list[Swap]:
    """Return a swap for each chosen gap (section IV-E).

    Parameters
    ----------
    trace, machine
    chosen : Gaps
        In the order of `gaps`.
    load : int64[n]
        Live bytes at each op with all of them off the device over their whole gaps; at most `limit`.
    limit : int
        Bytes.
    line : Timeline
        Of the unswapped iteration.

    Notes
    -----
    A copy-out starts after its access and after the copy-out before it; its buffer is released at the first op
    expected to start after it has ended. Where the live bytes would exceed the limit, the oldest copy in the queue is
    released at once and the expected time line moves on to its end: that op will wait, and those behind it find
    more copies ended. Copies in are the same backwards. Which gap the bytes come from matters: an op must wait for
    the copy that ends next, not for the last one in the queue. With one copy engine, each direction sees the
    time that the other takes. O(n + m + ops held) for m gaps.
    """
    n, size = trace.n, chosen.size
    length = chosen.before - chosen.after
    out_ns = np.where(needs_copy_out(chosen), machine.out.copy_ns(size), 0)
    in_ns = machine.into.copy_ns(size)
    forwards = _Direction.of(
        start=line.start,
        end=line.end,
        makespan=line.makespan,
        access=chosen.after,
        length=length,
        size=size,
        copy_ns=out_ns,
    )
    last = max(line.makespan, int(line.end.max()))
    backwards = _Direction.of(
        start=last - line.end[::-1],
        end=last - line.start[::-1],
        makespan=line.makespan,
        access=n - 1 - chosen.before % n,
        length=length,
        size=size,
        copy_ns=in_ns,
    )
    ahead = backwards.sweep(load[::-1], limit, np.zeros(n, np.int64))
    if machine.duplex:
        late = forwards.sweep(load, limit, np.zeros(n, np.int64))
    else:  # one copy engine: each direction goes by the last guess of the other; more rounds were not tried
        late = forwards.sweep(load, limit, _copies_at(chosen.before - ahead, in_ns, n))
        ahead = backwards.sweep(load[::-1], limit, _copies_at(chosen.after + 1 + late, out_ns, n)[::-1])
    release, prefetch = chosen.after + 1, chosen.before.copy()
    live = LiveBytes.of(trace, limit, (release, prefetch, size))
    # The sweeps know nothing of each other's bytes: where both would hold a buffer, the copies out go first.
    for gap in np.argsort(chosen.after, kind="stable").tolist():
        release[gap] = live.hold(release[gap], release[gap] + late[gap], size[gap])
    ahead = np.minimum(ahead, chosen.before - release)
    for gap in np.argsort(chosen.before % n, kind="stable").tolist():
        prefetch[gap] = live.fetch(prefetch[gap] - ahead[gap], prefetch[gap], size[gap])
    return Swap.each(chosen, release, prefetch)


def _copies_at(place: I64, copy_ns: I64, n: int) -> I64:
    """Nanoseconds of copies at each op."""
    return np.bincount(place % n, copy_ns, n).astype(np.int64)


class _Direction(NamedTuple):
    """One direction of the link, on the time line in which its copies follow their accesses: for copies in, reversed.

    n ops, m copies.
    """

    start: I64  # n: ns
    end: I64
    makespan: int
    rows: I64  # n + 1: which rows of `order` follow the op's accesses
    order: I64  # m: the copies by the op of their access
    length: I64  # m: ops from this access to the one on the gap's other side
    size: I64
    copy_ns: I64

    @classmethod
    def of(
        cls, *, start: I64, end: I64, makespan: int, access: I64, length: I64, size: I64, copy_ns: I64
    ) -> _Direction:
        """Sort the copies by their `access`."""
        order = np.argsort(access, kind="stable")
        rows = np.searchsorted(access[order], np.arange(len(start) + 1))
        # Reversed views are strided: without copies the sweep would be compiled a second time, for them.
        start, end = np.ascontiguousarray(start), np.ascontiguousarray(end)
        return cls(start, end, makespan, rows=rows, order=order, length=length, size=size, copy_ns=copy_ns)

    def sweep(self, load: I64, limit: int, other_ns: I64) -> I64:
        """Return for how many ops behind its access each buffer is held; copies of `other_ns` go first at each op."""
        held = np.zeros(len(self.order), np.int64)
        _sweep(self, np.ascontiguousarray(load), limit, other_ns=np.ascontiguousarray(other_ns), held=held)
        return held


@jit
def _sweep(direction: _Direction, load: I64, limit: int, other_ns: I64, held: I64) -> None:
    """Follow the queue of copies round the iteration (section IV-E); write for how many ops each buffer is `held`."""
    n, copies = len(direction.start), len(direction.order)
    # The queue: which copy, when it ends, and at which step its access was. Rows `[head, tail)` have not been released.
    columns = np.zeros((3, TURNS * copies), np.int64)
    queue, ends, begun = columns[0], columns[1], columns[2]
    head, tail, queued_bytes, delay, link_free = 0, 0, 0, 0, 0
    for step in range(TURNS * n):
        op, turn_ns = step % n, step // n * direction.makespan
        now = direction.start[op] + turn_ns + delay
        # "The next Malloc will be delayed until sufficient variables are swapped out": release what has been copied, or
        # has to be back; while the op exceeds the limit, wait for the oldest copy.
        while head < tail:
            copy, ops_held = queue[head], step - begun[head]
            exceeds, has_ended = load[op] + queued_bytes > limit, ends[head] <= now
            if not exceeds and not has_ended and ops_held < direction.length[copy]:
                # Those behind it end later; one that has to be back sooner counts twice until it is released.
                break
            if exceeds and not has_ended:
                delay += ends[head] - now
                now = ends[head]
            held[copy] = min(ops_held, direction.length[copy]) - 1
            queued_bytes -= direction.size[copy]
            head += 1
        if other_ns[op] > 0:  # the one copy engine is taken by the other direction
            link_free = max(link_free, now) + other_ns[op]
        # "A variable is swapped out immediately after the access completes", and "only after the previous swap-out
        # event completes".
        for copy in direction.order[direction.rows[op] : direction.rows[op + 1]]:
            if direction.copy_ns[copy] == 0:  # the host has the value already
                held[copy] = 0
                continue
            link_free = max(link_free, direction.end[op] + turn_ns + delay) + direction.copy_ns[copy]
            queue[tail], ends[tail], begun[tail] = copy, link_free, step
            queued_bytes += direction.size[copy]
            tail += 1
