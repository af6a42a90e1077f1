"""Capuchin's hybrid policy (algorithm 1): swap what hides its copies, then swap or recompute whatever costs less."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

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
    dependents: dict[int, set[int]]  # candidates whose recomputation starts from each
    dropped: dict[int, int]  # how many of these are dropped
    taken: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace, values: Recomputable, rows: list[int]) -> Chains:
        """Start with every value on the device: a recomputation takes the time of its closure."""
        spans, candidates = values.gaps, [row for row in rows if values.ok[row]]
        buffers = spans.buffer[candidates]
        by_buffer = Csr.grouped(buffers, np.array(candidates, np.int64), len(trace.buffers)).tolist()
        sources = {}
        for row in candidates:
            inputs = (source for buffer in values.sources[row].tolist() for source in by_buffer[buffer])
            before = spans.before[row]
            sources[row] = {source for source in inputs if spans.after[source] < before <= spans.before[source]}
        dependents: dict[int, set[int]] = {row: set() for row in candidates}
        for row in candidates:
            for source in sources[row]:
                dependents[source].add(row)
        zeros = dict.fromkeys(candidates, 0)
        return cls(
            size={row: int(spans.size[row]) for row in candidates},
            sources=sources,
            time={row: int(values.cost_ns[row]) for row in candidates},
            extra=dict(zeros),
            left=candidates,
            dependents=dependents,
            dropped=zeros,
        )

    def overhead(self, row: int) -> int:
        """Nanoseconds that dropping candidate `row` costs, given what is dropped already."""
        return self.time[row] + self.extra[row]

    def best(self) -> int:
        """Return the candidate that saves most bytes per nanosecond (MSPS), -1 where none is left."""
        return max(self.left, key=lambda row: self.size[row] / max(self.overhead(row), 1), default=-1)

    def discard(self, row: int) -> None:
        """Candidate `row` is not to be recomputed: it stays, or it is swapped."""
        if row in self.sources and row in self.left:
            self.left.remove(row)

    def take(self, row: int) -> None:
        """Drop candidate `row`; what starts from it starts from its sources from now on (algorithm 2)."""
        self.left.remove(row)
        earlier = set(self.taken)
        for dependent in self.dependents[row]:
            new = self.sources[row] - self.sources[dependent]
            self.sources[dependent] = (self.sources[dependent] - {row}) | new
            self.time[dependent] += self.time[row]
            for source in new:
                self.dependents[source].add(dependent)
                self.dropped[source] += dependent in earlier
        for source in self.sources[row]:
            self.dropped[source] += 1
        self.taken.append(row)
        for candidate in self.left:  # it is recomputed once more for each of the dropped that has to start from it
            self.extra[candidate] = self.time[candidate] * self.dropped[candidate]


@dataclass(frozen=True, slots=True, eq=False)
class AccessPattern:
    """The access pattern, and the rows of `values` that are candidates, by free time, longest first."""

    trace: Trace
    machine: Machine
    line: Timeline
    values: Recomputable
    rows: I64
    free_ns: I64  # FT of every gap
    out_ns: I64
    in_ns: I64
    size: I64
    high_ns: I64  # start of the first op in the gap whose live bytes exceed the limit
    low_ns: I64  # end of the last
    device: Device  # with every value on it

    @classmethod
    def of(cls, trace: Trace, machine: Machine, limit: int, threshold: int) -> AccessPattern:
        """Measure an iteration; rank the gaps that straddle an op above the limit (section 4.3)."""
        spans, line, n = gaps(trace), simulate(trace, machine), trace.n
        size = spans.size
        out_ns, in_ns = machine.out.copy_ns(size), machine.into.copy_ns(size)
        free_ns = line.start[spans.before % n] - in_ns - line.end[spans.after] - out_ns
        high = trace.live_bytes() > limit
        chosen = (spans.before < n) & (size >= max(threshold, 1)) & straddle(spans, high)
        most = np.where(chosen, NO_END, -1)  # others are not looked at: their chains would fill memory
        values = recomputable(trace, machine, spans, most=most, earlier=False)
        rows = np.flatnonzero(chosen)
        rows = rows[np.lexsort((-size[rows], -free_ns[rows]))]
        ops = np.flatnonzero(high)
        first, last = np.searchsorted(ops, spans.after + 1), np.searchsorted(ops, spans.before) - 1
        return cls(
            trace=trace,
            machine=machine,
            line=line,
            values=values,
            rows=rows,
            free_ns=free_ns,
            out_ns=out_ns,
            in_ns=in_ns,
            size=size,
            high_ns=line.start[ops[np.minimum(first, len(ops) - 1)]],
            low_ns=line.end[ops[np.maximum(last, 0)]],
            device=Device(trace, Origins.of(trace)),
        )

    def with_plan(self, decisions: Iterable[Swap | Recompute]) -> Device:
        """Return what a plan leaves on the device."""
        return Device(self.trace, self.device.values, decisions)

    def drop(self, row: int, at: int = -1) -> Recompute:
        """Return the decision to recompute candidate `row`: before its back-access, or before op `at`."""
        buffer, after, before = self.accesses(row)
        return Recompute(buffer, after, before, at if at >= 0 else before)

    def swap(self, row: int, due: int) -> Swap:
        """Return the decision to swap candidate `row` with its buffer off the device from its access until `due`."""
        buffer, after, before = self.accesses(row)
        return Swap(buffer, after, before, release=after + 1, prefetch=due)

    def accesses(self, row: int) -> tuple[int, int, int]:
        """Return the buffer of candidate `row`, its evicted-access and its back-access."""
        spans = self.values.gaps
        return int(spans.buffer[row]), int(spans.after[row]), int(spans.before[row])


class CapuchinPolicy(NamedTuple):
    """How candidates are chosen.

    `recompute`: whether to recompute as well. `in_scratch`: a source of a recomputation that was dropped for longer is
    recomputed in scratch; else it comes back too, and stays. `queue`: as in `capuchin`.
    """

    recompute: bool
    in_scratch: bool
    queue: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What is swapped and what is recomputed, rows of the candidates, by which policy; and what the host holds."""

    swaps: list[int]
    recomputes: list[int]
    host: Pinned
    policy: CapuchinPolicy


