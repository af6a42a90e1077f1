"""Runs of several jobs, checked by the naive oracles of `gpumem.check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpumem import check
from gpumem.base.arguments import strict
from gpumem.check.verdict import BUDGET, FLOW, Checked, Oracle, ask, self_check
from gpumem.jobs.actual_times import CERTAIN, ActualTimes, copies
from gpumem.jobs.job import Job
from gpumem.simulator.simulate import hosted
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.trace import I64, Trace

if TYPE_CHECKING:
    from gpumem.jobs import Outcome
    from gpumem.jobs.waterwave import CoSchedule, Pipeline, SlotLog
    from gpumem.simulator.machine import Machine

# Events of a log, above which the oracle would take hours. Not tuned.
EVENTS = 2_000_000
# Rounds of a pipeline that are checked: it fills, is full and drains. Not tuned.
ROUNDS = 2


@strict
def co_schedule(traces: Sequence[Trace], schedule: CoSchedule, capacity: int) -> Checked:
    """Check one trace of several jobs by the naive oracles; those that would take too long are skipped.

    Raises
    ------
    RuntimeError
        One of them objects.
    """
    trace, columns = schedule.trace, (schedule.job, schedule.turn, schedule.op, schedule.lag, schedule.slot)
    oracles = (
        Oracle("together", FLOW * trace.n, lambda: check.together(traces, trace, *columns)),
        Oracle("budget", BUDGET * len(trace.buffers), lambda: check.budget(trace, capacity)),
    )
    return ask(oracles)


@strict
def jobs(  # noqa: PLR0917  called as `check.jobs` is
    outcome: Outcome,
    jobs: Sequence[Job],
    machine: Machine,
    capacity: int,
    slowdown: float,
    uncertainty: Uncertainty = CERTAIN,
) -> Checked:
    """Check an event log of several jobs by the naive oracle; a huge one is skipped, it would take too long.

    Raises
    ------
    RuntimeError
        The oracle objects.
    """
    if len(outcome.log) > EVENTS:
        return Checked((), {"jobs": f"{len(outcome.log)} events are too many"})
    traces = {job.name: job.trace for job in jobs}
    ns = {job.name: machine.durations(job.trace) for job in jobs}
    copy_ns: dict[str, I64] | None = None
    if not uncertainty.certain:
        actual = ActualTimes(jobs, machine, uncertainty)
        ns = {
            job.name: np.array([actual.kernels(place, iteration) for iteration in range(job.iterations)])
            for place, job in enumerate(jobs)
        }
        copy_ns = copies(outcome.log, jobs, machine, uncertainty)
    host_costs = {job.name: machine.host_costs(job.trace) for job in jobs if hosted(job.trace, machine)}
    with self_check():
        check.jobs(outcome.log, traces, machine, capacity, ns, slowdown=slowdown, host_costs=host_costs, copies=copy_ns)
    return Checked(("jobs",))


@strict
def waterwave(  # noqa: PLR0917  called as `check.waterwave` is
    log: SlotLog, outcome: Outcome, jobs: Sequence[Job], machine: Machine, capacity: int, slowdown: float
) -> Checked:
    """Check the log of jobs that run by node groups by the naive oracle.

    Raises
    ------
    RuntimeError
        The oracle objects.
    """
    traces = {job.name: job.trace for job in jobs}
    ns = {name: machine.durations(trace) for name, trace in traces.items()}
    hosts = any(hosted(trace, machine) for trace in traces.values())
    with self_check():
        check.waterwave(log, traces, capacity, ns, slowdown=slowdown, hosts=hosts, events=outcome.log)
    return Checked(("waterwave",))


@strict
def rounds(line: Pipeline, machine: Machine, slowdown: float = 1.0, *, hosts: int = 1) -> Checked:
    """Run a few rounds of a pipeline, and check their log by the naive oracle; the pipeline's bound is the limit.

    Raises
    ------
    RuntimeError
        The oracle objects.

    Examples
    --------
    >>> from gpumem import Machine, bundled
    >>> from gpumem.jobs.waterwave import waterwave_s
    >>> print(rounds(waterwave_s([bundled("vgg16")] * 2, Machine.named("v100")), Machine.named("v100")))
    checked: waterwave
    """
    from gpumem.jobs.waterwave import SlotLog, reordered, simulate_together

    def way(traces: Sequence[Trace], machine: Machine, limit: int) -> Pipeline:
        return line

    log, capacity = SlotLog(), int(line.bound().max())
    recorded = [reordered(part.trace, np.argsort(part.order)) for part in line.parts]
    jobs = [
        Job(str(index), trace, iterations=ROUNDS * len(line.turns_of(index))) for index, trace in enumerate(recorded)
    ]
    outcome = simulate_together(jobs, machine, capacity, way, slowdown=slowdown, hosts=hosts, log=log)
    return waterwave(log, outcome, jobs, machine, capacity, slowdown)
