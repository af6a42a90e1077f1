"""`gpumem info`: describe traces."""

from __future__ import annotations

import argparse
import json
from typing import Any

from gpumem import io, pipeline
from gpumem.cli.common.files import FILE, source_of
from gpumem.cli.common.parser import Commands, add_options, option
from gpumem.pipeline import report


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser(
        "info",
        help="describe traces",
        description=run.__doc__,
        examples=["gpumem info vgg16", "gpumem info mine.json.gz instance.csv --json"],
    )
    add_options(
        p,
        option("file", nargs="+", metavar="FILE", help=f"{FILE}, or minimalloc CSV"),
        option("--json", action="store_true", help="print a list of rows"),
    )
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Describe traces: ops, buffers, load, and what the memory is for."""
    rows = [describe(path) for path in args.file]
    print(json.dumps(rows) if args.json else "\n\n".join(_text(row) for row in rows))
    return 0


def describe(path: str) -> dict[str, Any]:
    """Return what there is to say about the trace in a file: sizes in bytes, lifetimes in ops."""
    loaded = io.load(source_of(path))
    trace, b = loaded.trace, loaded.trace.buffers
    op, peak = trace.peak
    row: dict[str, Any] = {
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
        "peak_load": peak,
        "peak_op": op,
        "at_the_peak": dict(pipeline.at_the_peak(trace)),
        "flops": float(trace.ops.flops.sum()),
    }
    if len(trace.ops.hosts) > 1 or trace.ops.blocking.any():
        row |= {"hosts": list(trace.ops.hosts), "blocking": int(trace.ops.blocking.sum())}
    if loaded.placement is not None:
        row |= {"footprint": loaded.placement.height, "ratio": loaded.placement.ratio(trace)}
    return row


def _text(row: dict[str, Any]) -> str:
    lines = [row["file"]]
    for key, value in row.items():
        if key == "file":
            continue
        if key in ("bytes_in_all", "largest_buffer", "peak_load", "footprint"):
            shown = f"{value} ({report.human(value)})"
        elif key == "at_the_peak":
            shown = ", ".join(f"{kind} {report.human(size)}" for kind, size in value.items()) or "unknown"
        else:
            shown = ", ".join(value) if isinstance(value, list) else str(value)
        lines.append(f"  {key.replace('_', ' '):16}{shown}")
    return "\n".join(lines)