def select(pattern: AccessPattern, target: int, policy: CapuchinPolicy) -> Choice:
    """Algorithm 1: swap those that hide both copies first, then swap or recompute by the smaller overhead."""
    live, left = LiveBytes.of(pattern.trace, target), pattern.rows.tolist()
    choice = Choice([], [], Pinned(pattern.trace, pattern.values.gaps, pattern.machine.pinned), policy)
    chains = Chains.of(pattern.trace, pattern.values, left if policy.recompute else [])
    while left and live.over and not work.over():
        row, by_recomputation = _cheapest(pattern, choice, chains, left[0])
        _, after, before = pattern.accesses(row)
        is_taken = live.helps(after + 1, before)
        if is_taken and by_recomputation and not _can_recompute(pattern, choice, row, live):
            chains.discard(row)  # it may still be swapped
            continue
        left.remove(row)
        is_taken = is_taken and (by_recomputation or choice.host.take(row, after, before))
        if is_taken:
            live.leave(after + 1, before, int(pattern.size[row]))
            (choice.recomputes if by_recomputation else choice.swaps).append(row)
        if is_taken and by_recomputation:
            chains.take(row)
        else:
            chains.discard(row)
    return choice


def _cheapest(pattern: AccessPattern, choice: Choice, chains: Chains, row: int) -> tuple[int, bool]:
    """The candidate to take, and whether by recomputation: `row`, the next to swap, unless one of best MSPS is cheaper.

    A swap that hides its copies costs nothing, so that no recomputation is cheaper.
    """
    if choice.policy.queue:
        cost = _lateness(pattern, [*choice.swaps, row]) - _lateness(pattern, choice.swaps)
    else:
        cost = -int(pattern.free_ns[row])
    recomputed = chains.best() if cost > 0 else -1
    if recomputed >= 0 and chains.overhead(recomputed) < cost:
        return recomputed, True
    return row, False


def _can_recompute(pattern: AccessPattern, choice: Choice, row: int, live: LiveBytes) -> bool:
    """Whether the scratch of candidate `row` makes no peak as high as there is; reserve what the host keeps."""
    (replayed,) = replays(pattern.device, [pattern.drop(row)])
    needs = live.at(replayed.place) + beside(replayed, pattern.trace.buffers.size)
    return needs < live.peak and choice.host.keep(states(pattern.trace, [replayed], choice.host.states))


def _lateness(pattern: AccessPattern, swaps: list[int]) -> int:
    """By how many ns the latest copy-out and the earliest copy-in miss the ops above the limit, if copies queue.

    Copies out queue from their accesses on, copies in backwards from theirs.
    """
    if not swaps:
        return 0
    spans, line, rows = pattern.values.gaps, pattern.line, np.array(swaps, np.int64)
    outs, ins = rows[np.argsort(spans.after[rows], kind="stable")], rows[np.argsort(spans.before[rows], kind="stable")]
    copied = queued(line.end[spans.after[outs]], pattern.out_ns[outs])
    begins = -queued(-line.start[spans.before[ins]][::-1], pattern.in_ns[ins][::-1])[::-1]
    return max(int((copied - pattern.high_ns[outs]).max()), 0) + max(int((pattern.low_ns[ins] - begins).max()), 0)
