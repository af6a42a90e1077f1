"""How long the kernels and copies of jobs really take, where plans rely on estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event
from gpumem.jobs.policy import Estimate
from gpumem.simulator.machine import Machine
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.trace import F64, I64

CERTAIN = Uncertainty()


class ActualTimes:
    """The durations that an `Uncertainty` draws, by the place of a job among all.

    An op keeps its lasting error, and each of its runs in one iteration, recomputations too, takes as long. Copies are
    drawn one by one, in the order in which those of a job start.
    """

    def __init__(self, jobs: Sequence[Job], machine: Machine, uncertainty: Uncertainty) -> None:
        self.machine, self.uncertainty = machine, uncertainty
        self.lasting: list[F64] = [
            machine.durations(job.trace) * uncertainty.lasting(job.trace.n, place) for place, job in enumerate(jobs)
        ]
        self.row: dict[int, tuple[int, list[int]]] = {}  # by place: the last iteration asked for, and its kernels' ns
        self.exact = replace(uncertainty, spread=0.0, bias=1.0, noise=0.0).certain  # of copies; a draw takes 60 us
        self.begun: Counter[int] = Counter()  # copies of each job

    def kernels(self, place: int, iteration: int) -> I64:
        """Return what each op of a job takes in an iteration, alone on the device, int64[n] ns."""
        ns = self.lasting[place]
        return np.rint(ns * self.uncertainty.passing(len(ns), place, iteration)).astype(np.int64)

    def kernel(self, place: int, iteration: int, op: int) -> int:
        """Return the same of one op."""
        last_iteration, times = self.row.get(place, (-1, []))
        if last_iteration != iteration:
            times = self.kernels(place, iteration).tolist()
            self.row[place] = iteration, times
        return times[op]

    def copy(self, place: int, ns: int) -> int:
        """Return what the next copy of a job takes, ns, which the machine says takes `ns` on an idle link."""
        if self.exact:
            return ns
        self.begun[place] += 1
        return int(self.uncertainty.copies(np.array([ns]), self.machine, place, self.begun[place])[0])


@strict
def informed(jobs: Sequence[Job], machine: Machine, uncertainty: Uncertainty, *, slowdown: float = 0.0) -> Estimate:
    """Return an estimate that knows the lasting errors: what no measurement could better.

    >>> from gpumem.io import bundled
    >>> machine, off = Machine.named("rtx2080ti"), Uncertainty(bias=2)
    >>> job = Job("a", bundled("mlp3"))
    >>> bool((informed([job], machine, off)(job, 0) == 2 * machine.durations(job.trace)).all())
    True
    """
    actual = ActualTimes(jobs, machine, uncertainty)
    ns = {job.name: lasting for job, lasting in zip(jobs, actual.lasting)}
    return lambda job, others: np.rint(ns[job.name] * (1 + slowdown * others)).astype(np.int64)


def copies(log: Sequence[Event], jobs: Sequence[Job], machine: Machine, uncertainty: Uncertainty) -> dict[str, I64]:
    """Return what the copies of each job take in a log, in the order in which they start, int64 ns."""
    actual = ActualTimes(jobs, machine, uncertainty)
    place = {job.name: index for index, job in enumerate(jobs)}
    ns: dict[str, list[int]] = {job.name: [] for job in jobs}
    for event in log:
        if event.kind in ("in", "out"):
            link = machine.into if event.kind == "in" else machine.out
            ns[event.job].append(actual.copy(place[event.job], int(link.copy_ns(np.array([event.size]))[0])))
    return {name: np.array(times, np.int64) for name, times in ns.items()}
