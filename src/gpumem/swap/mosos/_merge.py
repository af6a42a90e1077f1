"""Which ops make a node together, and which buffers are outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.base.display import Shown
from gpumem.swap.facts.recompute import backward_start
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import I64, Bool, Trace
from gpumem.trace.kinds import WORKSPACE

# Ops between a whole write and the last change in place, at most: conv, add_, relu_ and the like. Not tuned.
SPAN = 8
# What a merge may add to the time of a node that can be recomputed, as a fraction: each recomputation pays it. Not
# tuned.
SLIGHT = 0.05
# What a merge may add to the memory that a node needs and still count as free, as a fraction of the peak. Not tuned.
SLACK = 1e-3
# What it may add while there are too many groups no more: above 1 / COSTLY_PART of the peak, merging stops. Not tuned.
COSTLY_PART = 20
# Outputs of one node are last used within this part of each other's lifetimes: they leave and come back together, so
# one that is used much longer would hold the others. Not tuned.
ALIKE = 0.2
# Neighbours that need or use different bytes should not merge: this part of the difference is the cost. Not tuned.
APART = 16
# Ops between two accesses, at least: fewer are taken as too few to hide a copy. Not tuned.
SHORTEST_GAP = 3
# Factor by which the smallest size of an output grows while there are too many groups. Not tuned.
GROWTH = 1.4
# Outputs are at least this part of the peak live bytes where groups are merged. Not tuned.
LEAST_PART = 1000


class Output(NamedTuple):
    """A buffer that may be an output: the op that makes it, and the last that uses it."""

    buffer: int
    made: int
    last: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Groups(Shown):
    """Runs of ops: `first`, int64[g + 1], where each begins; and their outputs."""

    first: I64
    outputs: tuple[Output, ...]

    @property
    def stage(self) -> I64:
        """The group of each op."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @classmethod
    def of(cls, trace: Trace, least: int = 0, worth: Bool | None = None) -> Groups:
        """An op with what changes its outputs in place right after it; outputs have `least` bytes or more.

        `worth`: bool[B], the buffers that may be outputs.
        """
        begins = np.ones(trace.n + 1, np.bool_)
        rows = []
        for buffer, made, ready, last in _candidates(trace, least):
            if worth is not None and not worth[buffer]:
                continue
            begins[made + 1 : ready + 1] = False
            rows.append(Output(buffer, made, last))
        return cls(np.flatnonzero(begins), tuple(rows)).joined(trace, np.flatnonzero(begins))

    def joined(self, trace: Trace, first: I64) -> Groups:
        """The same outputs, as far as they outlive the groups that begin at `first`, much alike in each group."""
        end = np.repeat(first[1:], np.diff(first))
        by_group: dict[int, list[Output]] = {}
        for output in self.outputs:
            if output.last >= end[output.made]:
                by_group.setdefault(int(end[output.made]), []).append(output)
        alike: list[Output] = []
        for after, in_group in sorted(by_group.items()):
            chief = max(in_group, key=lambda output: int(trace.buffers.size[output.buffer]) * (output.last - after + 1))
            near = ALIKE * (chief.last - after + 1)
            alike += [output for output in in_group if abs(output.last - chief.last) <= near]
        return Groups(first, tuple(alike))


def _candidates(trace: Trace, least: int) -> list[tuple[int, int, int, int]]:
    """Buffers of one value each: id, the op that makes it, the last change in place, the last use."""
    buffers, touched = trace.buffers, trace.accesses()
    is_candidate = ~buffers.host & ~trace.crossing & (buffers.size >= max(least, 1))
    candidates = []
    for buffer in work.all_of(np.flatnonzero(is_candidate).tolist()):
        begin, end = int(touched.op.ptr[buffer]), int(touched.op.ptr[buffer + 1])
        op, reads, writes = touched.op.idx[begin:end], touched.reads[begin:end], touched.writes[begin:end]
        if end - begin < 2 or buffers.kind[buffer] == WORKSPACE or reads[0] or trace.ops.copies[op[0]]:
            continue
        change = int(np.flatnonzero(writes)[-1])
        in_place = bool(reads[1 : change + 1].all() and writes[: change + 1].all())
        if in_place and op[change] - op[0] <= SPAN and change < end - begin - 1:
            candidates.append((buffer, int(op[0]), int(op[change]), int(op[-1])))
    return candidates


