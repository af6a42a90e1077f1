"""Jobs that share a GPU: TENSILE's run-time system.

Read `job`, `policy` (who plans for all of them, and when) and `outcome` (the event log) first, then `runtime`: the
controller and its executors, the same code in both `worlds`. `simulate_jobs` runs them under a simulated clock,
`run_jobs` on a backend with real bytes. `planners` are the memory schedulers by name, `metrics` what a run saves and
costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.jobs.job import Job as Job
    from gpumem.jobs.metrics import Saving as Saving
    from gpumem.jobs.metrics import Steady as Steady
    from gpumem.jobs.metrics import makespan as makespan
    from gpumem.jobs.metrics import savings as savings
    from gpumem.jobs.metrics import steady as steady
    from gpumem.jobs.outcome import Event as Event
    from gpumem.jobs.outcome import JobRun as JobRun
    from gpumem.jobs.outcome import Outcome as Outcome
    from gpumem.jobs.planners import PLANNERS as PLANNERS
    from gpumem.jobs.planners import separately as separately
    from gpumem.jobs.planners import unmanaged as unmanaged
    from gpumem.jobs.policy import TENSILE as TENSILE
    from gpumem.jobs.policy import Estimate as Estimate
    from gpumem.jobs.policy import Planner as Planner
    from gpumem.jobs.policy import Policy as Policy
    from gpumem.jobs.runtime import Instructions as Instructions
    from gpumem.jobs.runtime import ewma as ewma
    from gpumem.jobs.runtime import instructions as instructions
    from gpumem.jobs.runtime import roofline as roofline
    from gpumem.jobs.worlds import run_jobs as run_jobs
    from gpumem.jobs.worlds import simulate_jobs as simulate_jobs

face(__name__)
