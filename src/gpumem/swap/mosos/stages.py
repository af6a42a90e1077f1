"""From a trace to nodes: which ops make a node, which buffers are its output, which other bytes are live.

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

# Implementations of a node, at most: each is a binary variable of every stage. Not tuned.
MOST_IMPLEMENTATIONS = 6


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stages(Shown):
    """A trace cut into nodes.

    `first`: int64[n + 1], node t is the ops `first[t]` up to `first[t + 1]`; `outputs`: the buffers that are its
    output, by node; `variants[t][v]`: what the ops of node t run by in its implementation v, where there is a choice;
    `recorded`: the variant by which such an op runs in the trace; `parked`: swaps that every plan has, of buffers that
    are no outputs.
    """

    trace: Trace
    nodes: Nodes
    first: I64
    outputs: Csr
    variants: tuple[tuple[tuple[Variant, ...], ...], ...]
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
            Of an op's position, its variants; left out, those of `gpumem.simulator.workspaces` (see `menu_of`).
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
        that within a few ops, and it lives within the iteration. `held` of a node is the live bytes before its first
        op without outputs; what its ops add to that counts as workspace, as each recomputation needs it too. So the
        bytes in use by a schedule are at least the live bytes of the rewritten trace, and equal to them where nodes are
        single ops with one output each. O(n^2) where nodes are merged.

        >>> from gpumem.io import bundled
        >>> net = Stages.of(bundled("vgg16"), Machine.named("p40"), most=50)
        >>> len(net.nodes), int(net.nodes.recomputable.sum()) > 10
        (50, True)
        """
        menu = menu_of(trace, machine) if algorithms is None else algorithms
        duration, parked_buffers = machine.durations(trace), [swap.buffer for swap in parked]
        if most is None:
            groups = Groups.of(trace, least, ~np.isin(np.arange(len(trace.buffers)), parked_buffers))
        else:
            groups = merged(trace, duration, least, most, parked=parked_buffers)
        return _Builder(trace, machine, groups, menu, duration=duration, parked=tuple(parked)).stages()

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

    def stages(self) -> Stages:
        trace, groups = self.trace, self.groups
        first_op, stage = groups.first, groups.stage
        makers = np.array([output.made for output in groups.outputs], np.int64)
        buffer = np.array([output.buffer for output in groups.outputs], np.int64)
        node_of, n, bytes_ = stage[makers], len(first_op) - 1, trace.buffers.size[buffer]
        outputs = Csr.grouped(node_of, buffer, n)
        size = np.bincount(node_of, bytes_, n).astype(np.int64)
        deps = self.deps(stage)
        out, into = (
            np.bincount(node_of, link.copy_ns(bytes_), n).astype(np.int64)
            for link in (self.machine.out, self.machine.into)
        )
        held, inside = self.memory()
        held_bytes, live_bytes = held[first_op[:-1]], held + inside
        variants = tuple(self.variants_of(node, live_bytes) for node in work.all_of(range(n)))
        recomputable_nodes = self.recomputable_nodes(deps)
        implementations = tuple(
            tuple(
                self.implementation(node, picked, held, inside, recompute=bool(recomputable_nodes[node]))
                for picked in options
            )
            for node, options in work.all_of(enumerate(variants))
        )
        nodes = Nodes(
            implementations,
            deps,
            size,
            held=held_bytes,
            recomputable=recomputable_nodes,
            offloadable=size > 0,
            out_ns=out,
            in_ns=into,
        )
        recorded_variants = recorded(trace, self.machine, self.menu)
        return Stages(
            trace,
            nodes,
            first_op,
            outputs,
            variants=variants,
            recorded=recorded_variants,
            parked=self.parked,
        )

    def deps(self, stage: I64) -> Csr:
        """The nodes whose outputs each node touches, but for its own."""
        touched = self.trace.accesses().op
        pairs = {
            (int(stage[op]), int(stage[output.made]))
            for output in self.groups.outputs
            for op in touched[output.buffer].tolist()
        }
        user, node = (
            np.array(sorted((reader, maker) for reader, maker in pairs if maker < reader), np.int64).reshape(-1, 2).T
        )
        return Csr.grouped(user, node, len(self.groups.first) - 1)

    def memory(self) -> tuple[I64, I64]:
        """Bytes at each op but for outputs: those from before its node, and those that the node makes itself."""
        trace, groups, n = self.trace, self.groups, self.trace.n
        buffers, stage, end = trace.buffers, groups.stage, groups.first[1:]
        decided, not_counted = np.zeros(len(buffers), np.bool_), np.zeros(n, np.int64)
        for output in groups.outputs:
            decided[output.buffer] = True
            until = min(int(buffers.end[output.buffer]), int(end[stage[output.last]]))
            not_counted[output.made : until] += buffers.size[output.buffer]
        for swap in self.parked:
            for op in range(swap.release, swap.prefetch):
                not_counted[op % n] += buffers.size[swap.buffer]
        workspaces = own_workspaces(trace)
        offered = [workspaces[op] for op in self.menu if op in workspaces]
        for buffer in offered:
            not_counted[int(buffers.start[buffer])] += buffers.size[buffer]
            decided[buffer] = True
        inner = np.flatnonzero(~decided & ~buffers.host & ~trace.eternal & (buffers.start < n))
        inner_bytes = around(
            buffers.start[inner],
            np.minimum(buffers.end[inner], end[stage[buffers.start[inner]]]),
            buffers.size[inner],
            n,
        )
        return trace.live_bytes() - not_counted - inner_bytes, inner_bytes

    def variants_of(self, node: int, live_bytes: I64) -> tuple[tuple[Variant, ...], ...]:
        """The combinations of variants of a node's ops that no other beats in both time and memory, fastest first."""
        combinations: list[tuple[Variant, ...]] = [()]
        for op in range(self.groups.first[node], self.groups.first[node + 1]):
            if self.menu.get(op):
                combinations = _best(
                    [(*combination, variant) for combination in combinations for variant in self.menu[op]], live_bytes
                )
        step = max((len(combinations) - 1) / (MOST_IMPLEMENTATIONS - 1), 1.0)
        return tuple(combinations[round(rank * step)] for rank in range(min(len(combinations), MOST_IMPLEMENTATIONS)))

    def implementation(
        self, node: int, picked: tuple[Variant, ...], held: I64, inside: I64, *, recompute: bool
    ) -> Implementation:
        """What the node takes when run by the variants `picked`: its workspace is what it adds to the bytes before it.

        Where it may be recomputed, other stages hold less than its own: its workspace is all that it needs inside.
        """
        ops = slice(self.groups.first[node], self.groups.first[node + 1])
        beside, time = inside[ops].copy(), self.duration[ops].copy()
        for variant in picked:
            beside[variant.op - ops.start] += variant.workspace
            time[variant.op - ops.start] = variant.duration
        added = int((held[ops] + beside).max() - held[ops.start])
        workspace = max(added, int(beside.max())) if recompute else added
        return Implementation(" + ".join(variant.name for variant in picked), int(time.sum()), workspace)

    def recomputable_nodes(self, deps: Csr) -> Bool:
        """Which nodes can be recomputed in any stage that may want them: they read only outputs and what is held."""
        trace, first, outputs = self.trace, self.groups.first, self.groups.outputs
        n, values, stage = len(first) - 1, Origins.of(trace), self.groups.stage
        maker, leaves = np.full(len(trace.buffers), -1), np.full(len(trace.buffers), trace.n)
        possible = np.zeros(n, np.bool_)
        for output in outputs:
            maker[output.buffer] = stage[output.made]
            possible[stage[output.made]] = True
        for swap in self.parked:
            leaves[swap.buffer] = swap.release - 1 if swap.before < trace.n else -1
        candidates = gaps(trace)
        candidates = candidates.where(maker[candidates.buffer] >= 0)
        candidates = candidates.where(candidates.before >= first[maker[candidates.buffer] + 1])
        costs = recomputable(trace, self.machine, candidates, earlier=False)
        is_safe = costs.ok & (costs.ops.sums(barred(trace, self.machine)) == 0)
        possible[maker[candidates.buffer[~is_safe]]] = False
        wanted_until = np.zeros(n, np.int64)  # the first op of the last stage that may want it
        for node in range(n - 1, -1, -1):
            for dep in deps[node].tolist():
                wanted_until[dep] = max(wanted_until[dep], first[node], wanted_until[node] if possible[node] else 0)
            if possible[node]:
                possible[node] = self.inputs_last(values, node, int(wanted_until[node]), maker=maker, leaves=leaves)
        return possible

    def inputs_last(self, values: Origins, node: int, last_op: int, maker: I64, leaves: I64) -> bool:
        """Whether all that a node reads, but for outputs and what it makes itself, is there until op `last_op`."""
        first, stop = int(self.groups.first[node]), int(self.groups.first[node + 1])
        rows = slice(values.read_ptr[first], values.read_ptr[stop])
        whole = np.append(values.writer, -1)[
            np.where(values.finds.first[rows] < values.finds.stop[rows], values.finds.first[rows], -1)
        ]
        own_or_output = (whole >= first) | (maker[values.read[rows]] >= 0)
        return bool((own_or_output | (np.minimum(values.last, leaves[values.read])[rows] >= last_op)).all())


def _best(combinations: list[tuple[Variant, ...]], live_bytes: I64) -> list[tuple[Variant, ...]]:
    """Those that no other beats in both time and the most live bytes with workspaces, the fastest first."""
    costs = [
        (
            sum(variant.duration for variant in combination),
            max(int(live_bytes[variant.op]) + variant.workspace for variant in combination),
        )
        for combination in combinations
    ]
    undominated: list[int] = []
    for index in sorted(range(len(combinations)), key=lambda index: costs[index]):
        if not undominated or costs[index][1] < costs[undominated[-1]][1]:
            undominated.append(index)
    return [combinations[index] for index in undominated]
