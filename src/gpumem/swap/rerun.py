"""Recomputations and operator variants: which op made a value, and ops run by another implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpumem.columns import COMPUTE, RECOMPUTE, Buffers, Csr
from gpumem.swap.decisions import Decision, Recompute, Swap, Variant
from gpumem.trace import Trace

WORKSPACE = "workspace"  # the kind of a buffer that only one op uses


def producer(trace: Trace, d: Recompute | Swap) -> tuple[int, list[int]]:
    """Return the op that made what `d` drops, and the buffers it reads.

    Raises
    ------
    ValueError
        No op can make the value again: it changed the buffer in place, drew random numbers, or one of
        its inputs is written or gone before the recomputation.
    """
    assert isinstance(d, Recompute)
    n, ops, start = trace.n, trace.ops, int(trace.buffers.start[d.buffer])
    life = (d.after - start) % n
    writers = [i for i in range(n) if d.buffer in ops.writes[i] and (i - start) % n <= life]
    if not writers:
        raise ValueError(f"{d}: no op of its lifetime makes it before op {d.after}")
    op = max(writers, key=lambda i: (i - start) % n)
    reads = list(dict.fromkeys(ops.reads[op].tolist()))
    if d.buffer in reads:
        raise ValueError(f"{d}: op {op} changes it in place, so running it again would not make the same value")
    if ops.rng[op] or ops.role[op] not in (COMPUTE, RECOMPUTE):
        raise ValueError(f"{d}: op {op} ({ops.name[op]}) draws random numbers or is a copy")
    made = d.after - (d.after - op) % n
    for b in reads:
        _check_input(trace, d, op, b, made)
    return op, reads


def _check_input(trace: Trace, d: Recompute, op: int, b: int, made: int) -> None:
    """Input `b` must hold at `d.at` what it held at position `made`."""
    n, buffers = trace.n, trace.buffers
    if any(b in trace.ops.writes[i % n] for i in range(made, d.at)):
        raise ValueError(f"{d}: op {op} made it from buffer {b}, which is written before op {d.at}")
    length = int(buffers.end[b] - buffers.start[b])
    forever = bool(buffers.persistent[b]) and length == n
    if not forever and (made - int(buffers.start[b])) % n + (d.at - made) >= length:
        raise ValueError(f"{d}: op {op} made it from buffer {b}, which is freed before op {d.at}")


def variants_of(trace: Trace, decisions: Sequence[Decision]) -> Trace:
    """Return `trace` with each `Variant` carried out: the op's name, duration and workspace replaced.

    An op's workspace is a buffer of kind `workspace` that only it touches; one is added where none is.
    """
    variants = [d for d in decisions if isinstance(d, Variant)]
    if not variants:
        return trace
    ops, b = trace.ops, trace.buffers
    name, duration, writes = list(ops.name), ops.duration.copy(), ops.writes.tolist()
    size = b.size.copy()
    added: list[Variant] = []
    touched = trace.accesses().op
    for d in variants:
        if not 0 <= d.op < trace.n:
            raise ValueError(f"{d}: there are {trace.n} ops")
        name[d.op], duration[d.op] = d.name, d.duration
        own = [j for j in writes[d.op] if j < len(b) and b.kind[j] == WORKSPACE and len(touched[j]) == 1]
        if own:
            size[own[0]] = d.workspace
        else:
            writes[d.op].append(len(b) + len(added))
            added.append(d)
    if len({d.op for d in variants}) < len(variants):
        raise ValueError("plan: two variants for one op")
    at = np.array([d.op for d in added], np.int64)
    none = np.full(len(added), -1, np.int64)
    buffers = Buffers.make(
        np.concatenate([size, np.array([d.workspace for d in added], np.int64)]),
        np.concatenate([b.start, at]),
        np.concatenate([b.end, at + 1]),
        persistent=np.concatenate([b.persistent, none == 0]),
        host=np.concatenate([b.host, none == 0]),
        kind=[*b.kind, *(WORKSPACE for _ in added)],
        of=np.concatenate([b.of, none]),
        name=[*b.name, *("" for _ in added)],
    )
    return Trace(buffers, replace(ops, name=tuple(name), duration=duration, writes=Csr.of(writes)), name=trace.name)
