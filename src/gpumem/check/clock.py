"""Time: the clocks computed naively, and timelines held against them."""

from __future__ import annotations

from bisect import bisect_right
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
    handing: I64 | None = None,
    sync: bool | None = None,
) -> None:
    """Check a timeline: durations, streams in order, every hazard respected, nothing later than need be.

    Parameters
    ----------
    duration : int64[n]
        Nanoseconds of each op.
    handing : int64[n], optional
        Nanoseconds that the host needs to hand over each op (`machine.host_costs(trace)`), none by default. Where it
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
    if (i := first(line.end - line.start != duration)) >= 0:
        raise CheckError("duration", f"op {i}: takes {line.end[i] - line.start[i]} ns, not {duration[i]}", ops=[i])
    count = line.first + line.cycle + 1
    hosts = NaiveHosts(trace, handing, sync)
    start, end, issued, late = _run(trace, duration, placement, capacity, duplex, count, hosts)
    origin = start[line.first].min()
    waits = _waits(trace, start, end, duplex)[line.first]
    rules = [("start", line.start, start[line.first] - origin), ("wait", line.wait, waits)]
    if (line.issued is not None) != hosts.on:
        lacking = "" if handing is not None else "; handing=machine.host_costs(trace) tells it of host time"
        raise CheckError("issue", f"the host is {'off' if hosts.on else 'on'}, the naive clock says it is not{lacking}")
    if line.issued is not None:
        rules.append(("issue", line.issued, issued[line.first] - origin))
    for rule, have, want in rules:
        if (i := first(have != want)) >= 0:
            raise CheckError(rule, f"op {i}: {rule}s {have[i]} ns, the naive clock says {want[i]}", ops=[i])
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
        if (i := first(end[begin + cycle] - done[begin + cycle] != end[begin] - done[begin])) >= 0:
            told = f"op {i}: does not repeat after {cycle} iterations from iteration {begin}"
            raise CheckError("cycle", told, ops=[i])
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
            told = f"op {span.op}: waits {span.wait} ns, cause {span.cause!r}, the naive clock says"
            raise CheckError("cause", f"{told} {' or '.join(sorted(allowed))}", ops=[span.op])


@strict
def naive_clock(
    trace: Trace,
    duration: I64,
    *,
    placement: Placement | None = None,
    capacity: int | None = None,
    duplex: bool = True,
    iterations: int = 3,
    handing: I64 | None = None,
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
        An op finds no room within the capacity, whatever it waits for.

    Notes
    -----
    An op waits for every conflicting op before it. Of each buffer, and with a placement of each byte, it is enough to
    know when the last write and the last touch have ended: mostly O(log B) an access, O(iterations x n + B) memory.
    """
    duration, hosts = _one_each(trace, duration), NaiveHosts(trace, handing, sync)
    return _run(trace, duration, placement, capacity, duplex, iterations, hosts)[:2]


def _run(
    trace: Trace,
    duration: I64,
    placement: Placement | None,
    capacity: int | None,
    duplex: bool,
    iterations: int,
    hosts: NaiveHosts,
) -> tuple[I64, I64, I64, list[list[str]]]:
    """Start, end and issue of every op in every iteration; what held the issue that an op waited for, else ''."""
    n = trace.n
    touched = _Touched(trace, placement)
    memory = _Memory(trace, capacity) if capacity is not None else None
    engine = _engines(trace, duplex)
    ready: dict[int, int] = {}
    start, end, issued = np.zeros((3, iterations, n), np.int64)
    late = [[""] * n for _ in range(iterations)]
    for k in range(iterations):
        for i in work.all_of(range(n)):
            times = [ready.get(engine[i], 0), touched.free(i)]
            if memory:
                times.append(memory.reserve(k * n + i))
            if hosts.on:
                issued[k, i] = hosts.issue(i)
                if issued[k, i] > max(times):
                    late[k][i] = "copy" if hosts.copying >= max(times) else "host"
                times.append(int(issued[k, i]))
            start[k, i] = max(times)
            end[k, i] = ready[engine[i]] = start[k, i] + duration[i]
            hosts.ended(i, int(end[k, i]))
            touched.by(i, int(end[k, i]))
            if memory:
                memory.touch(k * n + i, int(end[k, i]))
    return start, end, issued, late


def _engines(trace: Trace, duplex: bool) -> list[int]:
    """The engine of each op: its stream, or the one copy engine."""
    role = trace.ops.role
    shared = ((role == COPY_OUT) | (role == COPY_IN)) & (not duplex)
    return np.where(shared, -1, trace.ops.stream).tolist()  # type: ignore[no-any-return]


def _waits(trace: Trace, start: I64, end: I64, duplex: bool) -> I64:
    engine, ready = _engines(trace, duplex), dict[int, int]()
    wait = np.zeros_like(start)
    for k, i in work.all_of(np.ndindex(*start.shape)):
        wait[k, i] = start[k, i] - ready.get(engine[i], 0)
        ready[engine[i]] = int(end[k, i])
    return wait


