"""From the spans of single ops to a timeline: what each op waited for, how long an iteration takes."""

from __future__ import annotations

import numpy as np

from gpumem.execute.layout import Layout
from gpumem.simulator.timeline import CAUSES, HOST, NONE, Span, Timeline
from gpumem.trace import I64, UNKNOWN


def timeline_of(layout: Layout, spans: list[list[Span]]) -> Timeline:
    """Return the last iteration as a timeline.

    `spans[k]` holds those of iteration `k`: every op's in the last two, at least the last of each stream
    in those before. What was not measured stays -1; if nothing was, the makespan is 0.
    """
    ends = np.maximum.accumulate([max(s.end for s in row) for row in spans])
    start, end = (np.array([getattr(s, side) for s in spans[-1]], np.int64) for side in ("start", "end"))
    before = np.array([s.end for s in spans[-2]], np.int64) if len(spans) > 1 else np.full(len(end), UNKNOWN)
    wait, cause = _waits(layout, start, end, before)
    timed = start != UNKNOWN
    first = int(start[timed].min()) if timed.any() else 0
    last = len(spans) - 1
    since = last // 2
    started = min((s.start for row in spans for s in row if s.start != UNKNOWN), default=0)
    makespan = (ends[last] - ends[since]) / (last - since) if last else max(ends[0] - started, 0)
    computes = timed & ~layout.trace.ops.copies
    stalls = {c: int(wait[computes & (cause == k)].sum()) for k, c in enumerate(CAUSES) if k not in (NONE, HOST)}
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
    n, after, why = len(start), layout.waits.after, layout.waits.cause
    wait, cause = np.zeros(n, np.int64), np.zeros(n, np.int64)
    stream = layout.trace.ops.stream.tolist()
    ready = {s: int(before[i]) for i, s in enumerate(stream)}  # the last of each stream in the iteration before
    for i in np.flatnonzero(start != UNKNOWN).tolist():
        free = ready[stream[i]]
        reach = free
        for k in range(int(after.ptr[i]), int(after.ptr[i + 1])):
            y = int(after.idx[k])
            done = int(end[y] if y >= 0 else before[y + n])
            if done > reach:
                reach, cause[i] = done, why[k]
        wait[i] = max(start[i] - free, 0) if cause[i] != NONE and free != UNKNOWN else 0
        ready[stream[i]] = int(end[i])
    return wait, cause
