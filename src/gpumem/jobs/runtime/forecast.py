"""How long the ops of a job will take beside a number of other jobs: predicted, then corrected by measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpumem.columns import F64, I64
from gpumem.jobs.job import Job
from gpumem.latency.predict import ewma
from gpumem.machine import Machine

Estimate = Callable[[Job, float], I64]  # ns of each op while kernels of so many other jobs run, on average


def roofline(machine: Machine, slowdown: float = 0.0) -> Estimate:
    """Return an estimate by the machine's roofline and the stated model of kernels that share it.

    >>> from gpumem.io import bundled
    >>> job, machine = Job("a", bundled("mlp3")), Machine.named("rtx2080ti")
    >>> bool((roofline(machine, slowdown=1)(job, 2) == 3 * machine.durations(job.trace)).all())
    True
    """
    return lambda job, others: np.rint(machine.durations(job.trace) * (1 + slowdown * others)).astype(np.int64)


class Forecast:
    """The ns of each op of a job beside `others` other jobs, as far as known now.

    When jobs come and go it is moved by what the estimate says of that; its corrections stay, as factors.
    """

    def __init__(self, job: Job, estimate: Estimate) -> None:
        self.job, self.estimate = job, estimate
        self.others = 0
        self.predicted: dict[int, F64] = {}
        self.ns = self._predict(0)

    def _predict(self, others: int) -> F64:
        if others not in self.predicted:
            ns = np.asarray(self.estimate(self.job, float(others)), np.float64)
            if len(ns) != self.job.trace.n:
                raise ValueError(f"job {self.job.name!r}: {len(ns)} estimates for {self.job.trace.n} ops")
            self.predicted[others] = ns
        return self.predicted[others]

    def beside(self, others: int) -> I64:
        """Return the ns of each op beside so many other jobs, int64[n]."""
        return np.rint(self._moved(others)).astype(np.int64)

    def _moved(self, others: int) -> F64:
        was, will = self._predict(self.others), self._predict(others)
        known = was > 0
        return np.where(known, self.ns * will / np.where(known, was, 1), self.ns)

    def settle(self, others: int) -> None:
        """So many other jobs it will be from now on."""
        self.ns, self.others = self._moved(others), others

    def correct(self, measured: Sequence[int], beta: float) -> None:
        """Take what was measured in one iteration."""
        self.ns = ewma(self.ns, np.array(measured, np.float64), beta)
