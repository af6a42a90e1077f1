"""Recorded PyTorch traces: several iterations, of which the last steady one is read; all of them are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpumem.base.arguments import strict
from gpumem.io.schema import Amount, Count, Index, check_keys, check_positions, decode, write_rows
from gpumem.trace import THE_HOST, UNKNOWN, Csr, Ops, Trace, numbered, optional_column
from gpumem.trace.kinds import recorded_statistics, statistics_by_kind
from gpumem.trace.record.recording import NEVER, Recording


class _Buffer(msgspec.Struct, gc=False, omit_defaults=True):
    id: Count
    bytes: Count
    alloc: Index
    free: Count | None
    kind: str = ""
    name: str = ""
    shape: tuple[Count, ...] | None = None
    dtype: str = ""


class _Op(msgspec.Struct, gc=False, omit_defaults=True):
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
    attributes: Mapping[str, Any] | None = None
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
    check_positions([buffer.id for buffer in buffers], "buffers")
    check_positions([op.i for op in ops], "ops", "i")
    for buffer in buffers:
        if buffer.alloc >= len(ops) or (buffer.free is not None and not buffer.alloc <= buffer.free < len(ops)):
            raise ValueError(
                f"buffers[{buffer.id}]: alloc {buffer.alloc} and free {buffer.free} "
                f"are not a lifetime within {len(ops)} ops"
            )
    for op in ops:
        if stray := set(op.statistics or []) - set(op.inplace) - (set(op.reads) & set(op.writes)):
            raise ValueError(f"ops[{op.i}].statistics: buffer {min(stray)} is not both read and written")
        if stray := set(op.inplace).difference(op.writes):
            raise ValueError(f"ops[{op.i}].inplace: buffer {min(stray)} is not among the writes")
    reads = [[*op.reads, *(written for written in op.inplace if written not in op.reads)] for op in ops]
    columns = Ops.make(
        Csr.of(reads),
        Csr.of([op.writes for op in ops]),
        name=[op.name for op in ops],
        duration=[UNKNOWN if op.duration_ns is None else op.duration_ns for op in ops],
        flops=[op.flops for op in ops],
        moved=[op.bytes for op in ops],
        rng=[op.rng for op in ops],
        attributes=optional_column((op.attributes for op in ops), None),
        module=optional_column((op.module for op in ops), ""),
        blocking=[op.blocking for op in ops],
        **numbered([op.host for op in ops], "host", THE_HOST),
    )
    kind = tuple(buffer.kind for buffer in buffers)
    return Recording(
        np.array([buffer.bytes for buffer in buffers], np.int64),
        np.array([buffer.alloc for buffer in buffers], np.int64),
        np.array([NEVER if buffer.free is None else buffer.free for buffer in buffers], np.int64),
        kind=kind,
        name=tuple(buffer.name for buffer in buffers),
        ops=replace(columns, statistics=recorded_statistics([op.statistics for op in ops], kind, columns)),
        shape=optional_column((buffer.shape for buffer in buffers), None),
        dtype=optional_column((buffer.dtype for buffer in buffers), ""),
    )


@strict
def write_recording(
    path: str | Path,
    recording: Recording,
    iterations: Sequence[tuple[int, int]],
    *,
    name: str = "",
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write what was recorded, for any machine: it keeps flops and bytes of the ops, which `gpumem.write` does not.

    Parameters
    ----------
    path : path
        Gzipped where it ends in `.gz`; one buffer or op a line.
    recording : Recording
        Its ops run on one stream.
    iterations : sequence of (int, int)
        Which ops `[lo, hi)` each iteration is, in order. What is not between the first and the last is left out.
        To be read again, the last must be steady; where it holds what the one before has made, that one is needed, too.
    name : str
        Of the trace.
    meta : mapping, optional
        More of what the file's `meta` should say.

    Raises
    ------
    ValueError
        No iteration, or no such ops; several streams; a place that cannot be written to.

    Notes
    -----
    O(B + accesses).

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from gpumem import Recorder, read
    >>> device = Recorder()
    >>> w = device.malloc(400, kind="param")
    >>> device.exec("decay", reads=[w], writes=[w], flops=100)
    >>> path = Path(mkdtemp()) / "decay.json.gz"
    >>> write_recording(path, device.recording(), [(0, 1)], name="decay")
    >>> read(path).ops.flops.tolist()
    [100.0]
    """
    if not iterations:
        raise ValueError(f"{path}: no iteration to write")
    lo, hi = iterations[0][0], iterations[-1][1]
    if len({*recording.ops.stream.tolist()}) > 1:
        raise ValueError(f"{path}: a recorded trace has one stream, there are {', '.join(recording.ops.streams)}")
    part = recording.part(lo, hi)
    head = {
        "model": name,
        "format": 1,
        "iterations": [(begin - lo, end - lo) for begin, end in iterations],
        **(meta or {}),
    }
    write_rows(path, head, _buffer_rows(part), _op_rows(part))


def _buffer_rows(recording: Recording) -> Iterator[_Buffer]:
    n = len(recording.size)
    free = [None if free == NEVER else free for free in recording.free.tolist()]
    columns = (recording.size.tolist(), recording.alloc.tolist(), free, recording.kind, recording.name)
    return map(_Buffer, range(n), *columns, recording.shape or [None] * n, recording.dtype or [""] * n)


def _op_rows(recording: Recording) -> Iterator[_Op]:
    ops = recording.ops
    kept: Sequence[list[int] | None] = [None] * len(ops)
    if ops.statistics is not None:
        by_kind = statistics_by_kind(recording.kind, ops).tolist()
        kept = [None if row == inferred else row for row, inferred in zip(ops.statistics.tolist(), by_kind)]
    work = (_whole(ops.flops.tolist()), _whole(ops.moved.tolist()), ops.rng.tolist())
    for op, flops, moved, rng, row in zip(ops, *work, kept):
        reads, writes, ns = list(op.reads), list(op.writes), None if op.duration == UNKNOWN else op.duration
        inplace = [written for written in writes if written in reads]
        yield _Op(
            op.id,
            op.name,
            reads,
            writes,
            inplace,
            flops,
            moved,
            ns,
            rng,
            row,
            op.attributes,
            op.module,
            op.host,
            op.blocking,
        )


def _whole(amounts: list[float]) -> list[float]:
    return [int(amount) if amount.is_integer() else amount for amount in amounts]
