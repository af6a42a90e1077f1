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
    checked here, those of recomputations too, but for whether the op is recomputed there.
    """
    checked = [variant for variant in decisions if isinstance(variant, Variant)]
    for variant in checked:
        if not 0 <= variant.op < trace.n:
            raise ValueError(f"{variant}: there are {trace.n} ops")
    if len({(variant.op, variant.at) for variant in checked}) < len(checked):
        raise ValueError("plan: two variants for one op")
    variants = [variant for variant in checked if variant.at == -1]
    if not variants:
        return trace
    ops, table = trace.ops, trace.buffers
    name, duration, writes = list(ops.name), ops.duration.copy(), ops.writes.tolist()
    size, shape = table.size.copy(), None if table.shape is None else list(table.shape)
    added: list[Variant] = []
    own = own_workspaces(trace)
    for variant in variants:
        name[variant.op], duration[variant.op] = variant.name, variant.duration
        if variant.op in own:
            size[own[variant.op]] = variant.workspace
            if shape is not None:
                shape[own[variant.op]] = None
        else:
            writes[variant.op].append(len(table) + len(added))
            added.append(variant)
    at = np.array([variant.op for variant in added], np.int64)
    table = replace(table, size=size, shape=None if shape is None else tuple(shape))
    buffers = table.extended([variant.workspace for variant in added], at, at + 1, kind=WORKSPACE)
    return Trace(buffers, replace(ops, name=tuple(name), duration=duration, writes=Csr.of(writes)), name=trace.name)


def own_workspaces(trace: Trace) -> dict[int, int]:
    """Return the workspace of each op that has one: the first buffer of kind `workspace` that only it touches."""
    rows, written, touched = trace.ops.writes.rows(), trace.ops.writes.idx, trace.accesses().op
    own = [
        row
        for row, buffer in enumerate(written.tolist())
        if trace.buffers.kind[buffer] == WORKSPACE and len(touched[buffer]) == 1
    ]
    return dict(reversed([*zip(rows[own].tolist(), written[own].tolist())]))


def recomputed_variants(
    trace: Trace, decisions: Sequence[Decision], replays: Sequence[Replay]
) -> dict[tuple[int, int], Variant]:
    """Return the variants of recomputations by op and place.

    Raises
    ------
    ValueError
        One of an op that is not recomputed at that place.
    """
    variant_at = {
        (variant.op, variant.at): variant for variant in decisions if isinstance(variant, Variant) and variant.at != -1
    }
    recomputed = {(step.op, replay.place) for replay in replays for step in replay.recomputed_ops}
    for key, variant in variant_at.items():
        if key not in recomputed:
            places = sorted(at for op, at in recomputed if op == variant.op)
            instead = f"only before {', '.join(map(str, places))}" if places else "nowhere"
            raise ValueError(f"{variant}: op {variant.op} is not recomputed before op {variant.at}, {instead}")
    return variant_at