def merged(trace: Trace, duration: I64, least: int, most: int, parked: Sequence[int] = ()) -> Groups:
    """Merge neighbours where that costs little, and leave small outputs undecided, until there are `most` groups.

    Outputs are buffers with `SHORTEST_GAP` ops or more between two accesses, for there is little to decide about
    others; and what is dead by then but needed to recompute those of the forward pass. None of `parked` is one. The
    time may be up (`work.TimeUp`) before they are that few.
    """
    worth = _worth(trace, least)
    worth[list(parked)] = False
    least = max(least, trace.peak_live_bytes // LEAST_PART)
    while True:
        groups = Groups.of(trace, least, worth)
        done = _Merging.of(trace, duration, groups).run(most)
        if len(done.first) - 1 <= most or not len(groups.outputs):
            return done
        least = int(least * GROWTH) + 1


def _worth(trace: Trace, least: int) -> Bool:
    """The buffers that are worth deciding about, bool[B]."""
    spans, worth, touched = gaps(trace), np.zeros(len(trace.buffers), np.bool_), trace.accesses().op
    worth[spans.buffer[spans.before > spans.after + SHORTEST_GAP]] = True
    is_candidate = ~trace.buffers.host & ~trace.crossing & (trace.buffers.size >= least)
    pending, backward = np.flatnonzero(worth & is_candidate).tolist(), backward_start(trace)
    while pending:
        buffer = pending.pop()
        # Made in the backward pass: only what the forward pass makes gets its sources. Not tuned.
        if touched[buffer][0] >= backward:
            continue
        reads = trace.ops.reads[int(touched[buffer][0])]
        dependencies = reads[is_candidate[reads] & ~worth[reads] & (trace.buffers.end[reads] <= touched[buffer].max())]
        worth[dependencies] = True
        pending += dependencies.tolist()
    return worth


@dataclass(slots=True)
class _Merging:
    """Groups while they merge: of each its first op, live bytes beside outputs, time, outputs made and touched."""

    trace: Trace
    groups: Groups
    first: list[int]
    base: list[int]
    time: list[int]
    made: list[frozenset[Output]]
    touched: list[frozenset[int]]
    start: I64  # the first op of each buffer that is no output
    last: I64  # and its last use
    backward: int  # the first op of the backward pass

    @classmethod
    def of(cls, trace: Trace, duration: I64, groups: Groups) -> _Merging:
        count, stage = len(groups.first) - 1, groups.stage
        made: list[set[Output]] = [set() for _ in range(count)]
        touched: list[set[int]] = [set() for _ in range(count)]
        change, accesses = np.zeros(trace.n + 1, np.int64), trace.accesses().op
        for output in groups.outputs:
            buffer = output.buffer
            made[stage[output.made]].add(output)
            for op in accesses[buffer].tolist():
                touched[stage[op]].add(buffer)
            change[output.made] += trace.buffers.size[buffer]
            change[output.last + 1] -= trace.buffers.size[buffer]
        base = np.maximum.reduceat(trace.live_bytes() - np.cumsum(change)[:-1], groups.first[:-1])
        time = np.add.reduceat(duration, groups.first[:-1])
        others = np.setdiff1d(
            np.flatnonzero(~trace.crossing & (np.diff(accesses.ptr) > 0)), [output.buffer for output in groups.outputs]
        )
        return cls(
            trace,
            groups,
            first=groups.first[:-1].tolist(),
            base=base.tolist(),
            time=time.tolist(),
            made=[frozenset(outputs) for outputs in made],
            touched=[frozenset(buffers) for buffers in touched],
            start=trace.buffers.start[others],
            last=accesses.idx[accesses.ptr[others + 1] - 1],
            backward=backward_start(trace),
        )

    def needs(self, base: int, touched: frozenset[int]) -> int:
        return base + sum(int(self.trace.buffers.size[buffer]) for buffer in touched)

    def cost(self, group: int) -> float:
        """Bytes that the merged group needs more than either, and a part of how unlike they are; infinite: no merge."""
        if self.made[group] and self.made[group + 1]:
            last_uses = [output.last for output in self.made[group] | self.made[group + 1]]
            if self.first[group] < self.backward or max(last_uses) - min(last_uses) > ALIKE * (
                max(last_uses) - self.first[group]
            ):
                return inf
        elif self.made[group] or self.made[group + 1]:
            main, other = (group, group + 1) if self.made[group] else (group + 1, group)
            if self.time[other] > SLIGHT * self.time[main] and not (main > other and self.ends_lifetimes_of(group)):
                return inf
        separate = [self.needs(self.base[member], self.touched[member]) for member in (group, group + 1)]
        together = self.needs(
            max(self.base[group], self.base[group + 1]), self.touched[group] | self.touched[group + 1]
        )
        differing = sum(
            int(self.trace.buffers.size[buffer]) for buffer in self.touched[group] ^ self.touched[group + 1]
        )
        return together - max(separate) + (abs(separate[0] - separate[1]) + differing) // APART

    def ends_lifetimes_of(self, group: int) -> bool:
        """Whether the next group is the last to read something that `group` makes: recomputed, they run together."""
        begin, end, after = self.first[group], self.first[group + 1], [*self.first, self.trace.n][group + 2]
        return bool(((begin <= self.start) & (self.start < end) & (end <= self.last) & (self.last < after)).any())

    def merge(self, group: int) -> None:
        """Let a group take in the one behind it."""
        self.base[group] = max(self.base[group], self.base[group + 1])
        self.time[group] += self.time[group + 1]
        self.made[group] |= self.made[group + 1]
        self.touched[group] |= self.touched[group + 1]
        for column in (self.first, self.base, self.time, self.made, self.touched):
            del column[group + 1]

    def run(self, target: int) -> Groups:
        """Merge what costs next to nothing, then the cheapest; stop where all that is left costs much."""
        slack, costly = self.trace.peak_live_bytes * SLACK, self.trace.peak_live_bytes / COSTLY_PART
        costs = [self.cost(group) for group in work.all_of(range(len(self.first) - 1))]
        for _ in work.all_of(costs.copy()):
            if min(costs) > (costly if len(self.first) > target else slack):
                break
            group = costs.index(min(costs))
            self.merge(group)
            del costs[group]
            for neighbour in range(max(group - 1, 0), min(group + 1, len(costs))):
                costs[neighbour] = self.cost(neighbour)
        return self.groups.joined(self.trace, np.array([*self.first, self.trace.n], np.int64))
