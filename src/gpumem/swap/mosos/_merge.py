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

SPAN = 8  # ops between a whole write and the last change in place, at most
SLIGHT = 0.05  # what a merge may add to the time of a node that is computed again, as a fraction
SLACK = 1e-3  # what a merge may add to the memory that a node needs, as a fraction of the peak load
ALIKE = 0.2  # outputs of one node are last used within this part of each other's lifetimes
APART = 16  # neighbours that need or use different things should not merge: what that costs, a part of it
AWAY = 3  # ops between two accesses of an output
GROWTH = 1.4  # of the size of outputs, where there are too many groups


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
        for b, made, ready, last in _candidates(trace, least):
            if worth is not None and not worth[b]:
                continue
            begins[made + 1 : ready + 1] = False
            rows.append(Output(b, made, last))
        return cls(np.flatnonzero(begins), tuple(rows)).joined(trace, np.flatnonzero(begins))

    def joined(self, trace: Trace, first: I64) -> Groups:
        """The same outputs, as far as they outlive the groups that begin at `first`, much alike in each group."""
        end = np.repeat(first[1:], np.diff(first))
        by_group: dict[int, list[Output]] = {}
        for row in self.outputs:
            if row.last >= end[row.made]:
                by_group.setdefault(int(end[row.made]), []).append(row)
        kept: list[Output] = []
        for after, mine in sorted(by_group.items()):
            chief = max(mine, key=lambda row: int(trace.buffers.size[row.buffer]) * (row.last - after + 1))
            near = ALIKE * (chief.last - after + 1)
            kept += [row for row in mine if abs(row.last - chief.last) <= near]
        return Groups(first, tuple(kept))


def _candidates(trace: Trace, least: int) -> list[tuple[int, int, int, int]]:
    """Buffers of one value each: id, the op that makes it, the last change in place, the last use."""
    b, touched = trace.buffers, trace.accesses()
    may = ~b.host & ~trace.crossing & (b.size >= max(least, 1))
    found = []
    for j in work.all_of(np.flatnonzero(may).tolist()):
        lo, hi = int(touched.op.ptr[j]), int(touched.op.ptr[j + 1])
        op, reads, writes = touched.op.idx[lo:hi], touched.reads[lo:hi], touched.writes[lo:hi]
        if hi - lo < 2 or b.kind[j] == WORKSPACE or reads[0] or trace.ops.copies[op[0]]:
            continue
        change = int(np.flatnonzero(writes)[-1])
        in_place = bool(reads[1 : change + 1].all() and writes[: change + 1].all())
        if in_place and op[change] - op[0] <= SPAN and change < hi - lo - 1:
            found.append((j, int(op[0]), int(op[change]), int(op[-1])))
    return found


