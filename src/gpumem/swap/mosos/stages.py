"""From a trace to nodes: which ops make a node, which buffers are its output, what else is there meanwhile.

A node is a run of ops, and a stage of the program::

    op        conv  relu_  |  pool  |  conv  relu_  |  loss  | conv_bwd  relu_bwd |  mul_  add_  ...
    node      0            |  1     |  2            |  3     | 4                  |  5, the optimizer
    output    A            |  B, C  |  D            |  -     | -                  |  -
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.operators import Menu, menu_of, recorded
from gpumem.swap.facts.recompute import barred, recomputable
from gpumem.swap.mosos._merge import Groups, merged
from gpumem.swap.mosos.problem import Implementation, Nodes
from gpumem.swap.plan import Swap, Variant
from gpumem.swap.plan.gaps import around, gaps
from gpumem.swap.plan.values import Origins
from gpumem.swap.plan.variants import own_workspaces
from gpumem.trace import I64, Bool, Csr, Trace

MOST_WAYS = 6  # implementations of a node


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stages(Shown):
    """A trace cut into nodes.

    `first`: int64[n + 1], node t is the ops `first[t]` up to `first[t + 1]`; `outputs`: the buffers that are its
    output, by node; `ways[t][v]`: what its ops run by in its implementation v, where there is a choice; `recorded`: the
    way by which such an op runs in the trace; `parked`: swaps that every plan has, of buffers that are no outputs.
    """

    trace: Trace
    nodes: Nodes
    first: I64
    outputs: Csr
    ways: tuple[tuple[tuple[Variant, ...], ...], ...]
    recorded: Mapping[int, Variant]
    parked: tuple[Swap, ...]

    @classmethod
    @strict
    def of(
        cls,
        trace: Trace,
        machine: Machine,
        *,
        algorithms: Menu | None = None,
        least: int = 0,
        most: int | None = None,
        parked: Sequence[Swap] = (),
    ) -> Stages:
        """Cut `trace` into nodes.

        Parameters
        ----------
        trace : Trace
        machine : Machine
            Gives the times of ops and copies, and the pinned budget.
        algorithms : mapping, optional
            Of an op's position, the ways to run it; left out, those of `gpumem.simulator.workspaces` (see `menu_of`).
        least : int
            Bytes: smaller buffers are no outputs, they are there whatever is decided.
        most : int, optional
            How many nodes there may be: ops that decide nothing are merged, and `least` grows until it is so. Left
            out, an op and what changes its output in place right after it are a node.
        parked : sequence of Swap
            Swaps to begin with: their buffers are no outputs, and not held in between (see `parking`).

        Notes
        -----
        A buffer is an output where one op writes it as a whole, nobody reads it until the last change in place, all of
        that within a few ops, and it lives within the iteration. `held` of a node is the load before its first op
        without outputs; what its ops add to that counts as workspace, for it comes again with each rerun. So the bytes
        in use by a schedule are at least the load of the rewritten trace, and equal to it where nodes are single ops
        with one output each. O(n^2) where nodes are merged.

        >>> from gpumem.io import bundled
        >>> net = Stages.of(bundled("vgg16"), Machine.named("p40"), most=50)
        >>> len(net.nodes), int(net.nodes.again.sum()) > 10
        (50, True)
        """
        ways = menu_of(trace, machine) if algorithms is None else algorithms
        duration, away = machine.durations(trace), [swap.buffer for swap in parked]
        groups = (
            Groups.of(trace, least, ~np.isin(np.arange(len(trace.buffers)), away))
            if most is None
            else merged(trace, duration, least, most, away)
        )
        return _Builder(trace, machine, groups, ways, duration, tuple(parked)).net()

    def stage(self, op: int) -> int:
        """Return the node that an op belongs to."""
        return int(np.searchsorted(self.first, op, side="right")) - 1


@dataclass(slots=True)
class _Builder:
    trace: Trace
    machine: Machine
    groups: Groups
    menu: Menu
    duration: I64
    parked: tuple[Swap, ...]

    def net(self) -> Stages:
        trace, groups = self.trace, self.groups
        first, stage = groups.first, groups.stage
        made, buffer = (np.array([getattr(row, x) for row in groups.outputs], np.int64) for x in ("made", "buffer"))
        node, n, bytes_ = stage[made], len(first) - 1, trace.buffers.size[buffer]
        outputs = Csr.grouped(node, buffer, n)
        size = np.bincount(node, bytes_, n).astype(np.int64)
        deps = self.deps(stage)
        out, into = (
            np.bincount(node, link.copy_ns(bytes_), n).astype(np.int64)
            for link in (self.machine.out, self.machine.into)
        )
        there, room = self.memory()
        held, load = there[first[:-1]], there + room
        ways = tuple(self.ways_of(t, load) for t in work.all_of(range(n)))
        again = self.again(deps)
        rows = tuple(
            tuple(self.implementation(t, row, there, room, again=bool(again[t])) for row in each)
            for t, each in work.all_of(enumerate(ways))
        )
        nodes = Nodes(rows, deps, size, held, again, size > 0, out, into)
        return Stages(trace, nodes, first, outputs, ways, recorded(trace, self.machine, self.menu), self.parked)

    def deps(self, stage: I64) -> Csr:
        """The nodes whose outputs each node touches, but for its own."""
        touched = self.trace.accesses().op
        pairs = {
            (int(stage[op]), int(stage[row.made])) for row in self.groups.outputs for op in touched[row.buffer].tolist()
        }
        user, node = np.array(sorted((k, j) for k, j in pairs if j < k), np.int64).reshape(-1, 2).T
        return Csr.grouped(user, node, len(self.groups.first) - 1)

    def memory(self) -> tuple[I64, I64]:
        """Bytes at each op but for outputs: those from before its node, and those that the node makes itself."""
        trace, groups, n = self.trace, self.groups, self.trace.n
        b, stage, end = trace.buffers, groups.stage, groups.first[1:]
        mine, away = np.zeros(len(b), np.bool_), np.zeros(n, np.int64)
        for row in groups.outputs:
            mine[row.buffer] = True
            until = min(int(b.end[row.buffer]), int(end[stage[row.last]]))
            away[row.made : until] += b.size[row.buffer]
        for swap in self.parked:
            for op in range(swap.release, swap.prefetch):
                away[op % n] += b.size[swap.buffer]
        own = own_workspaces(trace)
        offered = [own[op] for op in self.menu if op in own]
        for j in offered:
            away[int(b.start[j])] += b.size[j]
            mine[j] = True
        inner = np.flatnonzero(~mine & ~b.host & ~trace.eternal & (b.start < n))
        room = around(b.start[inner], np.minimum(b.end[inner], end[stage[b.start[inner]]]), b.size[inner], n)
        return trace.live_bytes() - away - room, room

    def ways_of(self, t: int, load: I64) -> tuple[tuple[Variant, ...], ...]:
        """The ways to run node t that no other beats in both time and memory, the fastest first."""
        found: list[tuple[Variant, ...]] = [()]
        for op in range(self.groups.first[t], self.groups.first[t + 1]):
            if self.menu.get(op):
                found = _best([(*row, way) for row in found for way in self.menu[op]], load)
        step = max((len(found) - 1) / (MOST_WAYS - 1), 1.0)
        return tuple(found[round(k * step)] for k in range(min(len(found), MOST_WAYS)))

    def implementation(self, t: int, row: tuple[Variant, ...], there: I64, room: I64, *, again: bool) -> Implementation:
        """What the node takes when it is run so: its workspace is what it adds to what was there before it."""
        ops = slice(self.groups.first[t], self.groups.first[t + 1])
        beside, time = room[ops].copy(), self.duration[ops].copy()
        for way in row:
            beside[way.op - ops.start] += way.workspace
            time[way.op - ops.start] = way.duration
        most = int((there[ops] + beside).max() - there[ops.start])
        workspace = max(most, int(beside.max())) if again else most
        return Implementation(" + ".join(w.name for w in row), int(time.sum()), workspace)

    def again(self, deps: Csr) -> Bool:
        """Which nodes may run again in any stage that may want them: of outputs alone, and of what is there anyway."""
        trace, first, outputs = self.trace, self.groups.first, self.groups.outputs
        n, values, stage = len(first) - 1, Origins.of(trace), self.groups.stage
        maker, leaves = np.full(len(trace.buffers), -1), np.full(len(trace.buffers), trace.n)
        possible = np.zeros(n, np.bool_)
        for row in outputs:
            maker[row.buffer] = stage[row.made]
            possible[stage[row.made]] = True
        for swap in self.parked:
            leaves[swap.buffer] = swap.release - 1 if swap.before < trace.n else -1
        found = gaps(trace)
        found = found.where(maker[found.buffer] >= 0)
        found = found.where(found.before >= first[maker[found.buffer] + 1])
        facts = recomputable(trace, self.machine, found, earlier=False)
        fine = facts.ok & (facts.ops.sums(barred(trace, self.machine)) == 0)
        possible[maker[found.buffer[~fine]]] = False
        last = np.zeros(n, np.int64)  # the first op of the last stage that may want it
        for k in range(n - 1, -1, -1):
            for j in deps[k].tolist():
                last[j] = max(last[j], first[k], last[k] if possible[k] else 0)
            if possible[k]:
                possible[k] = self.stays(values, k, int(last[k]), maker, leaves)
        return possible

    def stays(self, v: Origins, k: int, until: int, maker: I64, leaves: I64) -> bool:
        """Whether all that node k reads and that is neither an output nor made by it is there until op `until`."""
        first, stop = int(self.groups.first[k]), int(self.groups.first[k + 1])
        rows = slice(v.read_ptr[first], v.read_ptr[stop])
        whole = np.append(v.writer, -1)[np.where(v.found.first[rows] < v.found.stop[rows], v.found.first[rows], -1)]
        mine = (whole >= first) | (maker[v.read[rows]] >= 0)
        return bool((mine | (np.minimum(v.last, leaves[v.read])[rows] >= until)).all())


def _best(rows: list[tuple[Variant, ...]], load: I64) -> list[tuple[Variant, ...]]:
    """Those that no other beats in both time and the largest load with workspaces, the fastest first."""
    costs = [(sum(way.duration for way in row), max(int(load[way.op]) + way.workspace for way in row)) for row in rows]
    found: list[int] = []
    for k in sorted(range(len(rows)), key=lambda k: costs[k]):
        if not found or costs[k][1] < costs[found[-1]][1]:
            found.append(k)
    return [rows[k] for k in found]
