"""Jobs that share a GPU: TENSILE's run-time system; Waterwave, side by side, in `waterwave`.

Read `job`, `policy` (who plans for all of them, and when) and `outcome` (the event log) first, then `scheduler`: the
controller and its executors, the same code in all `environments`. `simulate_jobs` runs them under a simulated clock,
`run_jobs` on a backend with real bytes. `planners` are the memory schedulers by name, `metrics` what a run saves and
costs.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.jobs.actual_times import informed as informed
    from gpumem.jobs.environments.real import run_jobs as run_jobs
    from gpumem.jobs.environments.simulated import simulate_jobs as simulate_jobs
    from gpumem.jobs.job import Job as Job
    from gpumem.jobs.metrics import (
        IterationCost as IterationCost,
        Saving as Saving,
        Steady as Steady,
        by_iteration as by_iteration,
        makespan as makespan,
        savings as savings,
        steady as steady,
    )
    from gpumem.jobs.outcome import Event as Event, JobRun as JobRun, Outcome as Outcome
    from gpumem.jobs.planners import PLANNERS as PLANNERS, separately as separately, unmanaged as unmanaged
    from gpumem.jobs.policy import TENSILE as TENSILE, Estimate as Estimate, Planner as Planner, Policy as Policy
    from gpumem.jobs.scheduler.forecast import ewma as ewma, roofline as roofline
    from gpumem.jobs.scheduler.instructions import Instructions as Instructions, instructions as instructions

lazy_interface(__name__)
