"""Memory schedulers for several jobs, which plan for all of them at once, by name for the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible, NotReached
from gpumem.jobs.policy import Planner
from gpumem.simulator.machine import Machine
from gpumem.swap import PLANNERS as ALONE
from gpumem.swap.plan import Plan
from gpumem.swap.tasks import Scheduled, Task
from gpumem.swap.tensile.planner import schedule

Failed = Callable[[Task, Exception], None]


@strict
def unmanaged(tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
    """Swap nothing.

    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("mlp3"), Machine.named("rtx2080ti")
    >>> [job.peak == trace.peak_live_bytes for job in unmanaged([Task(trace, machine.durations(trace))], machine, 1)]
    [True]
    """
    return [Scheduled(Plan.of(task.trace), task.trace.peak_live_bytes) for task in tasks]


def separately(planner: Callable[..., Plan]) -> Planner:
    """Let a planner for one job plan for each of several, which get shares of the capacity as large as their peaks.

    Parameters
    ----------
    planner : callable
        `planner(trace, machine, limit) -> Plan`.

    Returns
    -------
    callable
        As `schedule`. A job whose share is out of reach stays as it is. With a keyword `failed`, so does one for which
        the planner raises an error that no planner should: `failed(task, error)` is called.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.swap import heuristic
    >>> trace, machine = bundled("resnet18"), Machine.named("rtx2080ti")
    >>> task = Task(trace, machine.durations(trace))
    >>> both = separately(heuristic)([task, task], machine, trace.peak_live_bytes)
    >>> sum(job.peak for job in both) <= trace.peak_live_bytes
    True
    """

    def plan(
        tasks: Sequence[Task], machine: Machine, capacity: int, *, failed: Failed | None = None
    ) -> list[Scheduled]:
        total = sum(task.trace.peak_live_bytes for task in tasks)
        return [
            _alone(planner, task, machine, capacity * task.trace.peak_live_bytes // max(total, 1), failed)
            for task in tasks
        ]

    return plan


def _alone(planner: Callable[..., Plan], task: Task, machine: Machine, share: int, failed: Failed | None) -> Scheduled:
    timed = replace(task.trace, ops=replace(task.trace.ops, duration=task.duration))
    try:
        plan = planner(timed, machine, max(share, 1))
    except (Infeasible, NotReached):
        return unmanaged([task], machine, share)[0]
    except Exception as error:
        if failed is None:
            raise
        failed(task, error)
        return unmanaged([task], machine, share)[0]
    return Scheduled(plan, plan.apply(task.trace).peak_live_bytes)


PLANNERS: dict[str, Callable[..., Sequence[Scheduled]]] = {
    "tensile": schedule,
    "none": unmanaged,
    **{name: separately(planner) for name, planner in ALONE.items() if name != "tensile"},
}
