"""From the spans of single ops to a timeline: what each op waited for, how long an iteration takes."""

from __future__ import annotations

import numpy as np

from gpumem.execute.layout import Layout
from gpumem.simulator.timeline import CAUSES, HOST, NONE, Span, Timeline
from gpumem.trace import I64, UNKNOWN


def timeline_of(layout: Layout, spans: list[list[Span]]) -> Timeline:
    """Return the last iteration as a timeline.

    `spans[k]` holds those of iteration `code`: every op's in the last two, at least the last of each stream
    in those before. What was not measured stays -1; if nothing was, the makespan is 0.
    """
    ends = np.maximum.accumulate([max(span.end for span in row) for row in spans])
    start, end = (np.array([getattr(span, side) for span in spans[-1]], np.int64) for side in ("start", "end"))
    before = np.array([span.end for span in spans[-2]], np.int64) if len(spans) > 1 else np.full(len(end), UNKNOWN)
    wait, cause = _waits(layout, start, end, before)
    timed = start != UNKNOWN
    first = int(start[timed].min()) if timed.any() else 0
    last = len(spans) - 1
    since = last // 2
    started = min((span.start for row in spans for span in row if span.start != UNKNOWN), default=0)
    makespan = (ends[last] - ends[since]) / (last - since) if last else max(ends[0] - started, 0)
    computes = timed & ~layout.trace.ops.copies
    stalls = {
        name: int(wait[computes & (cause == code)].sum())
        for code, name in enumerate(CAUSES)
        if code not in (NONE, HOST)
    }
    return Timeline(
        np.where(timed, start - first, UNKNOWN),
        np.where(timed, end - first, UNKNOWN),
        wait,
        cause,
        makespan=round(float(makespan)),
        first=last,
        cycle=0,
        stalls=stalls,
    )


def _waits(layout: Layout, start: I64, end: I64, before: I64) -> tuple[I64, I64]:
    """How long each op waited beyond its stream, and for which kind of op: the last to end of those it waits for."""
    count, after, why = len(start), layout.waits.after, layout.waits.cause
    wait, cause = np.zeros(count, np.int64), np.zeros(count, np.int64)
    stream = layout.trace.ops.stream.tolist()
    ready = {name: int(before[op]) for op, name in enumerate(stream)}  # the last of each stream in the iteration before
    for op in np.flatnonzero(start != UNKNOWN).tolist():
        free = ready[stream[op]]
        reach = free
        for edge in range(int(after.ptr[op]), int(after.ptr[op + 1])):
            earlier = int(after.idx[edge])
            done = int(end[earlier] if earlier >= 0 else before[earlier + count])
            if done > reach:
                reach, cause[op] = done, why[edge]
        wait[op] = max(start[op] - free, 0) if cause[op] != NONE and free != UNKNOWN else 0
        ready[stream[op]] = int(end[op])
    return wait, cause
