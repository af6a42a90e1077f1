"""The state of the simulator between two iterations, and the compiled loop that advances it by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np

from gpumem.base.arguments import at_least
from gpumem.base.jit import inner, jit
from gpumem.simulator.hazards import hazards
from gpumem.simulator.host_threads import HELD, LAST, LATE, Hosts
from gpumem.simulator.machine import Machine
from gpumem.simulator.timeline import COPY, HOST, MEMORY, NONE
from gpumem.trace import I64, Bool, Csr, Trace
from gpumem.trace.placement import Placement

_FREE, _RESERVED, _HEAP = range(3)  # entries of `Reservations.state`


class Reservations(NamedTuple):
    """The counter of the capacity clock: what is reserved, and what comes back when. Device buffers only."""

    size: I64  # of each buffer
    start_ptr: I64  # by op
    starts: I64  # made at the op; nothing without a capacity
    end_ptr: I64  # by op
    ends: I64  # whose bytes later ops, from this one on, may take
    live: Bool  # of each buffer
    back: I64  # when the last op that touched the buffer ended
    reserved: I64  # when its bytes were reserved
    state: I64  # bytes free, the time of the last reservation, entries in the heap
    time: I64  # the heap: when bytes were given back that are not reserved again, earliest first
    bytes: I64  # along it: how many

    @classmethod
    def make(cls, trace: Trace, capacity: int | None) -> Reservations:
        """Set up what is there before the first iteration: eternal buffers and arcs over the boundary."""
        b, n, eternal = trace.buffers, trace.n, trace.eternal
        mine = ~b.host & ~eternal & (capacity is not None)
        live = mine & (b.end > n)
        free = 0 if capacity is None else capacity - int(b.size[~b.host & eternal].sum() + b.size[live].sum())
        starts, ends = (Csr.grouped(step[mine], np.flatnonzero(mine), n) for step in (b.start, b.end % n))
        back, reserved = np.zeros((2, len(b)), np.int64)
        time, size = np.zeros((2, len(b)), np.int64)
        state = np.array([free, 0, 0], np.int64)
        return cls(b.size, starts.ptr, starts.idx, ends.ptr, ends.idx, live, back, reserved, state, time, size)

    def settled(self, now: int) -> Reservations:
        """Take what came back by `now`, before anything can start; make room for another iteration."""
        used = int(self.state[_HEAP])
        order = np.argsort(self.time[:used], kind="stable")
        time, size = self.time[:used][order], self.bytes[:used][order]
        due = int(np.searchsorted(time, now, side="right"))
        self.state[_FREE] += size[:due].sum()
        self.state[_HEAP] = used - due
        room = np.zeros(len(self.size), np.int64)  # what is left is sorted, hence a heap
        return self._replace(time=np.concatenate([time[due:], room]), bytes=np.concatenate([size[due:], room]))


def check_runs(trace: Trace, iterations: int) -> None:
    """Refuse what cannot run: a trace without ops, or no iteration."""
    if not len(trace.ops):
        raise ValueError(f"trace {trace.name!r}: no ops, a bare instance has no timeline")
    at_least(1, iterations=iterations)


def engines(trace: Trace, machine: Machine) -> I64:
    """Return the engine of each op: its stream, or behind all streams the one copy engine of a half-duplex link."""
    engine = trace.ops.stream.copy()
    if not machine.duplex:  # both directions queue there in issue order
        engine[trace.ops.copies] = len(trace.ops.streams)
    return engine


class Steps(NamedTuple):
    """The ops of an iteration and what they wait for; when they ran last, and all else that the next one depends on."""

    duration: I64  # of each op, ns
    engine: I64  # of each op
    after_ptr: I64  # by op
    after: I64  # the ops that it waits for, those of the iteration before as `op - n`
    why: I64  # along `after`: the cause
    read_ptr: I64  # by op
    reads: I64
    write_ptr: I64  # by op
    writes: I64
    ready: I64  # when each engine is free
    busy: Bool  # engines that have ops
    before: I64  # of each op: its end in the iteration before
    start: I64  # of each op
    end: I64
    wait: I64
    cause: I64

    @classmethod
    def make(cls, trace: Trace, machine: Machine, placement: Placement | None) -> Steps:
        """Set the clock to 0, before the first iteration."""
        ops, order = trace.ops, hazards(trace, placement)
        engine = engines(trace, machine)
        busy = np.zeros(len(ops.streams) + 1, np.bool_)
        busy[engine] = True
        waits = (order.after.ptr, order.after.idx, order.cause)
        accesses = (ops.reads.ptr, ops.reads.idx, ops.writes.ptr, ops.writes.idx)
        times = np.zeros((5, trace.n), np.int64)
        return cls(machine.durations(trace), engine, *waits, *accesses, np.zeros(len(busy), np.int64), busy, *times)


@dataclass(slots=True, eq=False)
class Regime:
    """Sees when iterations repeat: what all that later ones depend on was after each."""

    turns: Iterator[int] = field(default_factory=count)
    coupled: int | None = None  # the last iteration in which a host delayed an op, or could
    seen: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # states, with their iterations and leads

    def cycle(self, state: bytes, hosts: Hosts, origin: int) -> int:
        """Take in the state after one more iteration, apart from the lead of the hosts at `origin`, the latest end.

        Return after how many iterations it is there again, 0 where it is new. While nobody blocks and no op is issued
        too late, neither the hosts nor the device knows of the other, and how far the hosts are ahead makes no
        difference. If that is no less than when all else was the same, it will be no less the next time, so it never
        will.
        """
        turn = next(self.turns)
        if not hosts.free:
            self.coupled = turn
        lead = hosts.lead(origin)
        state += (f"free since {self.coupled}" if hosts.free else f"{lead}").encode()
        before, then = self.seen.setdefault(state, (turn, lead))
        return turn - before if lead >= then else 0


@dataclass(slots=True, eq=False)
class Clock:
    """Times of the last iteration, all that the next one depends on, and what that was after earlier ones."""

    steps: Steps
    memory: Reservations
    hosts: Hosts
    regime: Regime = field(default_factory=Regime)

    def advance(self) -> None:
        """Run one more iteration."""
        self.steps.before[:] = self.steps.end
        advance(self.steps, self.memory, self.hosts)
        self.memory = self.memory.settled(self._now)

    @property
    def _now(self) -> int:
        """No later op can start before this."""
        return int(self.steps.ready[self.steps.busy].min())

    def cycle(self, origin: int) -> int:
        """Return after how many iterations the last one repeats, 0 where it is new; `origin` is the latest end."""
        return self.regime.cycle(self._state(origin), self.hosts, origin)

    def _state(self, origin: int) -> bytes:
        """Return all that later iterations depend on, relative to `origin`, but for the lead of the hosts."""
        m, now = self.memory, self._now
        used = int(m.state[_HEAP])
        order = np.lexsort((m.bytes[:used], m.time[:used]))
        parts = (
            self.steps.end - origin,
            np.maximum(m.reserved, now)[m.live] - origin,
            np.maximum(m.back, now)[m.live] - origin,
            [m.state[_FREE], max(int(m.state[_RESERVED]), now) - origin],
            m.time[:used][order] - origin,
            m.bytes[:used][order],
            self.hosts.apart(now, origin),
        )
        return b"".join(np.asarray(p, np.int64).tobytes() for p in parts)


@jit
def advance(x: Steps, m: Reservations, hosts: Hosts) -> None:
    """Run one iteration in issue order; `before` and `end` hold the ends of the last one and of this."""
    # columns by name: looked up in the tuples at every use, the loop takes a third longer
    duration, engine, ready, before, end = x.duration, x.engine, x.ready, x.before, x.end
    after_ptr, after, why, start, wait, cause = x.after_ptr, x.after, x.why, x.start, x.wait, x.cause
    read_ptr, reads, write_ptr, writes = x.read_ptr, x.reads, x.write_ptr, x.writes
    size, start_ptr, starts, end_ptr, ends = m.size, m.start_ptr, m.starts, m.end_ptr, m.ends
    live, back, reserved, state, heap_time, heap_bytes = m.live, m.back, m.reserved, m.state, m.time, m.bytes
    n = len(duration)
    track = len(starts) > 0
    cost, host, blocks, drains, issued = hosts.cost, hosts.host, hosts.blocks, hosts.drains, hosts.issued
    clock, ended, held, handed = hosts.clock, hosts.ended, hosts.held, hosts.state
    hosted, drained = len(cost) > 0, drains.any()  # what only copies that block need is a tenth of the time
    last, until, late = handed[LAST], handed[HELD], 0
    for i in range(n):
        free = ready[engine[i]]
        t, reason = free, NONE
        for k in range(after_ptr[i], after_ptr[i + 1]):
            y = after[k]
            done = end[y] if y >= 0 else before[y + n]
            if done > t:
                t, reason = done, why[k]
        if track:
            for k in range(end_ptr[i], end_ptr[i + 1]):
                b = ends[k]
                if live[b] and size[b] > 0:
                    _push(heap_time, heap_bytes, state, back[b], size[b])
                live[b] = False
            need = 0
            for k in range(start_ptr[i], start_ptr[i + 1]):
                need += size[starts[k]]
            state[_FREE] -= need
            while state[_FREE] < 0:
                state[_RESERVED] = max(state[_RESERVED], _pop(heap_time, heap_bytes, state))
            if need > 0 and state[_RESERVED] > t:
                t, reason = state[_RESERVED], MEMORY
            for k in range(start_ptr[i], start_ptr[i + 1]):
                b = starts[k]
                reserved[b] = state[_RESERVED] if size[b] > 0 else 0
                back[b] = reserved[b]
                live[b] = True
            for k in range(read_ptr[i], read_ptr[i + 1]):
                if reserved[reads[k]] > t:
                    t, reason = reserved[reads[k]], MEMORY
            for k in range(write_ptr[i], write_ptr[i + 1]):
                if reserved[writes[k]] > t:
                    t, reason = reserved[writes[k]], MEMORY
        if hosted:
            h = host[i]
            if drained and drains[i] and ended[h] > clock[h]:
                clock[h] = held[h] = ended[h]
            here = clock[h] + cost[i]
            if here > last:
                last = here
                if drained:
                    until = max(until, held[h])
            issued[i] = last
            if last > t:
                t, reason = last, COPY if until >= t else HOST
                late += 1
        start[i] = t
        end[i] = t + duration[i]
        wait[i] = t - free
        cause[i] = reason
        ready[engine[i]] = end[i]
        if hosted:
            h = host[i]
            clock[h] = end[i] if blocks[i] else last
            if drained:
                ended[h] = max(ended[h], end[i])
                if drains[i]:
                    held[h] = end[i]
        if track:
            for k in range(read_ptr[i], read_ptr[i + 1]):
                back[reads[k]] = max(back[reads[k]], end[i])
            for k in range(write_ptr[i], write_ptr[i + 1]):
                back[writes[k]] = max(back[writes[k]], end[i])
    handed[LAST], handed[HELD], handed[LATE] = last, until, late


@inner
def _push(time: I64, size: I64, state: I64, t: int, b: int) -> None:
    """Put `(t, b)` into the heap."""
    k = state[_HEAP]
    state[_HEAP] += 1
    while k > 0 and time[(k - 1) // 2] > t:
        time[k], size[k] = time[(k - 1) // 2], size[(k - 1) // 2]
        k = (k - 1) // 2
    time[k], size[k] = t, b


@inner
def _pop(time: I64, size: I64, state: I64) -> int:
    """Take the earliest entry of the heap: its bytes are free, its time is returned."""
    earliest: int = time[0]
    state[_FREE] += size[0]
    state[_HEAP] -= 1
    used = state[_HEAP]
    t, b = time[used], size[used]
    k = 0
    while 2 * k + 1 < used:
        child = 2 * k + 1
        if child + 1 < used and time[child + 1] < time[child]:
            child += 1
        if time[child] >= t:
            break
        time[k], size[k] = time[child], size[child]
        k = child
    time[k], size[k] = t, b
    return earliest
