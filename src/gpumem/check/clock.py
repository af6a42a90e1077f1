"""Time: the clocks computed naively, and timelines held against them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.errors import CheckError
from gpumem.check.hosts import NaiveHosts
from gpumem.simulator.machine import Machine
from gpumem.simulator.timeline import Timeline
from gpumem.trace import COPY_IN, COPY_OUT, I64, Buffer, Trace, first, int_column
from gpumem.trace.placement import Placement


@strict
def timeline(
    trace: Trace,
    line: Timeline,
    duration: I64,
    *,
    placement: Placement | None = None,
    capacity: int | None = None,
    duplex: bool = True,
    host_costs: I64 | None = None,
    sync: bool | None = None,
) -> None:
    """Check a timeline: durations, streams in order, every hazard respected, nothing later than need be.

    Parameters
    ----------
    duration : int64[n]
        Nanoseconds of each op.
    host_costs : int64[n], optional
        Nanoseconds that the host needs to launch each op (`machine.host_costs(trace)`), none by default. Where it
        needs none and no op blocks, the host is off.
    sync : bool, optional
        As of the clock.
    placement, capacity
        Of the clock that made the timeline, as in `gpumem.simulator.simulate.simulate`.
    duplex : bool
        Whether both directions of the link run at once.

    Raises
    ------
    CheckError
        The first op that is wrong, or the makespan.
    ValueError
        Not one duration, or not one span, for each op.
    """
    duration = _one_each(trace, duration)
    line.check_fits(trace)
    if (op := first(line.end - line.start != duration)) >= 0:
        raise CheckError("duration", f"op {op}: takes {line.end[op] - line.start[op]} ns, not {duration[op]}", ops=[op])
    count = line.first + line.cycle + 1
    hosts = NaiveHosts(trace, host_costs, sync)
    start, end, issued, late = _run(
        trace, duration, hosts, placement=placement, capacity=capacity, duplex=duplex, iterations=count
    )
    origin = start[line.first].min()
    waits = _waits(trace, start, end, duplex)[line.first]
    rules = [("start", line.start, start[line.first] - origin), ("wait", line.wait, waits)]
    if (line.issued is not None) != hosts.on:
        lacking = "" if host_costs is not None else "; host_costs=machine.host_costs(trace) tells it of host time"
        raise CheckError("issue", f"the host is {'off' if hosts.on else 'on'}, the naive clock says it is not{lacking}")
    if line.issued is not None:
        rules.append(("issue", line.issued, issued[line.first] - origin))
    for rule, have, want in rules:
        if (op := first(have != want)) >= 0:
            raise CheckError(rule, f"op {op}: {rule}s {have[op]} ns, the naive clock says {want[op]}", ops=[op])
    _check_regime(line, end)
    _check_causes(line, late[line.first])


def _one_each(trace: Trace, duration: I64) -> I64:
    if isinstance(duration, Machine):
        raise TypeError("duration: a Machine came; machine.durations(trace) gives the nanoseconds of each op")
    if len(ns := int_column(duration, "duration")) != trace.n:
        raise ValueError(f"duration: {len(ns)} of them, but trace {trace.name!r:.60} has {trace.n} ops")
    return ns


def _check_regime(line: Timeline, end: I64) -> None:
    done = np.maximum.accumulate(end.max(axis=1))
    begin, cycle = line.first, line.cycle
    if cycle:
        makespan = Fraction(int(done[begin + cycle] - done[begin]), cycle)
        if (op := first(end[begin + cycle] - done[begin + cycle] != end[begin] - done[begin])) >= 0:
            reason = f"op {op}: does not repeat after {cycle} iterations from iteration {begin}"
            raise CheckError("cycle", reason, ops=[op])
    else:
        half = begin // 2
        makespan = Fraction(int(done[begin] - done[half]), begin - half) if begin else Fraction(int(done[0]))
    if round(makespan) != line.makespan:
        raise CheckError("makespan", f"makespan: {line.makespan} ns, the naive clock says {round(makespan)}")


def _check_causes(line: Timeline, late: list[str]) -> None:
    """A cause where there is a wait, and that of the host where it came last; of the others none is the host."""
    for span, host in zip(line, late):
        allowed = {host} if host else {"data", "copy", "memory"} if span.wait else {"none"}
        if span.cause not in allowed:
            reason = f"op {span.op}: waits {span.wait} ns, cause {span.cause!r}, the naive clock says"
            raise CheckError("cause", f"{reason} {' or '.join(sorted(allowed))}", ops=[span.op])


@strict
def naive_clock(
    trace: Trace,
    duration: I64,
    *,
    placement: Placement | None = None,
    capacity: int | None = None,
    duplex: bool = True,
    iterations: int = 3,
    host_costs: I64 | None = None,
    sync: bool | None = None,
) -> tuple[I64, I64]:
    """Return start and end of every op in every iteration, by the rules taken literally.

    Parameters as in `timeline`.

    Returns
    -------
    start, end : int64[iterations, n]
        Nanoseconds.

    Raises
    ------
    CheckError
        An op finds too few free bytes within the capacity, whatever it waits for.

    Notes
    -----
    An op waits for every conflicting op before it. Of each buffer, and with a placement of each byte, it is enough to
    know when the last write and the last touch have ended: mostly O(log B) an access, O(iterations x n + B) memory.
    """
    duration, hosts = _one_each(trace, duration), NaiveHosts(trace, host_costs, sync)
    return _run(trace, duration, hosts, placement=placement, capacity=capacity, duplex=duplex, iterations=iterations)[
        :2
    ]


def _run(
    trace: Trace,
    duration: I64,
    hosts: NaiveHosts,
    *,
    placement: Placement | None,
    capacity: int | None,
    duplex: bool,
    iterations: int,
) -> tuple[I64, I64, I64, list[list[str]]]:
    """Start, end and issue of every op in every iteration; what held the issue that an op waited for, else ''."""
    count = trace.n
    touched = _Touched(trace, placement)
    memory = _Memory(trace, capacity) if capacity is not None else None
    engine = _engines(trace, duplex)
    ready: dict[int, int] = {}
    start, end, issued = np.zeros((3, iterations, count), np.int64)
    late = [[""] * count for _ in range(iterations)]
    for iteration in range(iterations):
        for op in work.all_of(range(count)):
            times = [ready.get(engine[op], 0), touched.free(op)]
            if memory:
                times.append(memory.reserve(iteration * count + op))
            if hosts.on:
                issued[iteration, op] = hosts.issue(op)
                if issued[iteration, op] > max(times):
                    late[iteration][op] = "copy" if hosts.copying >= max(times) else "host"
                times.append(int(issued[iteration, op]))
            start[iteration, op] = max(times)
            end[iteration, op] = ready[engine[op]] = start[iteration, op] + duration[op]
            hosts.ended(op, int(end[iteration, op]))
            touched.by(op, int(end[iteration, op]))
            if memory:
                memory.touch(iteration * count + op, int(end[iteration, op]))
    return start, end, issued, late


def _engines(trace: Trace, duplex: bool) -> list[int]:
    """The engine of each op: its stream, or the one copy engine."""
    role = trace.ops.role
    shared = ((role == COPY_OUT) | (role == COPY_IN)) & (not duplex)
    return np.where(shared, -1, trace.ops.stream).tolist()  # type: ignore[no-any-return]


def _waits(trace: Trace, start: I64, end: I64, duplex: bool) -> I64:
    engine, ready = _engines(trace, duplex), dict[int, int]()
    wait = np.zeros_like(start)
    for iteration, op in work.all_of(np.ndindex(*start.shape)):
        wait[iteration, op] = start[iteration, op] - ready.get(engine[op], 0)
        ready[engine[op]] = int(end[iteration, op])
    return wait


class _Touched:
    """When the last write, and the last touch, of each buffer and byte have ended.

    Bytes are looked up in stretches `[begins[k], begins[k + 1])`: whoever writes a buffer waits for all that was there,
    so its bytes are one stretch from then on.
    """

    def __init__(self, trace: Trace, placement: Placement | None) -> None:
        buffers, ops = trace.buffers, trace.ops
        forever = buffers.persistent & (buffers.end - buffers.start == trace.n)
        fresh = np.flatnonzero(~buffers.host & ~forever & (placement is None))  # something new in each iteration
        self.fresh: list[list[int]] = [[] for _ in range(trace.n)]
        for buffer, step in zip(fresh.tolist(), buffers.start[fresh].tolist()):
            self.fresh[step].append(buffer)
        self.reads, self.writes = ops.reads.tolist(), ops.writes.tolist()
        self.wrote, self.touched = ([0] * len(buffers) for _ in range(2))
        self.bytes = dict[int, tuple[int, int]]()  # of each device buffer that is placed and has any
        if placement is not None:
            solid = np.flatnonzero(~buffers.host & (buffers.size > 0))
            low = placement.offset[solid]
            self.bytes = dict(zip(solid.tolist(), zip(low.tolist(), (low + buffers.size[solid]).tolist())))
        self.begins, self.stretch = [0], {0: (0, 0)}  # of each stretch by its first byte: last write, last touch

    def free(self, op: int) -> int:
        """Return when all has ended that op `op` conflicts with."""
        for buffer in self.fresh[op]:
            self.wrote[buffer] = self.touched[buffer] = 0
        ends = [
            0,
            *(self.wrote[buffer] for buffer in self.reads[op]),
            *(self.touched[buffer] for buffer in self.writes[op]),
        ]
        for rows, last in ((self.reads[op], 0), (self.writes[op], 1)):
            for begins in (self._within(*self.bytes[buffer]) for buffer in rows if buffer in self.bytes):
                ends += [self.stretch[begin][last] for begin in begins]
        return max(ends)

    def by(self, op: int, end: int) -> None:
        """Note that op `op` has ended."""
        for buffer in self.reads[op]:
            self.touched[buffer] = max(self.touched[buffer], end)
            for begin in self._within(*self.bytes[buffer]) if buffer in self.bytes else ():
                wrote, touched = self.stretch[begin]
                self.stretch[begin] = wrote, max(touched, end)
        for buffer in self.writes[op]:
            self.wrote[buffer] = self.touched[buffer] = max(self.touched[buffer], end)
            if buffer in self.bytes:
                first, *others = self._within(*self.bytes[buffer])
                self.stretch[first] = end, end
                for begin in others:
                    del self.stretch[begin]
                place = bisect_right(self.begins, first)
                del self.begins[place : place + len(others)]

    def _within(self, low: int, high: int) -> list[int]:
        """The stretches of these bytes, which begin and end with them."""
        for byte in (low, high):
            place = bisect_right(self.begins, byte) - 1
            if self.begins[place] < byte:
                self.begins.insert(place + 1, byte)
                self.stretch[byte] = self.stretch[self.begins[place]]
        return self.begins[bisect_right(self.begins, low) - 1 : bisect_right(self.begins, high) - 1]


@dataclass(slots=True)
class _Instance:
    """One buffer of one iteration: its bytes, when they were reserved, and when they are given back."""

    size: int
    since: int
    until: int


class _Memory:
    """The counter of the byte-counting clock: who reserved what, who gave back when."""

    def __init__(self, trace: Trace, capacity: int) -> None:
        self.trace, self.capacity, self.now = trace, capacity, 0
        steps, buffers = trace.n, trace.buffers
        self.reserved = 0
        self.made: dict[int, list[Buffer]] = {}  # by the step they start at, but for those that never die
        for buffer in buffers:
            if buffer.space == "device" and buffer.persistent and buffer.end - buffer.start == steps:
                self.reserved += buffer.size
            elif buffer.space == "device":
                self.made.setdefault(buffer.start, []).append(buffer)
        self.instances: dict[tuple[int, int], _Instance] = {}  # by buffer and the position at which it starts
        self.ending: list[tuple[int, tuple[int, int]]] = []  # at which position, soonest first
        self.ended: list[tuple[int, int, tuple[int, int]]] = []  # when it came back, and its bytes; earliest first
        for buffer in (buffer for made in self.made.values() for buffer in made if buffer.end > steps):
            self._add((buffer.id, buffer.start - steps), buffer.end - steps, _Instance(buffer.size, since=0, until=0))
            self.reserved += buffer.size

    def _add(self, key: tuple[int, int], stop: int, instance: _Instance) -> None:
        self.instances[key] = instance
        heappush(self.ending, (stop, key))

    def reserve(self, position: int) -> int:
        """Reserve what position `position` allocates; return when it and all that the op touches is there."""
        op = position % self.trace.n
        made = self.made.get(op, [])
        allocated = sum(buffer.size for buffer in made)
        self.reserved += allocated
        if allocated:
            while self.ending and self.ending[0][0] <= position:
                key = heappop(self.ending)[1]
                heappush(self.ended, (self.instances[key].until, self.instances[key].size, key))
            # What is given back later than needed remains in the heap for the next op.
            while self.ended and (self.reserved > self.capacity or self.ended[0][0] <= self.now):
                back, size, key = heappop(self.ended)
                self.now = max(self.now, back)
                self.reserved -= size
                del self.instances[key]
            if self.reserved > self.capacity:
                raise CheckError(
                    "capacity", f"op {op}: the live bytes exceed the capacity of {self.capacity} bytes", ops=[op]
                )
        for buffer in made:
            instance = _Instance(buffer.size, since=self.now if buffer.size else 0, until=self.now)
            self._add((buffer.id, position), position + buffer.end - buffer.start, instance)
        return max([self.now if allocated else 0, *(instance.since for instance in self._touched(position))])

    def touch(self, position: int, end: int) -> None:
        """The op at position `position` ended: what it touches comes back no earlier."""
        for instance in self._touched(position):
            instance.until = max(instance.until, end)

    def _touched(self, position: int) -> list[_Instance]:
        op, buffers, steps = self.trace.ops[position % self.trace.n], self.trace.buffers, self.trace.n
        keys = [
            (buffer, position - (position - int(buffers.start[buffer])) % steps) for buffer in {*op.reads, *op.writes}
        ]
        return [self.instances[key] for key in keys if key in self.instances]
