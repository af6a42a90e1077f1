"""`gpumem.trace/1`: one iteration, rewritten and placed, in the form that independent checkers read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from gpumem.io.schema import Count, Index, check_positions, decode, write_rows
from gpumem.trace import I64, ROLES, THE_HOST, UNKNOWN, Buffers, Csr, Ops, Trace, numbered, told
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
    b, o = decode(buffers, list[_Buffer], "buffers"), decode(ops, list[_Op], "ops")
    check_positions([x.id for x in b], "buffers")
    check_positions([x.i for x in o], "ops", "i")
    if o and head.n_ops != len(o):
        raise ValueError(f"meta.n_ops: {head.n_ops}, but there are {len(o)} ops")
    kind = [x.kind for x in b]
    columns = Ops.make(
        Csr.of([x.reads for x in o]),
        Csr.of([x.writes for x in o]),
        name=[x.name for x in o],
        **numbered([x.stream for x in o], "stream", "compute"),
        duration=[x.duration_ns for x in o],
        role=[ROLES.index(x.role) for x in o],
        of=[UNKNOWN if x.of is None else x.of for x in o],
        rng=[x.rng for x in o],
        attributes=told((x.attributes for x in o), None),
        module=told((x.module for x in o), ""),
        blocking=[x.blocking for x in o],
        **numbered([x.host for x in o], "host", THE_HOST),
    )
    trace = Trace(
        Buffers.make(
            [x.bytes for x in b],
            [x.start for x in b],
            [x.end for x in b],
            persistent=[x.persistent for x in b],
            host=[x.space == "host" for x in b],
            kind=kind,
            of=[UNKNOWN if x.of is None else x.of for x in b],
            shape=told((x.shape for x in b), None),
            dtype=told((x.dtype for x in b), ""),
        ),
        replace(columns, statistics=recorded_statistics([x.statistics for x in o], kind, columns)),
        head.n_ops,
        name=head.name,
    )
    return trace, _placement(trace, [x.offset for x in b], head.height)


def _placement(trace: Trace, offsets: list[int | None], height: int | None) -> Placement | None:
    on_device = (~trace.buffers.host).tolist()
    for i, (offset, device) in enumerate(zip(offsets, on_device)):
        if offset is not None and not device:
            raise ValueError(f"buffers[{i}].offset: {offset}, but the buffer is on the host")
    missing = [i for i, (offset, device) in enumerate(zip(offsets, on_device)) if device and offset is None]
    if len(missing) == sum(on_device):
        return None
    if missing:
        raise ValueError(f"buffers[{missing[0]}]: no offset, though other device buffers have one")
    at = np.array([NOWHERE if x is None else x for x in offsets], np.int64)
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
    for b, at in zip(trace.buffers, offset):
        space: Literal["device", "host"] = "host" if b.space == "host" else "device"
        place = None if at == NOWHERE else at
        yield _Buffer(b.id, b.size, b.start, b.end, b.persistent, b.kind, space, place, b.of, b.shape, b.dtype)


def _op_rows(trace: Trace, duration: I64) -> Iterator[_Op]:
    ops = trace.ops
    by_kind = statistics_by_kind(trace.buffers.kind, ops).tolist()
    kept = [None if row == told else row for row, told in zip(trace.statistics.tolist(), by_kind)]
    for o, ns, rng, row in zip(ops, duration.tolist(), ops.rng.tolist(), kept):
        columns: tuple[Any, ...] = (ns, o.role, o.of, rng, row, o.attributes, o.module, o.host, o.blocking)
        yield _Op(o.id, o.name, o.stream, list(o.reads), list(o.writes), *columns)
