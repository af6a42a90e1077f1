"""A timeline as Chrome's trace events: open it in Perfetto or `chrome://tracing`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpumem._strict import strict
from gpumem.io.files import write_text
from gpumem.timeline import CAUSES, Timeline
from gpumem.trace import Trace


@strict
def events(trace: Trace, timeline: Timeline) -> list[dict[str, Any]]:
    """Return one complete event an op (microseconds), a track a stream, and a counter of the device load."""
    timeline.check_fits(trace)
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": k, "args": {"name": stream}}
        for k, stream in enumerate(trace.ops.streams)
    ]
    load = trace.load().tolist()
    for op, span, held in zip(trace.ops, timeline, load):
        args: dict[str, Any] = {"op": op.id, "of": op.of, "reads": list(op.reads), "writes": list(op.writes)}
        if span.wait and span.cause != CAUSES[0]:
            args |= {"waited_us": span.wait / 1000, "for": span.cause}
        tid = trace.ops.streams.index(op.stream)
        times = {"ts": span.start / 1000, "dur": (span.end - span.start) / 1000}
        rows.append({"ph": "X", "name": op.name, "cat": op.role, "pid": 0, "tid": tid, **times, "args": args})
        rows.append({"ph": "C", "name": "device load", "pid": 0, "ts": span.start / 1000, "args": {"bytes": held}})
    return rows


@strict
def write(path: str | Path, trace: Trace, timeline: Timeline) -> None:
    """Write one steady iteration as a Chrome trace."""
    head = {"displayTimeUnit": "ms", "otherData": {"trace": trace.name, "makespan_ns": timeline.makespan}}
    rows = ",\n".join(json.dumps(e) for e in events(trace, timeline))
    write_text(path, json.dumps(head)[:-1] + ', "traceEvents": [\n' + rows + "\n]}\n")
