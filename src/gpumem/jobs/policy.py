"""The policy of a run of jobs: who plans for all of them, when they are planned anew, what an iteration awaits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpumem.base.arguments import finite, strict_fields
from gpumem.base.names import one_of
from gpumem.jobs.job import Job
from gpumem.simulator.machine import Machine
from gpumem.swap.tasks import Scheduled, Task
from gpumem.swap.tensile.planner import schedule
from gpumem.trace import I64

# The memory scheduler: for each job that is in, what it shall do, so that together they fit a capacity in bytes.
Planner = Callable[[Sequence[Task], Machine, int], Sequence[Scheduled]]
Estimate = Callable[[Job, float], I64]  # ns of each op while kernels of so many other jobs run, on average

REPLAN = ("sum", "windows")
# How late copies may be before all jobs are planned anew, as a share of an iteration. Not tuned.
LATE = 0.003


@strict_fields
@dataclass(frozen=True, slots=True)
class Policy:
    """How jobs are run together; the default is TENSILE.

    Parameters
    ----------
    planner : callable
        The memory scheduler: `planner(tasks, machine, capacity)` returns a `Scheduled` for each `Task`. `PLANNERS` has
        some, `separately(planner)` makes one of any planner for a single job.
    drain : bool
        Whether the end of an iteration waits for all copies of the job, as the paper's text says, even those that are
        planned to run across it.
    replan : str
        When all jobs are planned anew, besides after the first iteration of each: by the `sum` of a job's kernel times
        (the paper), or by its `windows`: by how much copies will be late by what has been measured, each by the time
        that it was planned to have.
    threshold : float
        Of `sum`: how far the time of a job's kernels in one iteration may be off the planned one, as a share of it.
    late : float
        Of `windows`: how late the copies of a job may be, added up, as a share of its iteration.
    beta : float
        Weight of the past in a job's estimates, in [0, 1]; see `ewma`.
    estimate : callable, optional
        `estimate(job, others)` returns the ns of each op, int64[n], while kernels of so many other jobs run; by default
        the machine's roofline. See `latency.estimator` for one that has learned from measurements.

    Raises
    ------
    ValueError
        A threshold or beta out of range.

    Examples
    --------
    >>> Policy(drain=True).threshold
    0.3
    >>> Policy(beta=2)
    Traceback (most recent call last):
    ValueError: beta: 2 is not in [0, 1]

    References
    ----------
    Zhang et al., TENSILE, sections 3.2 and 4.3.
    """

    planner: Planner = schedule
    drain: bool = False
    replan: str = "sum"
    threshold: float = 0.3
    late: float = LATE
    beta: float = 0.5
    estimate: Estimate | None = None

    def __post_init__(self) -> None:
        one_of("replan", self.replan, REPLAN)
        finite(threshold=self.threshold, late=self.late)
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta: {self.beta} is not in [0, 1]")


TENSILE = Policy()
