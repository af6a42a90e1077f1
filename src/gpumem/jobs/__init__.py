"""Jobs that share a GPU: TENSILE's run-time system.

`simulate_jobs` runs them under a simulated clock, `run_jobs` on a backend with real bytes; executors and controller are
the same.
"""

from gpumem.jobs.events import Event
from gpumem.jobs.instructions import Instructions, instructions
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import JobRun, Outcome
from gpumem.jobs.real import run_jobs
from gpumem.jobs.simulated import simulate_jobs

__all__ = ["Event", "Instructions", "Job", "JobRun", "Outcome", "instructions", "run_jobs", "simulate_jobs"]
