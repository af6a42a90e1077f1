"""Jobs that share a GPU: TENSILE's run-time system. `simulate_jobs` runs them under a simulated clock."""

from gpumem.jobs.events import Event
from gpumem.jobs.instructions import Instructions, instructions
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import JobRun, Outcome
from gpumem.jobs.simulated import simulate_jobs

__all__ = ["Event", "Instructions", "Job", "JobRun", "Outcome", "instructions", "simulate_jobs"]
