"""Time: the clocks computed naively, and timelines held against them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gpumem.base.arguments import strict
from gpumem.base.errors import CheckError
from gpumem.check.hosts import NaiveHosts
from gpumem.check.memory import upward
from gpumem.simulator.machine import Machine
from gpumem.simulator.timeline import Timeline
from gpumem.trace import COPY_IN, COPY_OUT, I64, Bool, Buffer, Trace, first, int_column
from gpumem.trace.placement import Placement

Places = NDArray[np.int32]  # ops; all pairs may conflict


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
    An op waits for every conflicting op of the last n positions. Older ones need no look: op `x` itself,
    one iteration ago, touched the same buffers and waited for them, or it conflicts with nobody.
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
    waits_for = _conflicts(trace, placement)
    memory = _Memory(trace, capacity) if capacity is not None else None
    engine = _engines(trace, duplex)
    ready: dict[int, int] = {}
    start, end, issued = np.zeros((3, iterations, n), np.int64)
    late = [[""] * n for _ in range(iterations)]
    for k in range(iterations):
        for i in range(n):
            times = [ready.get(engine[i], 0)]
            this, last = waits_for[i]
            times.append(int(end[k, this].max(initial=0)))
            if k:
                times.append(int(end[k - 1, last].max(initial=0)))
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
    for k, i in np.ndindex(*start.shape):
        wait[k, i] = start[k, i] - ready.get(engine[i], 0)
        ready[engine[i]] = int(end[k, i])
    return wait


def _conflicts(trace: Trace, placement: Placement | None) -> list[tuple[Places, Places]]:
    """For each op, the ops it conflicts with: earlier ones of its iteration, and ones of the iteration before."""
    n, b = trace.n, trace.buffers
    touching, writing = _ops_of(trace)
    found = np.zeros((n, n), np.bool_)
    for j, ops in enumerate(touching):
        writes = np.isin(ops, writing[j])
        either = writes[:, None] | writes
        forever = b.persistent[j] and b.end[j] - b.start[j] == n
        if placement is None and not b.host[j] and not forever:  # only ops of the same lifetime
            back = (ops[:, None] - ops - 1) % n + 1  # positions from op x back to the last op y
            either &= back <= ((ops - b.start[j]) % n)[:, None]
        found[np.ix_(ops, ops)] |= either
    if placement is not None:
        _share_bytes(trace, placement, touching, writing, found)
    return [(np.flatnonzero(row[:x]).astype(np.int32), _from(row, x)) for x, row in enumerate(found)]


def _from(row: Bool, x: int) -> Places:
    return (np.flatnonzero(row[x:]) + x).astype(np.int32)


def _ops_of(trace: Trace) -> tuple[list[I64], list[I64]]:
    """For each buffer the ops that touch it, and those that write it."""
    touching, writing = ([set[int]() for _ in trace.buffers.size] for _ in range(2))
    for rows, told in ((trace.ops.reads, (touching,)), (trace.ops.writes, (touching, writing))):
        for j, op in zip(rows.idx.tolist(), rows.rows().tolist()):
            for sets in told:
                sets[j].add(op)
    touches, writes = ([np.array(sorted(ops), np.int64) for ops in sets] for sets in (touching, writing))
    return touches, writes


def _share_bytes(
    trace: Trace, placement: Placement, touching: Sequence[I64], writing: Sequence[I64], found: Bool
) -> None:
    """Add the ops that touch two buffers which share a byte, one of them writing: one step at each first byte.

    Of two that share a byte one has its first byte in the other. So going up, a buffer meets all that hold its first
    byte, and both have met: O(n) for each touch. Each buffer with each other one would be cubic.
    """
    touched, written = np.zeros((2, trace.n), np.int64)  # by how many of the buffers that hold the byte
    for j, ended in upward(trace.buffers, placement.offset):
        for gone in ended:
            touched[touching[gone]] -= 1
            written[writing[gone]] -= 1
        touched[touching[j]] += 1
        written[writing[j]] += 1
        found[touching[j]] |= written > 0
        found[writing[j]] |= touched > 0
    found |= found.T  # who came first met nobody yet


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
        # instance: (buffer, position it starts at) -> [bytes, position it ends at, reserved at, given back at]
        self.instances: dict[tuple[int, int], list[int]] = {}
        for x in (x for made in self.made.values() for x in made if x.end > n):
            self.instances[x.id, x.start - n] = [x.size, x.end - n, 0, 0]
            self.reserved += x.size

    def reserve(self, x: int) -> int:
        """Reserve what position `x` allocates; return when it and all that the op touches is there."""
        i = x % self.trace.n
        made = self.made.get(i, [])
        need = sum(m.size for m in made)
        self.reserved += need
        if need:
            ended = sorted((t[3], t[0], key) for key, t in self.instances.items() if t[1] <= x)
            for back, size, key in ended:  # earliest first; what is not back by the time that suffices waits on
                if self.reserved <= self.capacity and back > self.now:
                    break
                self.now = max(self.now, back)
                self.reserved -= size
                del self.instances[key]
            if self.reserved > self.capacity:
                raise CheckError("capacity", f"op {i}: the load exceeds the capacity of {self.capacity} bytes", ops=[i])
        for m in made:
            self.instances[m.id, x] = [m.size, x + m.end - m.start, self.now if m.size else 0, self.now]
        return max([self.now if need else 0, *(t[2] for t in self._touched(x))])

    def touch(self, x: int, end: int) -> None:
        """The op at position `x` ended: what it touches comes back no earlier."""
        for instance in self._touched(x):
            instance[3] = max(instance[3], end)

    def _touched(self, x: int) -> list[list[int]]:
        op, b, n = self.trace.ops[x % self.trace.n], self.trace.buffers, self.trace.n
        keys = [(j, x - (x - int(b.start[j])) % n) for j in {*op.reads, *op.writes}]
        return [self.instances[key] for key in keys if key in self.instances]
