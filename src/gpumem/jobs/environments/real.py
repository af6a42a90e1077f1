"""Jobs on real streams: the same executors and controller as under the simulated clock, in a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpumem.base.arguments import strict
from gpumem.execute.backend import Backend
from gpumem.execute.views import Launch
from gpumem.jobs.environments.threads import State, Threads
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Outcome
from gpumem.jobs.policy import TENSILE, Policy
from gpumem.jobs.scheduler.controller import GlobalController
from gpumem.jobs.scheduler.instructions import Place
from gpumem.jobs.scheduler.session import run_session
from gpumem.simulator.machine import Machine


@strict
def run_jobs(  # noqa: PLR0913, PLR0917  public: pages call it so, the last four by keyword
    jobs: Sequence[Job],
    machine: Machine,
    capacity: int,
    backend: Callable[[], Backend],
    launch: Callable[[Job], Launch | None],
    policy: Policy = TENSILE,
    *,
    place: Place,
    state: State | None = None,
    enter: Callable[[], object] | None = None,
) -> Outcome:
    """Run jobs that arrive, swap and leave on one GPU.

    Parameters
    ----------
    jobs, machine, capacity, policy
        As for `simulate_jobs`; ns count from the start of the run. The machine says how many copy engines there are,
        and what planners assume.
    backend : callable
        Returns a new backend; called once for each job that is launched. Several threads submit to it, one at a time,
        and wait. One that replays whole iterations (CUDA graphs) cannot be used.
    launch : callable
        Returns the launch of a job, as for `execute.prepare`.
    place : callable
        A pool planner, such as `best_fit`. A job's budget is the height of its placement.
    state : mapping of str to dict of int to array, optional
        By job, recorded buffer -> value, as for `execute.run`: at the start, and after the run at the end.
    enter : callable, optional
        What each thread calls first, for CUDA `lambda: cuda.core.Device().set_current()`.

    Returns
    -------
    Outcome
        Measured. `peak` counts bytes as the executors do; the slabs are the budgets.

    Raises
    ------
    ValueError
        As `simulate_jobs`.
    ExecutionError
        An op failed; its job is in a note. All threads end, all memory is freed, and `state` has the values of jobs
        that had left. The same holds for any other error in one of the threads.

    Examples
    --------
    >>> from gpumem import Trace, best_fit
    >>> from gpumem.trace import Buffers, Ops
    >>> from gpumem.execute import Emulator, GenericOp, initial
    >>> trace = Trace(Buffers.make([8, 8], [0, 0], [2, 2], persistent=[True, False]), Ops.make([[0], [1]], [[1], [0]]))
    >>> state = {"a": initial(trace, seed=1)}
    >>> ran = run_jobs([Job("a", trace, iterations=2)], Machine.named("h200"), 2048, Emulator,
    ...                lambda job: GenericOp(job.trace), place=best_fit, state=state)
    >>> len(ran["a"].end), state["a"][0].tobytes().hex()
    (2, '7b76a774f644719e')

    References
    ----------
    Zhang et al., TENSILE, section 3.2.
    """
    environment = Threads(machine, backend, launch, state=state or {}, enter=enter)
    return run_session(jobs, GlobalController(machine, capacity, environment, policy, place=place), environment)
