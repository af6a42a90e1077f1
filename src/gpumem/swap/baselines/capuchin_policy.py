"""Capuchin's hybrid policy (algorithm 1): what hides its copies is swapped first, then whatever costs less goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gpumem.base import work
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.facts.recompute import NO_END, Recomputable, recomputable
from gpumem.swap.facts.recompute_scratch import beside, states
from gpumem.swap.facts.times import queued
from gpumem.swap.plan import Recompute, Swap
from gpumem.swap.plan.gaps import gaps, straddle
from gpumem.swap.plan.replay import Device, replays
from gpumem.swap.plan.values import Origins
from gpumem.trace import I64, Csr, Trace


@dataclass(slots=True)
class Chains:
    """The candidates of Capuchin's algorithm 2, by row of a `Recomputable`.

    `sources`: candidates that a recomputation of this one starts from. `time`: ns of one recomputation from its
    sources. `extra`: ns that those which start from it need more once it is dropped as well.
    """

    size: dict[int, int]
    sources: dict[int, set[int]]
    time: dict[int, int]
    extra: dict[int, int]
    left: list[int]
    starters: dict[int, set[int]]  # who starts from each
    dropped: dict[int, int]  # how many of these are dropped
    taken: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace, found: Recomputable, rows: list[int]) -> Chains:
        """Start with every value on the device: a recomputation takes the time of its closure."""
        g, mine = found.gaps, [k for k in rows if found.ok[k]]
        by_buffer = Csr.grouped(g.buffer[mine], np.array(mine, np.int64), len(trace.buffers)).tolist()
        sources = {}
        for k in mine:
            inputs = (j for b in found.sources[k].tolist() for j in by_buffer[b])
            sources[k] = {j for j in inputs if g.after[j] < g.before[k] <= g.before[j]}
        size = {k: int(g.size[k]) for k in mine}
        starters: dict[int, set[int]] = {k: set() for k in mine}
        for k in mine:
            for j in sources[k]:
                starters[j].add(k)
        time, zeros = {k: int(found.cost_ns[k]) for k in mine}, dict.fromkeys(mine, 0)
        return cls(size, sources, time, dict(zeros), mine, starters, zeros)

    def overhead(self, k: int) -> int:
        """Nanoseconds that dropping candidate `k` costs, given what is dropped already."""
        return self.time[k] + self.extra[k]

    def best(self) -> int:
        """Return the candidate that saves most bytes per nanosecond (MSPS), -1 where none is left."""
        return max(self.left, key=lambda k: self.size[k] / max(self.overhead(k), 1), default=-1)

    def discard(self, k: int) -> None:
        """Candidate `k` is not to be recomputed: it stays, or it is swapped."""
        if k in self.sources and k in self.left:
            self.left.remove(k)

    def take(self, k: int) -> None:
        """Drop candidate `k`; who starts from it starts from its sources from now on (algorithm 2)."""
        self.left.remove(k)
        gone = set(self.taken)
        for j in self.starters[k]:
            new = self.sources[k] - self.sources[j]
            self.sources[j] = (self.sources[j] - {k}) | new
            self.time[j] += self.time[k]
            for i in new:
                self.starters[i].add(j)
                self.dropped[i] += j in gone
        for i in self.sources[k]:
            self.dropped[i] += 1
        self.taken.append(k)
        for j in self.left:  # once for each of the dropped that has to start from it
            self.extra[j] = self.time[j] * self.dropped[j]


@dataclass(frozen=True, slots=True, eq=False)
class AccessPattern:
    """The access pattern, and the rows of `found` that are candidates, by free time, longest first."""

    trace: Trace
    machine: Machine
    line: Timeline
    found: Recomputable
    rows: I64
    free_ns: I64  # FT of every gap
    out_ns: I64
    in_ns: I64
    size: I64
    go_ns: I64  # start of the first op in the gap whose load is above the limit
    come_ns: I64  # end of the last
    device: Device  # with every value on it

    @classmethod
    def of(cls, trace: Trace, machine: Machine, limit: int, threshold: int) -> AccessPattern:
        """Measure an iteration; rank the gaps that straddle an op above the limit (section 4.3)."""
        g, line, n = gaps(trace), simulate(trace, machine), trace.n
        size = g.size
        out_ns, in_ns = machine.out.copy_ns(size), machine.into.copy_ns(size)
        free_ns = line.start[g.before % n] - in_ns - line.end[g.after] - out_ns
        high = trace.live_bytes() > limit
        mine = (g.before < n) & (size >= max(threshold, 1)) & straddle(g, high)
        most = np.where(mine, NO_END, -1)  # others are not looked at: their chains would fill memory
        found = recomputable(trace, machine, g, most=most, earlier=False)
        rows = np.flatnonzero(mine)
        rows = rows[np.lexsort((-size[rows], -free_ns[rows]))]
        ops = np.flatnonzero(high)
        first, last = np.searchsorted(ops, g.after + 1), np.searchsorted(ops, g.before) - 1
        go = line.start[ops[np.minimum(first, len(ops) - 1)]]
        come = line.end[ops[np.maximum(last, 0)]]
        device = Device(trace, Origins.of(trace))
        return cls(trace, machine, line, found, rows, free_ns, out_ns, in_ns, size, go, come, device)

    def with_plan(self, decisions: Iterable[Swap | Recompute]) -> Device:
        """Return what a plan leaves on the device."""
        return Device(self.trace, self.device.values, decisions)

    def drop(self, k: int, at: int = -1) -> Recompute:
        """Return the decision to recompute candidate `k`: before its back-access, or before op `at`."""
        b, after, before = (int(x[k]) for x in (self.found.gaps.buffer, self.found.gaps.after, self.found.gaps.before))
        return Recompute(b, after, before, at if at >= 0 else before)


@dataclass(frozen=True, slots=True)
class Choice:
    """What is swapped and what is recomputed: rows of the candidates; and what that holds on the host.

    `anew`: what a recomputation needs and was dropped for longer is made in scratch; else it comes back too, and stays.
    """

    swaps: list[int]
    recomputes: list[int]
    host: Pinned
    anew: bool


def select(c: AccessPattern, target: int, recompute: bool, anew: bool, queue: bool) -> Choice:
    """Algorithm 1: those that hide both copies first, then whichever overhead is smaller."""
    room, left = LiveBytes.of(c.trace, target), c.rows.tolist()
    choice = Choice([], [], Pinned(c.trace, c.found.gaps, c.machine.pinned), anew)
    chains = Chains.of(c.trace, c.found, left if recompute else [])
    while left and room.over and not work.over():
        k = left[0]
        cost = _stall(c, [*choice.swaps, k]) - _stall(c, choice.swaps) if queue else -int(c.free_ns[k])
        j = chains.best() if cost > 0 else -1
        again = j >= 0 and chains.overhead(j) < cost
        k = j if again else k
        after, before = int(c.found.gaps.after[k]), int(c.found.gaps.before[k])
        goes = room.helps(after + 1, before)
        if goes and again and not _can_run_again(c, choice, k, room):
            chains.discard(k)
            continue
        left.remove(k)
        goes = goes and (again or choice.host.take(k, after, before))
        if goes:
            room.leave(after + 1, before, int(c.size[k]))
            (choice.recomputes if again else choice.swaps).append(k)
        if goes and again:
            chains.take(k)
        else:
            chains.discard(k)
    return choice


def _can_run_again(c: AccessPattern, choice: Choice, k: int, room: LiveBytes) -> bool:
    """Whether what candidate `k` needs beside makes no peak as high as there is; let the host keep its generators."""
    (made,) = replays(c.device, [c.drop(k)])
    needs = room.at(made.place) + beside(made, c.trace.buffers.size)
    return needs < room.peak and choice.host.keep(states(c.trace, [made], choice.host.states))


def _stall(c: AccessPattern, swaps: list[int]) -> int:
    """By how much the worst copies are late if they queue, outs forwards, ins backwards, and meet no load too high."""
    if not swaps:
        return 0
    g, rows = c.found.gaps, np.array(swaps, np.int64)
    outs, ins = rows[np.argsort(g.after[rows], kind="stable")], rows[np.argsort(g.before[rows], kind="stable")]
    gone = queued(c.line.end[g.after[outs]], c.out_ns[outs])
    begin = -queued(-c.line.start[g.before[ins]][::-1], c.in_ns[ins][::-1])[::-1]
    return max(int((gone - c.go_ns[outs]).max()), 0) + max(int((c.come_ns[ins] - begin).max()), 0)
