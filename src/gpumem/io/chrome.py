"""A timeline as Chrome's trace events: open it in Perfetto or `chrome://tracing`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpumem.base.arguments import strict
from gpumem.base.files import write_text
from gpumem.simulator.timeline import CAUSES, Timeline
from gpumem.trace import Trace


@strict
def events(trace: Trace, timeline: Timeline) -> list[dict[str, Any]]:
    """Return one complete event an op (microseconds), a track a stream, and a counter of the live bytes on the device.

    With the host on there is a track a host too: what it launches, and where it waits. Time 0 is then when the first
    host begins.
    """
    timeline.check_fits(trace)
    host_rows = timeline.host_spans(trace)
    zero = min([0, *(span.start for host in host_rows for span in host)])
    tracks = [*trace.ops.streams, *(f"host {name}" for name in trace.ops.hosts[: len(host_rows)])]
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": track, "args": {"name": name}}
        for track, name in enumerate(tracks)
    ]
    load = trace.live_bytes().tolist()
    for op, span, held in zip(trace.ops, timeline, load):
        args: dict[str, Any] = {"op": op.id, "of": op.of, "reads": list(op.reads), "writes": list(op.writes)}
        if span.wait and span.cause != CAUSES[0]:
            args |= {"waited_us": span.wait / 1000, "for": span.cause}
        if span.issued is not None:
            args["issued_us"] = (span.issued - zero) / 1000
        tid = trace.ops.streams.index(op.stream)
        rows.append(_complete(op.name, op.role, tid, start=span.start - zero, end=span.end - zero, args=args))
        time = (span.start - zero) / 1000
        rows.append({"ph": "C", "name": "device live bytes", "pid": 0, "ts": time, "args": {"bytes": held}})
    for tid, host in enumerate(host_rows, len(trace.ops.streams)):
        for track, span in enumerate(host):
            name, begin = trace.ops.name[span.op], span.start - zero
            rows.append(_complete(name, "issue", tid, start=begin, end=span.end - zero, args={"op": span.op}))
            if span.wait:  # that before the first op is shown where the iteration ends
                until = begin if track else begin + timeline.host_period
                rows.append(
                    _complete("waits", "wait", tid, start=until - span.wait, end=until, args={"before": span.op})
                )
    return rows


def _complete(name: str, cat: str, tid: int, *, start: int, end: int, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "name": name, "cat": cat, "pid": 0, "tid": tid, **times, "args": args}


@strict
def write(path: str | Path, trace: Trace, timeline: Timeline) -> None:
    """Write one steady iteration as a Chrome trace."""
    head = {"displayTimeUnit": "ms", "otherData": {"trace": trace.name, "makespan_ns": timeline.makespan}}
    rows = ",\n".join(json.dumps(event) for event in events(trace, timeline))
    write_text(path, json.dumps(head)[:-1] + ', "traceEvents": [\n' + rows + "\n]}\n")
