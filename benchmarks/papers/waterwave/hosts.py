"""What a host that issues and waits changes: memory freed early or late, ops one after another, a host a stream."""

from __future__ import annotations

from typing import Any

from benchmarks.papers.waterwave.published import SEQUENTIAL, model_of
from gpumem.base.arguments import strict
from gpumem.jobs.waterwave import co_schedule, partition, pipeline
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import FREED, Timeline
from gpumem.trace import Trace

Row = dict[str, Any]
HOST_NS = 2e5  # of an op: 893 of them take about the 180 ms after which the paper's backward pass starts
OTHERS = (0.0, HOST_NS / 4, HOST_NS / 2, 1.5 * HOST_NS, 2 * HOST_NS, 4 * HOST_NS)
PIECES = 8  # of a job's peak: the split size of pairs


@strict
def freed(trace: Trace, machine: Machine, host_ns: float = HOST_NS) -> list[Row]:
    """Measure both peaks of an iteration, freed when ops are scheduled and when they complete: figure 2.

    A row a host: what an op takes it, and whether it waits for the end of an iteration; bytes are None where they grow
    without end.
    """
    rows: list[Row] = []
    for ns in (host_ns, *(other for other in OTHERS if other != host_ns)):
        for waits in (True, False) if ns else (True,):
            line = simulate(trace, machine.with_(host_ns=ns), sync=waits)
            row: Row = {"trace": trace.name, "machine": machine.name, "host_ns": ns, "waits": waits}
            rows.append(row | {key: value for how in FREED for key, value in _peak(trace, line, how).items()})
    for row in rows:
        known = row["scheduled"] and row["completed"]
        row["ratio"] = row["completed"] / row["scheduled"] if known else None
    return rows


def _peak(trace: Trace, line: Timeline, how: str) -> Row:
    """The most that is held, and when."""
    try:
        time, held = line.memory_over_time(trace, how)
    except ValueError:  # it grows without end
        return {how: None, f"{how}_ns": None}
    return {how: int(held.max()), f"{how}_ns": int(time[held.argmax()])}


@strict
def late(trace: Trace, machine: Machine, host_ns: float = HOST_NS) -> Row:
    """Measure what one job holds, and two in node groups, where memory is free only when the work on it has ended.

    In parts of the job's peak live bytes; None where it grows without end.
    """
    host = machine.with_(host_ns=host_ns)
    part = partition(trace, host, max(trace.peak_live_bytes // PIECES, 1))
    both = co_schedule(pipeline([part, part], overlap=0), host).trace
    row: Row = {"trace": trace.name, "machine": machine.name, "host_ns": host_ns}
    for name, one in (("one", trace), ("two", both)):
        line = simulate(one, host)
        for how in FREED:
            most = _peak(one, line, how)[how]
            row[f"{name}_{how}"] = None if most is None else most / max(trace.peak_live_bytes, 1)
    return row


@strict
def sequential(trace: Trace, machine: Machine, host_ns: float = HOST_NS) -> Row:
    """Measure what it loses to hand over an op only when the one before has ended: figure 3.

    `more_ns`: what a wait would have to take besides, an op, for the paper's figure.
    """
    host = machine.with_(host_ns=host_ns)
    both, one = (simulate(t, host).makespan for t in (trace, trace.with_blocking()))
    paper = SEQUENTIAL.get(model_of(trace.name))
    row: Row = {"trace": trace.name, "machine": machine.name, "ops": trace.n, "host_ns": host_ns, "paper": paper}
    row |= {"work_ns": int(host.durations(trace).sum()), "parallel_ns": both, "sequential_ns": one}
    more = None if paper is None else (both / (1 - paper) - one) / trace.n
    return row | {"lost": 1 - both / one, "more_ns": more}


@strict
def a_host_a_stream(trace: Trace, machine: Machine, host_ns: float = HOST_NS) -> Row:
    """Measure a round of two jobs with one host thread, and with one a stream; nothing slows kernels down."""
    host = machine.with_(host_ns=host_ns)
    part = partition(trace, host, max(trace.peak_live_bytes // PIECES, 1))
    line = pipeline([part, part])
    row: Row = {"trace": trace.name, "machine": machine.name, "host_ns": host_ns}
    row["turns_ns"] = 2 * simulate(trace, host).makespan
    for hosts in (1, 2):
        row[f"hosts_{hosts}_ns"] = simulate(co_schedule(line, host, hosts=hosts).trace, host).makespan
    return row
