"""The streams of a trace as they run beside one another: their state, and the compiled loop over its events.

The clock goes through ops in issue order, which is enough while an op takes as long whatever runs beside it. Here that
depends on what does, so time passes from event to event for all streams together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.simulator._iteration import Regime, engines
from gpumem.simulator.hazards import hazards
from gpumem.simulator.host_threads import LAST, LATE, Hosts
from gpumem.simulator.machine import Machine
from gpumem.trace import COMPUTE, I64, RECOMPUTE, Bool, Csr, Trace
from gpumem.trace.placement import Placement

IDLE = -1  # in place of the op that an engine runs
FAR = int(np.iinfo(np.int64).max)  # a time that never comes
NOW, TURN, LAUNCHED, KERNELS = range(4)  # entries of `Streams.state`


class Streams(NamedTuple):
    """The ops of an iteration, and how far each engine is. Rings have a row for each iteration that overlaps."""

    work: I64  # of each op, ns
    kernel: Bool  # of each op: it shares the GPU with other kernels
    after_ptr: I64  # by op
    after: I64  # the ops that it waits for, those of the iteration before as `op - n`
    order_ptr: I64  # by engine
    order: I64  # its ops in issue order
    rate: I64  # what each of k kernels does of its work in a ns, by k, in units; of one kernel it is the unit
    begun: I64  # of each engine: ops begun since the start
    running: I64  # of each engine: the op, or IDLE
    left: I64  # of each engine: units of work that its kernel has left
    until: I64  # of each engine: when what is no kernel ends
    ended: I64  # of each op: how often
    waits: Bool  # of each host: an op that it waits for has not ended
    given: I64  # of each host: ops that it has launched and that have not ended
    start: I64  # by iteration and op
    end: I64
    issued: I64
    state: I64  # the time, iterations that have ended, ops launched since the start, kernels that run

    @classmethod
    def make(
        cls, trace: Trace, machine: Machine, rate: list[int], placement: Placement | None, hosts: Hosts
    ) -> Streams:
        """Set the clock to 0, before the first iteration."""
        after = hazards(trace, placement).after
        _, engine = np.unique(engines(trace, machine), return_inverse=True)  # each of them has ops
        order = Csr.grouped(engine.astype(np.int64), np.arange(trace.n), int(engine.max()) + 1)
        ops = (machine.durations(trace), kernels(trace), after.ptr, after.idx, order.ptr, order.idx, np.array(rate))
        begun, left, until = np.zeros((3, len(order)), np.int64)
        running, ended = np.full(len(order), IDLE), np.zeros(trace.n, np.int64)
        waits, given = np.zeros(len(hosts.clock), np.bool_), np.zeros(len(hosts.clock), np.int64)
        # A wait reaches back by less than an iteration, and so does the way on that stream to an op that waits in turn.
        # So where all streams wait for one another, be it by way of others, the end of the ring holds nobody.
        start, end, issued = np.zeros((3, 2 * len(order), trace.n), np.int64)
        state = np.zeros(4, np.int64)
        return cls(*ops, begun, running, left, until, ended, waits, given, start, end, issued, state)


def kernels(trace: Trace) -> Bool:
    """Return which ops are kernels: they compute, as recorded or as a recomputation."""
    role = trace.ops.role
    return np.asarray((role == COMPUTE) | (role == RECOMPUTE), np.bool_)


@dataclass(slots=True, eq=False)
class SharedClock:
    """The streams and the hosts between two iterations."""

    streams: Streams
    hosts: Hosts
    regime: Regime = field(default_factory=Regime)

    def advance(self) -> tuple[I64, I64]:
        """Go on until one more iteration has ended; return when its ops started and ended."""
        streams = self.streams
        advance(streams, self.hosts)
        row = (streams.state[TURN] - 1) % len(streams.start)
        return streams.start[row].copy(), streams.end[row].copy()

    def cycle(self) -> int:
        """Return after how many iterations what is now repeats, 0 where it is new."""
        now = int(self.streams.state[NOW])
        return self.regime.cycle(self._state(now), self.hosts, now)

    def _state(self, now: int) -> bytes:
        """Return all that comes after depends on, relative to now, but for the lead of the hosts."""
        streams, hosts = self.streams, self.hosts
        runs = streams.running != IDLE
        kernel = runs & streams.kernel[streams.running]
        parts = [
            streams.begun - streams.state[TURN] * np.diff(streams.order_ptr),
            streams.running,
            np.where(kernel, streams.left, np.where(runs, streams.until - now, 0)),
        ]
        if len(hosts.cost):
            first, last = int(streams.state[TURN]) * len(streams.work), int(streams.state[LAUNCHED])
            rows, ops = np.divmod(np.arange(first, last), len(streams.work))
            issued = streams.issued[rows % len(streams.issued), ops]
            parts += [
                [last - first],
                np.maximum(issued - now, 0),
                streams.waits,
                streams.given,
                hosts.apart(now, now),
                hosts.ended - now,
            ]
        return b"".join(np.asarray(part, np.int64).tobytes() for part in parts)


@jit
def advance(streams: Streams, hosts: Hosts) -> None:  # noqa: C901  compiled: its columns are locals
    """Go from event to event until one more iteration has ended.

    At each event: end the ops that are due, begin what may begin on engines that are idle, look for the next event, and
    let kernels progress until then at the rate that so many of them have.
    """
    work, kernel, order_ptr, order = streams.work, streams.kernel, streams.order_ptr, streams.order
    begun, running, left, until = streams.begun, streams.running, streams.left, streams.until
    ended, rate = streams.ended, streams.rate
    n_ops, window, unit, hosted = len(work), len(streams.start), rate[1], len(hosts.cost) > 0
    now, turn, count = streams.state[NOW], streams.state[TURN], streams.state[KERNELS]
    todo = 0
    for op in range(n_ops):
        todo += ended[op] <= turn
    if hosted:
        hosts.state[LATE] = 0
    while True:
        for engine in range(len(running)):
            op = running[engine]
            if op != IDLE and (left[engine] <= 0 if kernel[op] else until[engine] <= now):
                streams.end[ended[op] % window, op] = now
                todo -= ended[op] == turn
                ended[op] += 1
                running[engine] = IDLE
                count -= kernel[op]
                if hosted:
                    release(streams, hosts, op, now)
        if todo == 0:
            break  # what may begin now begins at the same time, in the next call
        next_event = FAR
        for engine in range(len(running)):
            size = order_ptr[engine + 1] - order_ptr[engine]
            iteration = begun[engine] // size
            if running[engine] != IDLE or iteration >= turn + window:
                continue
            op = order[order_ptr[engine] + begun[engine] % size]
            if not _waits_have_ended(streams, op, iteration):
                continue
            if hosted:
                issued = launch(streams, hosts, iteration * n_ops + op)
                if issued > now:
                    next_event = min(next_event, issued)
                    hosts.state[LATE] += 1
                    continue
            streams.start[iteration % window, op] = now
            begun[engine] += 1
            running[engine], left[engine], until[engine] = op, work[op] * unit, now + work[op]
            count += kernel[op]
        for engine in range(len(running)):
            op = running[engine]
            if op != IDLE:
                next_event = min(next_event, now - (-left[engine] // rate[count]) if kernel[op] else until[engine])
        for engine in range(len(running)):
            if running[engine] != IDLE:
                left[engine] -= (next_event - now) * rate[count]
        now = next_event
    streams.state[NOW], streams.state[TURN], streams.state[KERNELS] = now, turn + 1, count


@inner
def _waits_have_ended(streams: Streams, op: int, iteration: int) -> bool:
    """Whether all ops have ended that an op of an iteration waits for, of it or, below 0, of the one before."""
    for row in range(streams.after_ptr[op], streams.after_ptr[op + 1]):
        earlier = streams.after[row]
        if earlier >= 0:
            if streams.ended[earlier] <= iteration:
                return False
        elif streams.ended[earlier + len(streams.work)] < iteration:
            return False
    return True


@inner
def launch(streams: Streams, hosts: Hosts, position: int) -> int:
    """Return when the op at a position since the start is launched; FAR where that is not known yet."""
    n_ops, window = len(streams.work), len(streams.start)
    while streams.state[LAUNCHED] <= position:
        row, op = streams.state[LAUNCHED] // n_ops % window, streams.state[LAUNCHED] % n_ops
        host = hosts.host[op]
        if streams.waits[host] or (hosts.drains[op] and streams.given[host] > 0):
            return FAR
        if hosts.drains[op]:
            hosts.clock[host] = max(hosts.clock[host], hosts.ended[host])
        hosts.state[LAST] = max(hosts.state[LAST], hosts.clock[host] + hosts.cost[op])
        streams.issued[row, op] = hosts.clock[host] = hosts.state[LAST]
        streams.waits[host] = hosts.blocks[op]
        streams.given[host] += 1
        streams.state[LAUNCHED] += 1
    return int(streams.issued[position // n_ops % window, position % n_ops])


@inner
def release(streams: Streams, hosts: Hosts, op: int, now: int) -> None:
    """An op has ended: its host goes on, if it has waited for it."""
    host = hosts.host[op]
    streams.given[host] -= 1
    hosts.ended[host] = now
    if hosts.blocks[op]:
        streams.waits[host] = False
        hosts.clock[host] = now
