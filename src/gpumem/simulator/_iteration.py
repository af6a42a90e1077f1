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
    """The counter of the byte-counting simulation: what is reserved, and what comes back when. Device buffers only."""

    size: I64  # of each buffer
    start_ptr: I64  # by op
    starts: I64  # the buffers reserved at the op; none without a capacity
    end_ptr: I64  # by op
    ends: I64  # the buffers whose bytes this op and later ones may take
    live: Bool  # of each buffer: whether its bytes are reserved
    last_use: I64  # of each buffer: when the last op that touched it ended
    reserved: I64  # of each buffer: when its bytes were reserved
    state: I64  # bytes free, the time of the last reservation, entries in the heap
    heap_time: I64  # a binary heap, earliest first: when bytes came back that nobody has reserved since
    heap_bytes: I64  # how many bytes each entry gives back

    @classmethod
    def make(cls, trace: Trace, capacity: int | None) -> Reservations:
        """Set up what is there before the first iteration: eternal buffers and arcs over the boundary."""
        buffers, n, eternal = trace.buffers, trace.n, trace.eternal
        size, on_device = buffers.size, ~buffers.host
        counted = on_device & ~eternal & (capacity is not None)
        live = counted & (buffers.end > n)
        free = 0 if capacity is None else capacity - int(size[on_device & eternal].sum() + size[live].sum())
        steps = (buffers.start, buffers.end % n)
        starts, ends = (Csr.grouped(step[counted], np.flatnonzero(counted), n) for step in steps)
        last_use, reserved = np.zeros((2, len(buffers)), np.int64)
        heap_time, heap_bytes = np.zeros((2, len(buffers)), np.int64)
        state = np.array([free, 0, 0], np.int64)
        accounts = (live, last_use, reserved, state, heap_time, heap_bytes)
        return cls(size, starts.ptr, starts.idx, ends.ptr, ends.idx, *accounts)

    def release_due(self, now: int) -> Reservations:
        """Free what came back by `now`, before any op can start; lengthen the heap for another iteration."""
        used = int(self.state[_HEAP])
        order = np.argsort(self.heap_time[:used], kind="stable")
        time, size = self.heap_time[:used][order], self.heap_bytes[:used][order]
        due = int(np.searchsorted(time, now, side="right"))
        self.state[_FREE] += size[:due].sum()
        self.state[_HEAP] = used - due
        spare = np.zeros(len(self.size), np.int64)  # what remains is sorted, and a sorted array is a heap
        return self._replace(
            heap_time=np.concatenate([time[due:], spare]), heap_bytes=np.concatenate([size[due:], spare])
        )


def check_runs(trace: Trace, iterations: int) -> None:
    """Refuse what cannot run: a trace without ops, or no iteration."""
    if not len(trace.ops):
        raise ValueError(f"trace {trace.name!r}: no ops, a bare instance has no timeline")
    at_least(1, iterations=iterations)


def engines(trace: Trace, machine: Machine) -> I64:
    """Return the engine of each op: its stream, or, after all streams, a half-duplex link's one copy engine."""
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
    touch_ptr: I64  # by op
    touched: I64  # the buffers that it reads, then those that it writes
    ready: I64  # when each engine is free
    busy: Bool  # engines that have ops
    previous_end: I64  # of each op: its end in the iteration before
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
        op, buffer = np.append(ops.reads.rows(), ops.writes.rows()), np.append(ops.reads.idx, ops.writes.idx)
        touched = Csr.grouped(op, buffer, trace.n)
        ready, times = np.zeros(len(busy), np.int64), np.zeros((5, trace.n), np.int64)
        return cls(machine.durations(trace), engine, *waits, touched.ptr, touched.idx, ready, busy, *times)


@dataclass(slots=True, eq=False)
class Regime:
    """Finds out when iterations repeat: keeps what later ones depend on, as it was after each."""

    turns: Iterator[int] = field(default_factory=count)
    coupled: int | None = None  # the last iteration in which a host delayed an op, or could
    seen: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # states, with their iterations and leads

    def cycle(self, state: bytes, hosts: Hosts, origin: int) -> int:
        """Take in the state after one more iteration, apart from the lead of the hosts at `origin`, the latest end.

        Return after how many iterations the same state is there again, 0 if it is new. While nobody blocks and no op
        is issued too late, neither the hosts nor the device knows of the other, and how far the hosts are ahead makes
        no difference. If the lead is no less than when all else was the same, it will be no less the next time, so the
        hosts never delay an op.
        """
        turn = next(self.turns)
        if not hosts.free:
            self.coupled = turn
        lead = hosts.lead(origin)
        # The lead of free hosts is no part of it, so only states since a host last delayed an op are compared.
        state += (f"free since {self.coupled}" if hosts.free else f"{lead}").encode()
        before, then = self.seen.setdefault(state, (turn, lead))
        return turn - before if lead >= then else 0


