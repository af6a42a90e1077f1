"""Beyond the paper: two jobs that share by groups, by swapping, or both, over the memory there is.

All are rewrites of one trace, so one clock judges them: first who runs beside whom (`together`), then what is swapped
out and made again meanwhile (a plan for the trace of all). *Groups* keep within the limit by waiting. With swaps they
may be planned for more memory than there is, and copies do the rest: several such amounts are tried, the clock decides.

*TENSILE* shares by swapping alone: its schedule for all jobs, by its own simulated run-time system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.papers.waterwave.batches import alone_ns, named, within
from benchmarks.papers.waterwave.throughput import side_by_side
from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible, NotReached
from gpumem.jobs import Job, simulate_jobs, steady
from gpumem.jobs.waterwave import Partition, Pipeline, atoms, balanced, co_schedule, temporal, waterwave
from gpumem.simulator.machine import Machine
from gpumem.simulator.sharing import share
from gpumem.simulator.simulate import simulate
from gpumem.swap import Plan, search, tensile
from gpumem.trace import Trace

Row = dict[str, Any]
OF_PEAKS = (1.0, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  # of the sum of both peaks: the memory there is
BEYOND = (1.0, 1.25, 1.6)  # of the memory there is: what groups are planned for, with swaps
ITERATIONS = 6  # of TENSILE's longest job: enough for its plans to settle
SECONDS = 10.0  # of each search
SHARING = (
    "in turn",
    "paper's groups",
    "balanced",
    "tensile",
    "in turn + swaps",
    "side by side + swaps",
    "groups + swaps",
    "groups + swaps + reruns",
)


@strict
def round_within(
    line: Pipeline, machine: Machine, slowdown: float, limit: int, planner: Callable[..., Plan] | None = None
) -> int | None:
    """Return what a round takes within `limit` bytes, in ns, swapped by `planner`; None where that is out of reach.

    The plan is made for what ops take beside each other. What they take is then asked again of the swapped trace.
    """
    trace = co_schedule(line, machine).trace
    if trace.peak_live_bytes > limit:
        if planner is None:
            return None
        try:
            trace = planner(share(trace, machine, slowdown), machine, limit).apply(trace)
        except (Infeasible, NotReached):
            return None
    return simulate(share(trace, machine, slowdown), machine, capacity=limit).makespan


def _managed(traces: Sequence[Trace], machine: Machine, slowdown: float, limit: int) -> int | None:
    """What TENSILE takes for the work of a round, in the long run; None where it does not run both at once in there.

    Its jobs do not wait for each other, so the shorter one runs more often than once a round.
    """
    work = alone_ns(traces, machine)
    counts = [ITERATIONS * -(-max(work) // ns) for ns in work]  # so that none is left alone for long
    jobs = [Job(str(k), trace, iterations=count) for k, (trace, count) in enumerate(zip(traces, counts))]
    out = simulate_jobs(jobs, machine, limit, slowdown=slowdown)
    first = min((run.end[-1] for run in out.jobs if run.end), default=0)
    if out.peak > limit or any(not run.end or run.start[0] >= first for run in out.jobs):
        return None
    ran = steady(out)
    return round(sum(work) / sum(ns / ran[job.name].ns for job, ns in zip(jobs, work)))


@strict
def sharing(
    traces: Sequence[Trace],
    machine: Machine,
    slowdown: float,
    parts: Sequence[float] = OF_PEAKS,
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Measure what two jobs get done, by what they share and how much memory there is; `seconds` for each search.

    Returns
    -------
    list of dict
        A row an amount: `part` of the sum of both peaks, `limit` in bytes, and for each of `SHARING` how many times as
        much gets done as in turn with ample memory; None where it does not fit.
    """
    alone, fine = sum(alone_ns(traces, machine)), [atoms(trace, machine) for trace in traces]
    peaks = sum(trace.peak_live_bytes for trace in traces)
    name = named(traces)
    rows: list[Row] = []
    for part in parts:
        limit = int(part * peaks)
        progress(f"{name}: {part:.0%} of both peaks")
        times = _unswapped(traces, fine, machine, slowdown, limit)
        times |= _swapped(traces, fine, machine, slowdown, limit, seconds)
        row: Row = {"traces": name, "machine": machine.name, "slowdown": slowdown, "part": part, "limit": limit}
        rows.append(row | {key: None if times[key] is None else alone / times[key] for key in SHARING})
    return rows


def _unswapped(
    traces: Sequence[Trace], fine: Sequence[Partition], machine: Machine, slowdown: float, limit: int
) -> Row:
    """What a round takes where memory goes from job to job, and by TENSILE."""
    lines = {
        "in turn": temporal(traces, machine),
        "paper's groups": within(waterwave, traces, machine, limit, slowdown=slowdown),
        "balanced": within(balanced, fine, machine, limit, slowdown=slowdown),
    }
    row = {key: line and round_within(line, machine, slowdown, limit) for key, line in lines.items()}
    return row | {"tensile": _managed(traces, machine, slowdown, limit)}


def _swapped(
    traces: Sequence[Trace], fine: Sequence[Partition], machine: Machine, slowdown: float, limit: int, seconds: float
) -> Row:
    """What a round takes where copies, and reruns, do the rest."""
    rooms = [int(by * limit) for by in BEYOND]
    lines = [within(balanced, fine, machine, room, slowdown=slowdown) for room in rooms]
    groups = [line for line in lines if line is not None]

    def best(planner: Callable[..., Plan], tried: Sequence[Pipeline]) -> int | None:
        plan = partial(planner, seconds=seconds)
        found = (round_within(line, machine, slowdown, limit, plan) for line in tried)
        return min((ns for ns in found if ns is not None), default=None)

    return {
        "in turn + swaps": best(search, [temporal(traces, machine)]),
        "side by side + swaps": best(search, [side_by_side(traces, machine)]),
        "groups + swaps": best(search, groups),
        "groups + swaps + reruns": best(tensile, groups),
    }
