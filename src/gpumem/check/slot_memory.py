"""Memory in the log of node groups: what all jobs hold at each instant, counted buffer by buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpumem.base.errors import CheckError
from gpumem.check.event_log import LoggedEvent
from gpumem.check.slot_log import LoggedGroup
from gpumem.trace import Trace

Runs = Sequence[Sequence[LoggedGroup]]  # of one job: the node groups of each iteration
Held = tuple[int, int, int]  # from when, until when, bytes


def memory(runs: Mapping[str, Runs], traces: Mapping[str, Trace], capacity: int, events: Sequence[LoggedEvent]) -> None:
    """Count what is held, for longer than an instant, and check it against the capacity.

    Raises
    ------
    CheckError
        `capacity`
    """
    at: dict[int, int] = {}  # ns -> bytes more or less from then on
    for job, iterations in runs.items():
        if not iterations:
            continue
        inside = _inside(job, iterations, events)
        for begin, end, size in _held(traces[job], iterations, *inside):
            at[begin] = at.get(begin, 0) + size
            at[end] = at.get(end, 0) - size
    live = 0
    for ns in sorted(at):
        live += at[ns]
        if live > capacity:
            raise CheckError("capacity", f"at {ns} ns the jobs hold {live} bytes, the capacity is {capacity}")


def _inside(job: str, iterations: Runs, events: Sequence[LoggedEvent]) -> tuple[int, int]:
    """From when to when a job holds what it keeps: by the events, else while it runs."""
    when = {event.kind: event.ns for event in events if event.job == job and event.kind in ("launch", "leave")}
    return when.get("launch", iterations[0][0].start), when.get("leave", iterations[-1][-1].end)


def _held(trace: Trace, iterations: Runs, launch: int, leave: int) -> Iterator[Held]:
    """What a job holds: each buffer from its first op to its last one, in each iteration."""
    when = [{ops.op: ops for run in groups for ops in run.ops} for groups in iterations]
    table, steps = trace.buffers, trace.n
    for buffer, (size, host) in enumerate(zip(table.size.tolist(), table.host.tolist())):
        first, last = int(table.start[buffer]), int(table.end[buffer]) - 1
        if host or not size:
            continue
        if trace.eternal[buffer]:
            yield launch, leave, size
            continue
        if last >= steps:  # what comes from the iteration before the first
            yield launch, when[0][last - steps].end, size
        for iteration, ops in enumerate(when):
            until = (
                leave if iteration + last // steps == len(when) else when[iteration + last // steps][last % steps].end
            )
            yield ops[first].start, until, size