@dataclass(slots=True, eq=False)
class Clock:
    """Times of the last iteration, all that the next one depends on, and the same as it was after earlier ones."""

    steps: Steps
    memory: Reservations
    hosts: Hosts
    regime: Regime = field(default_factory=Regime)

    def advance(self) -> None:
        """Run one more iteration."""
        self.steps.previous_end[:] = self.steps.end
        advance(self.steps, self.memory, self.hosts)
        self.memory = self.memory.release_due(self._now)

    @property
    def _now(self) -> int:
        """No later op can start before this."""
        return int(self.steps.ready[self.steps.busy].min())

    def cycle(self, origin: int) -> int:
        """Return after how many iterations the last one repeats, 0 where it is new; `origin` is the latest end."""
        return self.regime.cycle(self._state(origin), self.hosts, origin)

    def _state(self, origin: int) -> bytes:
        """Return all that later iterations depend on, relative to `origin`, but for the lead of the hosts."""
        memory, now = self.memory, self._now
        used = int(memory.state[_HEAP])
        order = np.lexsort((memory.heap_bytes[:used], memory.heap_time[:used]))
        parts = (
            self.steps.end - origin,
            np.maximum(memory.reserved, now)[memory.live] - origin,
            np.maximum(memory.last_use, now)[memory.live] - origin,
            [memory.state[_FREE], max(int(memory.state[_RESERVED]), now) - origin],
            memory.heap_time[:used][order] - origin,
            memory.heap_bytes[:used][order],
            self.hosts.apart(now, origin),
        )
        return b"".join(np.asarray(part, np.int64).tobytes() for part in parts)


@jit
def advance(steps: Steps, memory: Reservations, hosts: Hosts) -> None:  # noqa: C901  split up, it takes 1.5 times as long
    """Run one iteration in issue order: each op starts once four things are given.

    Its engine is free, the ops that it must wait for have ended, its bytes are there, its host thread has launched it.
    What delays it last is the cause of its wait. `previous_end` and `end` hold the ends of the iteration before and of
    this one.
    """
    # Columns of memory are locals, as are those of every op: looked up in the tuples, byte counting takes half as long
    # again (120 ns an op instead of 85, VGG16 swapped). Hosts and hazards lose nothing by it, and are functions.
    duration, engine, ready = steps.duration, steps.engine, steps.ready
    begins, end, wait, causes = steps.start, steps.end, steps.wait, steps.cause
    touch_ptr, touched, reserved, last_use = steps.touch_ptr, steps.touched, memory.reserved, memory.last_use
    size, live, state, heap_time, heap_bytes = (
        memory.size,
        memory.live,
        memory.state,
        memory.heap_time,
        memory.heap_bytes,
    )
    start_ptr, starts, end_ptr, ends = memory.start_ptr, memory.starts, memory.end_ptr, memory.ends
    counts_bytes, launches, drains = len(starts) > 0, len(hosts.cost) > 0, bool(hosts.drains.any())
    hosts.state[LATE] = 0
    for op in range(len(duration)):
        free = ready[engine[op]]
        start, cause = _after_hazards(steps, op, free)
        if counts_bytes:
            # What ends here is free for this op and later ones, from the end of its last use on. What is not live has
            # not begun: in the first iteration, a lifetime that ends at the boundary.
            for k in range(end_ptr[op], end_ptr[op + 1]):
                buffer = ends[k]
                if live[buffer] and size[buffer] > 0:
                    _push(heap_time, heap_bytes, state, time=last_use[buffer], size=size[buffer])
                live[buffer] = False
            # What begins here is reserved once enough has come back. Reservations are made in issue order, so none is
            # earlier than the one before: no later op overtakes one that waits for bytes.
            requested = 0
            for k in range(start_ptr[op], start_ptr[op + 1]):
                requested += size[starts[k]]
            state[_FREE] -= requested
            while state[_FREE] < 0:
                state[_RESERVED] = max(state[_RESERVED], _pop(heap_time, heap_bytes, state))
            if requested > 0 and state[_RESERVED] > start:
                start, cause = state[_RESERVED], MEMORY
            for k in range(start_ptr[op], start_ptr[op + 1]):
                buffer = starts[k]
                reserved[buffer] = last_use[buffer] = state[_RESERVED] if size[buffer] > 0 else 0
                live[buffer] = True
            # What it touches may have been reserved by an op of another engine, for later than now.
            for k in range(touch_ptr[op], touch_ptr[op + 1]):
                if reserved[touched[k]] > start:
                    start, cause = reserved[touched[k]], MEMORY
        if launches:
            start, cause = _launch(hosts, op, drains, start=start, cause=cause)
        finish = start + duration[op]
        begins[op], end[op], wait[op], causes[op] = start, finish, start - free, cause
        ready[engine[op]] = finish
        if launches:
            _advance_host(hosts, op, drains, finish)
        if counts_bytes:
            for k in range(touch_ptr[op], touch_ptr[op + 1]):
                last_use[touched[k]] = max(last_use[touched[k]], finish)


