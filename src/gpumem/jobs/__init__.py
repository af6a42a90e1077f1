"""Jobs that share a GPU: TENSILE's run-time system.

Read `job` and `events` first, then `runtime`: executors and controller, the same code in both `worlds`. `simulate_jobs`
runs them under a simulated clock, `run_jobs` on a backend with real bytes. `planners` are the memory schedulers by
name, `outcome` and `metrics` what comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.jobs.events import Event as Event
    from gpumem.jobs.job import Job as Job
    from gpumem.jobs.outcome import JobRun as JobRun
    from gpumem.jobs.outcome import Outcome as Outcome
    from gpumem.jobs.planners import PLANNERS as PLANNERS
    from gpumem.jobs.runtime import Instructions as Instructions
    from gpumem.jobs.runtime import instructions as instructions
    from gpumem.jobs.worlds import run_jobs as run_jobs
    from gpumem.jobs.worlds import simulate_jobs as simulate_jobs

face(__name__)