class _Touched:
    """When the last write, and the last touch, of each buffer and byte have ended.

    Bytes are looked up in stretches `[begins[k], begins[k + 1])`: whoever writes a buffer waits for all that was there,
    so its bytes are one stretch from then on.
    """

    def __init__(self, trace: Trace, placement: Placement | None) -> None:
        b, ops = trace.buffers, trace.ops
        forever = b.persistent & (b.end - b.start == trace.n)
        fresh = np.flatnonzero(~b.host & ~forever & (placement is None))  # something new in each iteration
        self.fresh: list[list[int]] = [[] for _ in range(trace.n)]
        for j, step in zip(fresh.tolist(), b.start[fresh].tolist()):
            self.fresh[step].append(j)
        self.reads, self.writes = ops.reads.tolist(), ops.writes.tolist()
        self.wrote, self.touched = ([0] * len(b) for _ in range(2))
        self.bytes = dict[int, tuple[int, int]]()  # of each device buffer that is placed and has any
        if placement is not None:
            solid = np.flatnonzero(~b.host & (b.size > 0))
            low = placement.offset[solid]
            self.bytes = dict(zip(solid.tolist(), zip(low.tolist(), (low + b.size[solid]).tolist())))
        self.begins, self.stretch = [0], {0: (0, 0)}  # of each stretch by its first byte: last write, last touch

    def free(self, i: int) -> int:
        """Return when all has ended that op `i` conflicts with."""
        for j in self.fresh[i]:
            self.wrote[j] = self.touched[j] = 0
        ends = [0, *(self.wrote[j] for j in self.reads[i]), *(self.touched[j] for j in self.writes[i])]
        for rows, last in ((self.reads[i], 0), (self.writes[i], 1)):
            for begins in (self._within(*self.bytes[j]) for j in rows if j in self.bytes):
                ends += [self.stretch[begin][last] for begin in begins]
        return max(ends)

    def by(self, i: int, end: int) -> None:
        """Note that op `i` has ended."""
        for j in self.reads[i]:
            self.touched[j] = max(self.touched[j], end)
            for begin in self._within(*self.bytes[j]) if j in self.bytes else ():
                wrote, touched = self.stretch[begin]
                self.stretch[begin] = wrote, max(touched, end)
        for j in self.writes[i]:
            self.wrote[j] = self.touched[j] = max(self.touched[j], end)
            if j in self.bytes:
                first, *others = self._within(*self.bytes[j])
                self.stretch[first] = end, end
                for begin in others:
                    del self.stretch[begin]
                k = bisect_right(self.begins, first)
                del self.begins[k : k + len(others)]

    def _within(self, low: int, high: int) -> list[int]:
        """The stretches of these bytes, which begin and end with them."""
        for byte in (low, high):
            k = bisect_right(self.begins, byte) - 1
            if self.begins[k] < byte:
                self.begins.insert(k + 1, byte)
                self.stretch[byte] = self.stretch[self.begins[k]]
        return self.begins[bisect_right(self.begins, low) - 1 : bisect_right(self.begins, high) - 1]


class _Memory:
    """The capacity clock's counter: who reserved what, who gave back when."""

    def __init__(self, trace: Trace, capacity: int) -> None:
        self.trace, self.capacity, self.now = trace, capacity, 0
        n, b = trace.n, trace.buffers
        self.reserved = 0
        self.made: dict[int, list[Buffer]] = {}  # by the step they start at, but for those that never die
        for x in b:
            if x.space == "device" and x.persistent and x.end - x.start == n:
                self.reserved += x.size
            elif x.space == "device":
                self.made.setdefault(x.start, []).append(x)
        # instance: (buffer, position it starts at) -> [bytes, reserved at, given back at]
        self.instances: dict[tuple[int, int], list[int]] = {}
        self.ending: list[tuple[int, tuple[int, int]]] = []  # at which position, soonest first
        self.ended: list[tuple[int, int, tuple[int, int]]] = []  # when it came back, and its bytes; earliest first
        for x in (x for made in self.made.values() for x in made if x.end > n):
            self._add((x.id, x.start - n), x.end - n, x.size, 0, 0)
            self.reserved += x.size

    def _add(self, key: tuple[int, int], stop: int, size: int, since: int, back: int) -> None:
        self.instances[key] = [size, since, back]
        heappush(self.ending, (stop, key))

    def reserve(self, x: int) -> int:
        """Reserve what position `x` allocates; return when it and all that the op touches is there."""
        i = x % self.trace.n
        made = self.made.get(i, [])
        need = sum(m.size for m in made)
        self.reserved += need
        if need:
            while self.ending and self.ending[0][0] <= x:
                key = heappop(self.ending)[1]
                heappush(self.ended, (self.instances[key][2], self.instances[key][0], key))
            # what is not back by the time that suffices waits on
            while self.ended and (self.reserved > self.capacity or self.ended[0][0] <= self.now):
                back, size, key = heappop(self.ended)
                self.now = max(self.now, back)
                self.reserved -= size
                del self.instances[key]
            if self.reserved > self.capacity:
                raise CheckError("capacity", f"op {i}: the load exceeds the capacity of {self.capacity} bytes", ops=[i])
        for m in made:
            self._add((m.id, x), x + m.end - m.start, m.size, self.now if m.size else 0, self.now)
        return max([self.now if need else 0, *(t[1] for t in self._touched(x))])

    def touch(self, x: int, end: int) -> None:
        """The op at position `x` ended: what it touches comes back no earlier."""
        for instance in self._touched(x):
            instance[2] = max(instance[2], end)

    def _touched(self, x: int) -> list[list[int]]:
        op, b, n = self.trace.ops[x % self.trace.n], self.trace.buffers, self.trace.n
        keys = [(j, x - (x - int(b.start[j])) % n) for j in {*op.reads, *op.writes}]
        return [self.instances[key] for key in keys if key in self.instances]
