"""Run co-scheduled jobs with real bytes: each ends with the values that it would have ended with alone."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem.base.arguments import strict
from gpumem.execute.backend import Backend
from gpumem.execute.program import run
from gpumem.execute.views import Launch
from gpumem.jobs.waterwave.co_schedule import CoSchedule
from gpumem.simulator.timeline import Timeline
from gpumem.trace.placement import Placement

State = MutableMapping[int, NDArray[Any]]


@strict
def run_together(
    schedule: CoSchedule,
    placement: Placement,
    backend: Backend,
    launches: Sequence[Launch] | None = None,
    iterations: int = 1,
    *,
    state: Sequence[State] | None = None,
) -> Timeline:
    """Run several jobs together on a backend.

    Parameters
    ----------
    schedule : CoSchedule
    placement : Placement
        Of the device buffers of `schedule.trace`.
    backend : Backend
    launches : sequence of callable, optional
        For each job what starts its ops, as for `execute.run` of its own trace.
    iterations : int
        So many of each turn: a job that has two turns runs twice as many.
    state : sequence of dict of int to array, optional
        For each job recorded buffer -> value, as for `execute.run` of its own trace: at the start, and after the run
        at the end.

    Returns
    -------
    Timeline
        Of the last round in which all ops ran, if there was one.

    Raises
    ------
    ValueError
        Not as many launches or states as jobs; a state that does not fit; a job that begins in one round and ends in
        the next, and holds a buffer that does not live for ever over its own boundary: when its first value would have
        to be written, others may still use that memory.

    Notes
    -----
    Turns that reach into the next round (`wrap=True`) are the prologue and the epilogue of a software pipeline: in the
    first round all is left out that belongs to the iteration before, in one more round only that is run.

    Examples
    --------
    >>> from gpumem import Machine, best_fit
    >>> from gpumem.execute import Emulator
    >>> from gpumem.jobs.waterwave import partition, pipeline, co_schedule
    >>> from gpumem.kernels import reference
    >>> from gpumem.execute.models import mlp
    >>> models, machine = [mlp(4, 8, [6] * depth, 3) for depth in (2, 3)], Machine.named("v100")
    >>> both = co_schedule(pipeline([partition(model.trace, machine, 200) for model in models]), machine)
    >>> states, launches = [model.state() for model in models], [model.launch(reference) for model in models]
    >>> _ = run_together(both, best_fit(both.trace), Emulator(7), launches, iterations=5, state=states)
    >>> alone = models[1].state()
    >>> _ = run(models[1].trace, best_fit(models[1].trace), Emulator(), launches[1], iterations=5, state=alone)
    >>> all((states[1][buffer] == alone[buffer]).all() for buffer in alone)
    True
    """
    one_for_each(schedule, launches=launches, state=state)
    refuse_halves(schedule)
    launch = None if launches is None else schedule.launch(launches)
    values = None if state is None else shared_state(schedule, state)
    return run(schedule.trace, placement, backend, launch, iterations, state=values, lag=schedule.lag)


def one_for_each(schedule: CoSchedule, **given: Sequence[object] | None) -> None:
    """Raise where there are not as many launches or states as jobs."""
    jobs = len(schedule.ops)
    for what, row in given.items():
        if row is not None and len(row) != jobs:
            raise ValueError(f"{what}: there are {len(row)}, one for each of {jobs} jobs would do")


def refuse_halves(schedule: CoSchedule) -> None:
    """Raise where a job in the middle of an iteration as a round begins holds a buffer that does not live for ever."""
    for job in np.unique(schedule.job[schedule.lag > 0]).tolist():
        trace = schedule.pipeline.parts[job].trace
        for buffer in np.flatnonzero(trace.crossing & ~trace.eternal).tolist():
            raise ValueError(
                f"job {job} ({trace.name:.60}): buffer {buffer} is held over the boundary of its iteration, which is "
                "in the middle of a round; pipeline(..., wrap=False) would do"
            )


def shared_state(schedule: CoSchedule, state: Sequence[State]) -> State:
    """The values of all jobs, by the recorded ids of the trace of all; the arrays are the same."""
    shared: State = {}
    for job, (values, part, first) in enumerate(zip(state, schedule.pipeline.parts, schedule.buffers)):
        over = set(part.trace.buffers.of[part.trace.crossing].tolist())
        for buffer, value in values.items():
            if buffer not in over:
                raise ValueError(f"state of job {job}: recorded buffer {buffer} carries no value over the boundary")
            shared[first + buffer] = value
    return shared
