"""What several jobs did, held against the naive oracles of `gpumem.check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpumem import check
from gpumem.base.arguments import strict
from gpumem.check.verdict import BUDGET, FLOW, Checked, Oracle, ask, self_check
from gpumem.jobs.actual_times import CERTAIN, ActualTimes, copies
from gpumem.simulator.simulate import hosted
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.trace import I64, Trace

if TYPE_CHECKING:
    from gpumem.jobs import Job, Outcome
    from gpumem.jobs.waterwave import Together
    from gpumem.simulator.machine import Machine

EVENTS = 2_000_000  # of a log, above which it would take hours


@strict
def together(traces: Sequence[Trace], both: Together, capacity: int) -> Checked:
    """Hold one trace of several jobs against the naive oracles; of huge ones some would take too long.

    Raises
    ------
    RuntimeError
        One of them objects.
    """
    trace, mine = both.trace, (both.job, both.turn, both.op, both.lag, both.slot)
    oracles = (
        Oracle("together", FLOW * trace.n, lambda: check.together(traces, trace, *mine)),
        Oracle("budget", BUDGET * len(trace.buffers), lambda: check.budget(trace, capacity)),
    )
    return ask(oracles)


@strict
def jobs(
    outcome: Outcome,
    jobs: Sequence[Job],
    machine: Machine,
    capacity: int,
    slowdown: float,
    uncertainty: Uncertainty = CERTAIN,
) -> Checked:
    """Hold an event log of several jobs against the naive oracle; of huge ones it would take too long.

    Raises
    ------
    RuntimeError
        The oracle objects.
    """
    if len(outcome.log) > EVENTS:
        return Checked((), {"jobs": f"{len(outcome.log)} events are too many"})
    traces = {job.name: job.trace for job in jobs}
    ns = {job.name: machine.durations(job.trace) for job in jobs}
    off: dict[str, I64] | None = None
    if not uncertainty.certain:
        actual = ActualTimes(jobs, machine, uncertainty)
        ns = {
            job.name: np.array([actual.kernels(place, k) for k in range(job.iterations)])
            for place, job in enumerate(jobs)
        }
        off = copies(outcome.log, jobs, machine, uncertainty)
    handing = {job.name: machine.host_costs(job.trace) for job in jobs if hosted(job.trace, machine)}
    with self_check():
        check.jobs(outcome.log, traces, machine, capacity, ns, slowdown=slowdown, handing=handing, copies=off)
    return Checked(("jobs",))