def merged(trace: Trace, duration: I64, least: int, most: int, away: Sequence[int] = ()) -> Groups:
    """Merge neighbours where that costs little, and leave small outputs undecided, until there are `most` groups.

    Outputs are buffers with `AWAY` ops or more between two accesses, for there is little to decide about others; and
    what is dead by then but needed to make those of the forward pass again. None of `away` is one. The time may
    be up (`work.TimeUp`) before they are that few.
    """
    worth = _worth(trace, least)
    worth[list(away)] = False
    least = max(least, trace.peak_live_bytes // 1000)
    while True:
        groups = Groups.of(trace, least, worth)
        done = _Merging.of(trace, duration, groups).run(most)
        if len(done.first) - 1 <= most or not len(groups.outputs):
            return done
        least = int(least * GROWTH) + 1


def _worth(trace: Trace, least: int) -> Bool:
    """The buffers that are outputs where it is worth their while, bool[B]."""
    found, worth, touched = gaps(trace), np.zeros(len(trace.buffers), np.bool_), trace.accesses().op
    worth[found.buffer[found.before > found.after + AWAY]] = True
    may = ~trace.buffers.host & ~trace.crossing & (trace.buffers.size >= least)
    todo, backward = np.flatnonzero(worth & may).tolist(), backward_start(trace)
    while todo:
        b = todo.pop()
        if touched[b][0] >= backward:
            continue
        reads = trace.ops.reads[int(touched[b][0])]
        more = reads[may[reads] & ~worth[reads] & (trace.buffers.end[reads] <= touched[b].max())]
        worth[more] = True
        todo += more.tolist()
    return worth


@dataclass(slots=True)
class _Merging:
    """Groups while they merge: of each its first op, bytes there beside outputs, time, what it makes and touches."""

    trace: Trace
    groups: Groups
    first: list[int]
    base: list[int]
    time: list[int]
    made: list[frozenset[Output]]
    touched: list[frozenset[int]]
    start: I64  # of the buffers that are no outputs
    last: I64  # and their last use
    backward: int  # the first op of the backward pass

    @classmethod
    def of(cls, trace: Trace, duration: I64, groups: Groups) -> _Merging:
        n, stage = len(groups.first) - 1, groups.stage
        made: list[set[Output]] = [set() for _ in range(n)]
        touched: list[set[int]] = [set() for _ in range(n)]
        away, accesses = np.zeros(trace.n + 1, np.int64), trace.accesses().op
        for row in groups.outputs:
            b = row.buffer
            made[stage[row.made]].add(row)
            for x in accesses[b].tolist():
                touched[stage[x]].add(b)
            away[row.made] += trace.buffers.size[b]
            away[row.last + 1] -= trace.buffers.size[b]
        base = np.maximum.reduceat(trace.live_bytes() - np.cumsum(away)[:-1], groups.first[:-1])
        time = np.add.reduceat(duration, groups.first[:-1])
        others = np.setdiff1d(
            np.flatnonzero(~trace.crossing & (np.diff(accesses.ptr) > 0)), [row.buffer for row in groups.outputs]
        )
        return cls(
            trace,
            groups,
            groups.first[:-1].tolist(),
            base.tolist(),
            time.tolist(),
            [frozenset(x) for x in made],
            [frozenset(x) for x in touched],
            trace.buffers.start[others],
            accesses.idx[accesses.ptr[others + 1] - 1],
            backward_start(trace),
        )

    def needs(self, base: int, touched: frozenset[int]) -> int:
        return base + sum(int(self.trace.buffers.size[b]) for b in touched)

    def cost(self, k: int) -> float:
        """Bytes that the merged group needs more than either, and for how unlike they are; infinite: not to merge."""
        if self.made[k] and self.made[k + 1]:
            used = [row.last for row in self.made[k] | self.made[k + 1]]
            if self.first[k] < self.backward or max(used) - min(used) > ALIKE * (max(used) - self.first[k]):
                return inf
        elif self.made[k] or self.made[k + 1]:
            main, other = (k, k + 1) if self.made[k] else (k + 1, k)
            if self.time[other] > SLIGHT * self.time[main] and not (main > other and self.feeds(k)):
                return inf
        needs = [self.needs(self.base[x], self.touched[x]) for x in (k, k + 1)]
        both = self.needs(max(self.base[k], self.base[k + 1]), self.touched[k] | self.touched[k + 1])
        unlike = sum(int(self.trace.buffers.size[b]) for b in self.touched[k] ^ self.touched[k + 1])
        return both - max(needs) + (abs(needs[0] - needs[1]) + unlike) // APART

    def feeds(self, k: int) -> bool:
        """Whether the group behind k is the last to read something that k makes, so that it runs again with it."""
        begin, end, after = self.first[k], self.first[k + 1], [*self.first, self.trace.n][k + 2]
        return bool(((begin <= self.start) & (self.start < end) & (end <= self.last) & (self.last < after)).any())

    def merge(self, k: int) -> None:
        """Let group k take in the one behind it."""
        self.base[k] = max(self.base[k], self.base[k + 1])
        self.time[k] += self.time[k + 1]
        self.made[k] |= self.made[k + 1]
        self.touched[k] |= self.touched[k + 1]
        for column in (self.first, self.base, self.time, self.made, self.touched):
            del column[k + 1]

    def run(self, most: int) -> Groups:
        """Merge what costs next to nothing, then the cheapest; stop where all that is left costs much."""
        slack, much = self.trace.peak_live_bytes * SLACK, self.trace.peak_live_bytes / 20
        costs = [self.cost(k) for k in work.all_of(range(len(self.first) - 1))]
        for _ in work.all_of(costs.copy()):
            if min(costs) > (much if len(self.first) > most else slack):
                break
            k = costs.index(min(costs))
            self.merge(k)
            del costs[k]
            for x in range(max(k - 1, 0), min(k + 1, len(costs))):
                costs[x] = self.cost(x)
        return self.groups.joined(self.trace, np.array([*self.first, self.trace.n], np.int64))
