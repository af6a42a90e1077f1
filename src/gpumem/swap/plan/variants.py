"""Operator variants: ops run by another implementation, with another workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpumem.columns import Csr
from gpumem.kinds import WORKSPACE
from gpumem.swap.plan.decisions import Decision, Variant
from gpumem.trace import Trace


def variants_of(trace: Trace, decisions: Sequence[Decision]) -> Trace:
    """Return `trace` with each `Variant` carried out: the op's name, duration and workspace replaced.

    An op's workspace is a buffer of kind `workspace` that only it touches; one is added where none is.
    """
    variants = [d for d in decisions if isinstance(d, Variant)]
    if not variants:
        return trace
    ops, b = trace.ops, trace.buffers
    name, duration, writes = list(ops.name), ops.duration.copy(), ops.writes.tolist()
    size, shape = b.size.copy(), None if b.shape is None else list(b.shape)
    added: list[Variant] = []
    touched = trace.accesses().op
    for d in variants:
        if not 0 <= d.op < trace.n:
            raise ValueError(f"{d}: there are {trace.n} ops")
        name[d.op], duration[d.op] = d.name, d.duration
        own = [j for j in writes[d.op] if j < len(b) and b.kind[j] == WORKSPACE and len(touched[j]) == 1]
        if own:
            size[own[0]] = d.workspace
            if shape is not None:
                shape[own[0]] = None
        else:
            writes[d.op].append(len(b) + len(added))
            added.append(d)
    if len({d.op for d in variants}) < len(variants):
        raise ValueError("plan: two variants for one op")
    at = np.array([d.op for d in added], np.int64)
    b = replace(b, size=size, shape=None if shape is None else tuple(shape))
    buffers = b.extended([d.workspace for d in added], at, at + 1, kind=WORKSPACE)
    return Trace(buffers, replace(ops, name=tuple(name), duration=duration, writes=Csr.of(writes)), name=trace.name)
