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
    for job, mine in runs.items():
        if not mine:
            continue
        inside = _inside(job, mine, events)
        for begin, end, size in _held(traces[job], mine, *inside):
            at[begin] = at.get(begin, 0) + size
            at[end] = at.get(end, 0) - size
    load = 0
    for ns in sorted(at):
        load += at[ns]
        if load > capacity:
            raise CheckError("capacity", f"at {ns} ns the jobs hold {load} bytes, the capacity is {capacity}")


def _inside(job: str, mine: Runs, events: Sequence[LoggedEvent]) -> tuple[int, int]:
    """From when to when a job holds what it keeps: by the events, else while it runs."""
    when = {e.kind: e.ns for e in events if e.job == job and e.kind in ("launch", "leave")}
    return when.get("launch", mine[0][0].start), when.get("leave", mine[-1][-1].end)


def _held(trace: Trace, mine: Runs, launch: int, leave: int) -> Iterator[Held]:
    """What a job holds: each buffer from its first op to its last one, in each iteration."""
    when = [{one.op: one for run in groups for one in run.ops} for groups in mine]
    table, n = trace.buffers, trace.n
    for b, (size, host) in enumerate(zip(table.size.tolist(), table.host.tolist())):
        first, last = int(table.start[b]), int(table.end[b]) - 1
        if host or not size:
            continue
        if trace.eternal[b]:
            yield launch, leave, size
            continue
        if last >= n:  # what comes from the iteration before the first
            yield launch, when[0][last - n].end, size
        for k, one in enumerate(when):
            until = leave if k + last // n == len(when) else when[k + last // n][last % n].end
            yield one[first].start, until, size
