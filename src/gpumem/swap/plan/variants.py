"""Operator variants: ops run by another implementation, with another workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpumem.swap.plan.decisions import Decision, Variant
from gpumem.swap.plan.replay import Replay
from gpumem.trace import Csr, Trace
from gpumem.trace.kinds import WORKSPACE


def variants_of(trace: Trace, decisions: Sequence[Decision]) -> Trace:
    """Return `trace` with each `Variant` of a recorded run carried out: the op's name, duration and workspace replaced.

    An op's workspace is a buffer of kind `workspace` that only it touches; one is added where none is. Every variant is
    checked here, those of reruns too, but for whether the op runs again there.
    """
    every = [d for d in decisions if isinstance(d, Variant)]
    for d in every:
        if not 0 <= d.op < trace.n:
            raise ValueError(f"{d}: there are {trace.n} ops")
    if len({(d.op, d.at) for d in every}) < len(every):
        raise ValueError("plan: two variants for one op")
    variants = [d for d in every if d.at == -1]
    if not variants:
        return trace
    ops, b = trace.ops, trace.buffers
    name, duration, writes = list(ops.name), ops.duration.copy(), ops.writes.tolist()
    size, shape = b.size.copy(), None if b.shape is None else list(b.shape)
    added: list[Variant] = []
    own = own_workspaces(trace)
    for d in variants:
        name[d.op], duration[d.op] = d.name, d.duration
        if d.op in own:
            size[own[d.op]] = d.workspace
            if shape is not None:
                shape[own[d.op]] = None
        else:
            writes[d.op].append(len(b) + len(added))
            added.append(d)
    at = np.array([d.op for d in added], np.int64)
    b = replace(b, size=size, shape=None if shape is None else tuple(shape))
    buffers = b.extended([d.workspace for d in added], at, at + 1, kind=WORKSPACE)
    return Trace(buffers, replace(ops, name=tuple(name), duration=duration, writes=Csr.of(writes)), name=trace.name)


def own_workspaces(trace: Trace) -> dict[int, int]:
    """Return the workspace of each op that has one: the first buffer of kind `workspace` that only it touches."""
    rows, written, touched = trace.ops.writes.rows(), trace.ops.writes.idx, trace.accesses().op
    own = [k for k, j in enumerate(written.tolist()) if trace.buffers.kind[j] == WORKSPACE and len(touched[j]) == 1]
    return dict(reversed([*zip(rows[own].tolist(), written[own].tolist())]))


def reruns_of(trace: Trace, decisions: Sequence[Decision], replays: Sequence[Replay]) -> dict[tuple[int, int], Variant]:
    """Return the variants of reruns by op and place.

    Raises
    ------
    ValueError
        One of an op that does not run again at that place.
    """
    mine = {(d.op, d.at): d for d in decisions if isinstance(d, Variant) and d.at != -1}
    again = {(rerun.op, r.place) for r in replays for rerun in r.reruns}
    for key, d in mine.items():
        if key not in again:
            places = sorted(at for op, at in again if op == d.op)
            instead = f"only before {', '.join(map(str, places))}" if places else "nowhere"
            raise ValueError(f"{d}: op {d.op} does not run again before op {d.at}, {instead}")
    return mine
