"""Ops of the rewritten trace: copies and recomputations are made, then merged with the old ops in issue order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from gpumem.swap.plan._issue_order import Copy, IssueOrder
from gpumem.swap.plan._new_buffers import NONE, CutBuffers, NewBuffers
from gpumem.swap.plan.decisions import Variant
from gpumem.swap.plan.replay import HELD, ON_DEVICE, RecomputedOp, Replay, Value
from gpumem.trace import COMPUTE, COPY_IN, COPY_OUT, RECOMPUTE, Csr, Ops, Trace


class NewOp(NamedTuple):
    """An op that is inserted, its buffers in new ids."""

    name: str
    reads: list[int]
    writes: list[int]
    stream: str
    role: int
    beside: int  # the old op whose host thread enqueues it
    like: int = -1  # the old op whose columns it takes; -1: those of a new op that touches nothing (`Ops.take`)
    duration: int | None = None  # where it differs from that op's


def copy_op(copy: Copy, pieces: CutBuffers, n: int) -> NewOp:
    """Make a copy of a cut in an iteration of `n` ops; the host thread of the op that needs it enqueues a copy-in."""
    decision = copy.cut.decision
    if copy.role == COPY_OUT:
        return NewOp("copy_out", [pieces.source], [pieces.host], stream="d2h", role=COPY_OUT, beside=decision.after)
    return NewOp("copy_in", [pieces.host], [pieces.target], stream="h2d", role=COPY_IN, beside=decision.before % n)


@dataclass(slots=True)
class Recomputations:
    """Makes the recomputations of replays, which come in issue order."""

    trace: Trace
    buffers: NewBuffers
    pieces: Mapping[int, Sequence[int]]  # of each cut buffer: its device pieces
    variants: Mapping[tuple[int, int], Variant]  # implementations of their own, by op and place
    own_workspaces: Mapping[int, int]  # the workspace of each old op, where there are such variants
    held: dict[int, list[int]] = field(default_factory=dict)  # what a `Hold` keeps beside each buffer, the newest first

    def replay(self, replay: Replay, first: int) -> list[NewOp]:
        """Make the recomputations of a place, from new index `first` on."""
        made: dict[Value, int] = {}  # new ids
        held_here: dict[int, int] = {}
        for value, span in replay.spans.items():
            start, end = first + span.write, first + span.touch + 1
            if value in replay.wanted:
                made[value] = self._on_device(value.buffer, start)
            elif value in replay.held:
                until = self.buffers.order.index_of(replay.held[value])
                made[value] = held_here[value.buffer] = self.buffers.add(value.buffer, start, until)
            else:  # scratch
                made[value] = self.buffers.add(value.buffer, start, end)
        ops = [
            self._recompute(step, first + k, made, self.variants.get((step.op, replay.place)))
            for k, step in enumerate(replay.recomputed_ops)
        ]
        # Only now: the recomputations of this place may read an older held piece, which ends here.
        for buffer, piece in held_here.items():
            self.held.setdefault(buffer, []).insert(0, piece)
        return ops

    def _recompute(self, step: RecomputedOp, index: int, made: Mapping[Value, int], variant: Variant | None) -> NewOp:
        """Make one recomputation at a new index, by an implementation of its own where there is one."""
        ops = self.trace.ops
        reads, writes = ([self._new_id(v, index, made) for v in values] for values in (step.reads, step.writes))
        stream = ops.streams[ops.stream[step.op]]
        if variant is None:
            return NewOp(ops.name[step.op], reads, writes, stream=stream, role=RECOMPUTE, beside=step.op, like=step.op)
        own = self.own_workspaces.get(step.op)
        if own is None:
            writes.append(self.buffers.add(NONE, index, index + 1))
        workspace = next((made[value] for value in step.writes if value.buffer == own), writes[-1])
        self.buffers.workspace[workspace] = variant.workspace
        return NewOp(
            variant.name,
            reads,
            writes,
            stream=stream,
            role=RECOMPUTE,
            beside=step.op,
            like=step.op,
            duration=variant.duration,
        )

    def _new_id(self, value: Value, index: int, made: Mapping[Value, int]) -> int:
        """The new id of what a recomputation at a new index reads or writes."""
        if value.whole == ON_DEVICE:
            return self._on_device(value.buffer, index)
        return self.buffers.piece_at(self.held[value.buffer], index) if value.whole == HELD else made[value]

    def _on_device(self, buffer: int, index: int) -> int:
        """The new id of a buffer at a new index at which it is on the device."""
        return self.buffers.piece_at(self.pieces.get(buffer, [buffer]), index)


def merge(
    old: Ops, added: Sequence[NewOp], order: IssueOrder, renumber: Callable[[Csr], Csr], *, blocking: bool
) -> Ops:
    """Return old and added ops in issue order; `renumber` gives old rows of buffers in new ids."""
    n, new = len(old), order.new()
    streams = tuple(dict.fromkeys([*old.streams, *(op.stream for op in added)]))
    source = np.empty(order.total, np.int64)  # of each new op: its row among the old ops, then the added ones
    source[order.new_index] = np.arange(n)
    source[new] = n + np.arange(len(added))
    ops = old.take(np.append(np.arange(n), np.array([op.like for op in added], np.int64))[source])

    def rows(kept: Csr, more: list[list[int]]) -> Csr:
        kept, tail = renumber(kept), Csr.of(more)
        return Csr(np.append(kept.ptr, kept.ptr[-1] + tail.ptr[1:]), np.append(kept.idx, tail.idx)).take(source)

    ops.stream[new] = [streams.index(op.stream) for op in added]
    ops.role[new] = [op.role for op in added]
    ops.host[new] = old.host[[op.beside for op in added]]
    ops.blocking[new] |= blocking & ops.copies[new]  # a recomputation blocks if its op does
    names = list(ops.name)
    for index, op in zip(new.tolist(), added):
        names[index] = op.name
        ops.duration[index] = ops.duration[index] if op.duration is None else op.duration
    return replace(
        ops,
        name=tuple(names),
        reads=rows(old.reads, [op.reads for op in added]),
        writes=rows(old.writes, [op.writes for op in added]),
        streams=streams,
        # A recomputation leaves statistics alone: they change once an iteration.
        statistics=old.statistics and rows(old.statistics, [[] for _ in added]),
    )


def keep_generators(buffers: NewBuffers, ops: Ops) -> None:
    """Let the host keep the generator's state of each recomputed random op, through its last recomputation."""
    new = buffers.order.new()
    recomputed = new[ops.rng[new] & (ops.role[new] == RECOMPUTE)].tolist()
    first = {int(ops.of[index]): index for index in np.flatnonzero(ops.rng & (ops.role == COMPUTE)).tolist()}
    for op, last in {int(ops.of[index]): index for index in recomputed}.items():
        if op in first:
            buffers.add(NONE, first[op], last + 1, host=True)
