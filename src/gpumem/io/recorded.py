"""Recorded PyTorch traces: several iterations, of which the last steady one is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from gpumem.columns import THE_HOST, UNKNOWN, Csr, Ops, numbered, told
from gpumem.io._misspelt import check_keys
from gpumem.io.schema import Amount, Count, Index, check_positions, decode
from gpumem.kinds import told_statistics
from gpumem.recording import NEVER, Recording
from gpumem.trace import Trace


class _Buffer(msgspec.Struct, gc=False):
    id: Count
    bytes: Count
    alloc: Index
    free: Count | None
    kind: str = ""
    name: str = ""
    shape: tuple[Count, ...] | None = None
    dtype: str = ""


class _Op(msgspec.Struct, gc=False):
    i: Count
    name: str
    reads: list[Count]
    writes: list[Count]
    inplace: list[Count] = []
    flops: Amount = 0
    bytes: Amount = 0
    duration_ns: Count | None = None
    rng: bool = False
    statistics: list[Count] | None = None
    attributes: dict[str, Any] | None = None
    module: str = ""
    host: str = THE_HOST
    blocking: bool = False


class _Meta(msgspec.Struct):
    iterations: list[tuple[Count, Count]]
    model: str = ""
    format: int = 1


def parse(meta: msgspec.Raw, buffers: msgspec.Raw, ops: msgspec.Raw, *, iteration: int | None = None) -> Trace:
    """Read one iteration (the last steady one by default) of a recorded trace as an arc trace.

    `free` in the file is inclusive; a write listed in `inplace` may cover a part of the buffer, so it is
    a read as well; buffers carried over the boundary become arcs (`Recording.iteration`).
    """
    for raw, kind, where in ((meta, _Meta, "meta"), (buffers, _Buffer, "buffers"), (ops, _Op, "ops")):
        check_keys(raw, kind.__struct_fields__, where)
    head = decode(meta, _Meta, "meta")
    recording = _recording(decode(buffers, list[_Buffer], "buffers"), decode(ops, list[_Op], "ops"))
    if not head.iterations:
        raise ValueError("meta.iterations: empty, there is no iteration to read")
    if iteration is not None:
        try:
            lo, hi = head.iterations[iteration]
        except IndexError:
            raise ValueError(f"iteration {iteration}: the recording has {len(head.iterations)}") from None
        return recording.iteration(lo, hi, name=head.model)
    failures: list[ValueError] = []
    for lo, hi in reversed(head.iterations):
        try:
            return recording.iteration(lo, hi, name=head.model)
        except ValueError as error:
            failures.append(error)
    raise failures[0]  # what is wrong with the last one


def _recording(buffers: list[_Buffer], ops: list[_Op]) -> Recording:
    check_positions([b.id for b in buffers], "buffers")
    check_positions([o.i for o in ops], "ops", "i")
    for b in buffers:
        if b.alloc >= len(ops) or (b.free is not None and not b.alloc <= b.free < len(ops)):
            raise ValueError(
                f"buffers[{b.id}]: alloc {b.alloc} and free {b.free} are not a lifetime within {len(ops)} ops"
            )
    for o in ops:
        if stray := set(o.statistics or []) - set(o.inplace) - (set(o.reads) & set(o.writes)):
            raise ValueError(f"ops[{o.i}].statistics: buffer {min(stray)} is not both read and written")
        if stray := set(o.inplace).difference(o.writes):
            raise ValueError(f"ops[{o.i}].inplace: buffer {min(stray)} is not among the writes")
    reads = [[*o.reads, *(x for x in o.inplace if x not in o.reads)] for o in ops]
    columns = Ops.make(
        Csr.of(reads),
        Csr.of([o.writes for o in ops]),
        name=[o.name for o in ops],
        duration=[UNKNOWN if o.duration_ns is None else o.duration_ns for o in ops],
        flops=[o.flops for o in ops],
        moved=[o.bytes for o in ops],
        rng=[o.rng for o in ops],
        attributes=told((o.attributes for o in ops), None),
        module=told((o.module for o in ops), ""),
        blocking=[o.blocking for o in ops],
        **numbered([o.host for o in ops], "host", THE_HOST),
    )
    kind = tuple(b.kind for b in buffers)
    return Recording(
        np.array([b.bytes for b in buffers], np.int64),
        np.array([b.alloc for b in buffers], np.int64),
        np.array([NEVER if b.free is None else b.free for b in buffers], np.int64),
        kind,
        tuple(b.name for b in buffers),
        replace(columns, statistics=told_statistics([o.statistics for o in ops], kind, columns)),
        shape=told((b.shape for b in buffers), None),
        dtype=told((b.dtype for b in buffers), ""),
    )