@inner
def _after_hazards(steps: Steps, op: int, free: int) -> tuple[int, int]:
    """Wait for the ops that the ordering rule names; return from when on `op` may start, and what held it back."""
    after_ptr, after, end, previous_end = steps.after_ptr, steps.after, steps.end, steps.previous_end
    start, cause = free, NONE
    for k in range(after_ptr[op], after_ptr[op + 1]):
        earlier = after[k]
        done = end[earlier] if earlier >= 0 else previous_end[earlier + len(end)]
        if done > start:
            start, cause = done, steps.why[k]
    return start, cause


@inner
def _launch(hosts: Hosts, op: int, drains: bool, start: int, cause: int) -> tuple[int, int]:
    """Let the host thread of `op` launch it, after all earlier launches; `drains` is false where no op drains."""
    clock, state, host = hosts.clock, hosts.state, hosts.host[op]
    if drains and hosts.drains[op] and hosts.ended[host] > clock[host]:
        clock[host] = hosts.held[host] = hosts.ended[host]
    launched = clock[host] + hosts.cost[op]
    if launched > state[LAST]:
        state[LAST] = launched
        if drains:
            state[HELD] = max(state[HELD], hosts.held[host])
    hosts.issued[op] = state[LAST]
    if state[LAST] > start:
        state[LATE] += 1
        # A copy that held the host until all else was there, or longer, is the real cause of the wait.
        start, cause = state[LAST], COPY if state[HELD] >= start else HOST
    return start, cause


@inner
def _advance_host(hosts: Hosts, op: int, drains: bool, finish: int) -> None:
    """Let the host go on: after the launch, or, if the op blocks, once it has ended."""
    host = hosts.host[op]
    hosts.clock[host] = finish if hosts.blocks[op] else hosts.state[LAST]
    if drains:  # only blocking copies need this, and it is a tenth of the time
        hosts.ended[host] = max(hosts.ended[host], finish)
        if hosts.drains[op]:
            hosts.held[host] = finish


@inner
def _push(heap_time: I64, heap_bytes: I64, state: I64, time: int, size: int) -> None:
    """Put an entry into the heap: `size` bytes come back at `time`."""
    hole = state[_HEAP]
    state[_HEAP] += 1
    while hole > 0 and heap_time[(hole - 1) // 2] > time:
        parent = (hole - 1) // 2
        heap_time[hole], heap_bytes[hole] = heap_time[parent], heap_bytes[parent]
        hole = parent
    heap_time[hole], heap_bytes[hole] = time, size


@inner
def _pop(heap_time: I64, heap_bytes: I64, state: I64) -> int:
    """Take the earliest entry of the heap: its bytes are free, its time is returned."""
    earliest: int = heap_time[0]
    state[_FREE] += heap_bytes[0]
    state[_HEAP] -= 1
    used = state[_HEAP]
    time, size = heap_time[used], heap_bytes[used]
    hole = 0
    while 2 * hole + 1 < used:
        child = 2 * hole + 1
        if child + 1 < used and heap_time[child + 1] < heap_time[child]:
            child += 1
        if heap_time[child] >= time:
            break
        heap_time[hole], heap_bytes[hole] = heap_time[child], heap_bytes[child]
        hole = child
    heap_time[hole], heap_bytes[hole] = time, size
    return earliest
