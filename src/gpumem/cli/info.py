"""`gpumem info`: describe traces."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from gpumem import io, pipeline
from gpumem.base.units import human
from gpumem.cli.common.files import FILE, source_of
from gpumem.cli.common.parser import Command, option

SIZES = ("bytes_in_all", "largest_buffer", "peak_live_bytes", "footprint")


def run(args: argparse.Namespace) -> int:
    """Describe traces: ops, buffers, live bytes, and what the memory is for."""
    rows = [describe(path) for path in args.file]
    print(json.dumps(rows) if args.json else "\n\n".join(_text(row) for row in rows))
    return 0


def describe(path: str) -> dict[str, object]:
    """Return what there is to say about the trace in a file: sizes in bytes, lifetimes in ops."""
    loaded = io.load(source_of(path))
    trace, b = loaded.trace, loaded.trace.buffers
    op, peak = trace.peak
    row: dict[str, object] = {
        "file": path,
        "name": trace.name,
        "ops": len(trace.ops),
        "steps": trace.n,
        "streams": list(trace.ops.streams) if len(trace.ops) else [],
        "buffers": len(b),
        "host_buffers": int(b.host.sum()),
        "persistent": int(b.persistent.sum()),
        "wrapping": int((b.end > trace.n).sum()),
        "bytes_in_all": int(b.size.sum()),
        "largest_buffer": int(b.size.max(initial=0)),
        "peak_live_bytes": peak,
        "peak_op": op,
        "peak_by_kind": dict(pipeline.peak_by_kind(trace)),
        "flops": float(trace.ops.flops.sum()),
    }
    if len(trace.ops.hosts) > 1 or trace.ops.blocking.any():
        row |= {"hosts": list(trace.ops.hosts), "blocking": int(trace.ops.blocking.sum())}
    if loaded.placement is not None:
        row |= {"footprint": loaded.placement.height, "ratio": loaded.placement.ratio(trace)}
    return row


def _text(row: Mapping[str, object]) -> str:
    lines = [f"  {key.replace('_', ' '):16}{_value_text(key, value)}" for key, value in row.items() if key != "file"]
    return "\n".join([str(row["file"]), *lines])


def _value_text(key: str, value: object) -> str:
    """Write a figure for people: sizes in their units, too."""
    if isinstance(value, int) and key in SIZES:
        return f"{value} ({human(value)})"
    if isinstance(value, dict):
        return ", ".join(f"{kind} {human(size)}" for kind, size in value.items()) or "unknown"
    return ", ".join(value) if isinstance(value, list) else str(value)


COMMAND = Command(
    "info",
    run,
    "describe traces",
    options=(
        option("file", nargs="+", metavar="FILE", help=f"{FILE}, or minimalloc CSV"),
        option("--json", action="store_true", help="print a list of rows"),
    ),
    examples=("gpumem info vgg16", "gpumem info mine.json.gz instance.csv --json"),
)
