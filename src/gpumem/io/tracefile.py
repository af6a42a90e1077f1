"""`gpumem.trace/1`: one iteration, rewritten and placed, in the form that independent checkers read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from gpumem.io.schema import Count, Index, check_positions, decode, write_rows
from gpumem.trace import I64, ROLES, THE_HOST, UNKNOWN, Buffers, Csr, Ops, Trace, numbered, optional_column
from gpumem.trace.kinds import recorded_statistics, statistics_by_kind
from gpumem.trace.placement import NOWHERE, Placement

FORMAT = "gpumem.trace/1"


class _Meta(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    n_ops: Count
    name: str = ""
    source: str = ""
    machine: str = ""
    capacity: Count | None = None
    height: Count | None = None
    makespan_ns: Count | None = None


class _Buffer(msgspec.Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    id: Count
    bytes: Count
    start: Count
    end: Count
    persistent: bool
    kind: str
    space: Literal["device", "host"]
    offset: Count | None = None
    of: Index | None = UNKNOWN
    shape: tuple[Count, ...] | None = None
    dtype: str = ""


class _Op(msgspec.Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    i: Count
    name: str
    stream: str
    reads: list[Count]
    writes: list[Count]
    duration_ns: Count
    role: Literal["compute", "copy_out", "copy_in", "recompute", "sync"]
    of: Index | None = UNKNOWN
    rng: bool = False
    statistics: list[Count] | None = None
    attributes: Mapping[str, Any] | None = None
    module: str = ""
    host: str = THE_HOST
    blocking: bool = False


def parse(meta: msgspec.Raw, buffers: msgspec.Raw, ops: msgspec.Raw) -> tuple[Trace, Placement | None]:
    """Read a trace in gpumem's own format, and its placement if every device buffer has an offset."""
    head = decode(meta, _Meta, "meta")
    buffer_rows, op_rows = decode(buffers, list[_Buffer], "buffers"), decode(ops, list[_Op], "ops")
    check_positions([row.id for row in buffer_rows], "buffers")
    check_positions([row.i for row in op_rows], "ops", "i")
    if op_rows and head.n_ops != len(op_rows):
        raise ValueError(f"meta.n_ops: {head.n_ops}, but there are {len(op_rows)} ops")
    kind = [row.kind for row in buffer_rows]
    columns = Ops.make(
        Csr.of([row.reads for row in op_rows]),
        Csr.of([row.writes for row in op_rows]),
        name=[row.name for row in op_rows],
        **numbered([row.stream for row in op_rows], "stream", "compute"),
        duration=[row.duration_ns for row in op_rows],
        role=[ROLES.index(row.role) for row in op_rows],
        of=[UNKNOWN if row.of is None else row.of for row in op_rows],
        rng=[row.rng for row in op_rows],
        attributes=optional_column((row.attributes for row in op_rows), None),
        module=optional_column((row.module for row in op_rows), ""),
        blocking=[row.blocking for row in op_rows],
        **numbered([row.host for row in op_rows], "host", THE_HOST),
    )
    trace = Trace(
        Buffers.make(
            [row.bytes for row in buffer_rows],
            [row.start for row in buffer_rows],
            [row.end for row in buffer_rows],
            persistent=[row.persistent for row in buffer_rows],
            host=[row.space == "host" for row in buffer_rows],
            kind=kind,
            of=[UNKNOWN if row.of is None else row.of for row in buffer_rows],
            shape=optional_column((row.shape for row in buffer_rows), None),
            dtype=optional_column((row.dtype for row in buffer_rows), ""),
        ),
        replace(columns, statistics=recorded_statistics([row.statistics for row in op_rows], kind, columns)),
        head.n_ops,
        name=head.name,
    )
    return trace, _placement(trace, [row.offset for row in buffer_rows], head.height)


def _placement(trace: Trace, offsets: list[int | None], height: int | None) -> Placement | None:
    on_device = (~trace.buffers.host).tolist()
    for buffer, (offset, device) in enumerate(zip(offsets, on_device)):
        if offset is not None and not device:
            raise ValueError(f"buffers[{buffer}].offset: {offset}, but the buffer is on the host")
    missing = [buffer for buffer, (offset, device) in enumerate(zip(offsets, on_device)) if device and offset is None]
    if len(missing) == sum(on_device):
        return None
    if missing:
        raise ValueError(f"buffers[{missing[0]}]: no offset, though other device buffers have one")
    at = np.array([NOWHERE if place is None else place for place in offsets], np.int64)
    placed = Placement.at(trace, at)
    if height is not None and height < placed.height:
        raise ValueError(f"meta.height: {height}, but buffers reach up to {placed.height}")
    return placed if height is None else Placement(at, height)


def write(
    path: str | Path,
    trace: Trace,
    duration: I64,
    placement: Placement | None = None,
    *,
    source: str = "",
    machine: str = "",
    capacity: int | None = None,
    makespan_ns: int | None = None,
) -> None:
    """Write `trace`, gzipped where `path` ends in `.gz`, one buffer or op a line; see `gpumem.io.write`."""
    meta: dict[str, Any] = {
        "format": FORMAT,
        "name": trace.name,
        "n_ops": trace.n,
        "source": source,
        "machine": machine,
    }
    if placement is not None:
        meta |= {"capacity": placement.height if capacity is None else capacity, "height": placement.height}
    if makespan_ns is not None:
        meta["makespan_ns"] = makespan_ns
    write_rows(path, meta, _buffer_rows(trace, placement), _op_rows(trace, duration))


def _buffer_rows(trace: Trace, placement: Placement | None) -> Iterator[_Buffer]:
    offset = [NOWHERE] * len(trace.buffers) if placement is None else placement.offset.tolist()
    for buffers, at in zip(trace.buffers, offset):
        space: Literal["device", "host"] = "host" if buffers.space == "host" else "device"
        place = None if at == NOWHERE else at
        yield _Buffer(
            buffers.id,
            buffers.size,
            buffers.start,
            buffers.end,
            buffers.persistent,
            buffers.kind,
            space,
            place,
            buffers.of,
            buffers.shape,
            buffers.dtype,
        )


def _op_rows(trace: Trace, duration: I64) -> Iterator[_Op]:
    ops = trace.ops
    by_kind = statistics_by_kind(trace.buffers.kind, ops).tolist()
    kept = [None if row == inferred else row for row, inferred in zip(trace.statistics.tolist(), by_kind)]
    for op, ns, rng, row in zip(ops, duration.tolist(), ops.rng.tolist(), kept):
        columns: tuple[Any, ...] = (ns, op.role, op.of, rng, row, op.attributes, op.module, op.host, op.blocking)
        yield _Op(op.id, op.name, op.stream, list(op.reads), list(op.writes), *columns)
