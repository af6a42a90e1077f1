"""How long the ops of a job will take beside other jobs: predicted, then corrected by measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from gpumem.base.arguments import strict
from gpumem.jobs.job import Job
from gpumem.jobs.policy import Estimate
from gpumem.simulator.machine import Machine
from gpumem.trace import F64, I64


@strict
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

    When jobs come and go it is scaled by the ratio of the estimates; its corrections stay, as factors.
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

    def set_neighbours(self, others: int) -> None:
        """Set how many other jobs run from now on."""
        self.ns, self.others = self._moved(others), others

    def correct(self, measured: Sequence[int], beta: float) -> None:
        """Take what was measured in one iteration."""
        self.ns = ewma(self.ns, np.array(measured, np.float64), beta)


def ewma(estimate: ArrayLike, measured: ArrayLike, beta: float, *, as_printed: bool = False) -> F64:
    """Move estimates towards what was measured: `beta * estimate + (1 - beta) * measured`.

    Parameters
    ----------
    estimate, measured : float[n]
        Nanoseconds. The first estimate is the planned time, later ones are what this returned.
    beta : float
        Weight of the past, in [0, 1].
    as_printed : bool
        The paper's formula, which never learns; see the notes.

    Returns
    -------
    float64[n]
        Not rounded: rounding at each step would stop short of the goal.

    Raises
    ------
    ValueError
        A beta outside [0, 1]; arrays of different shapes.

    Notes
    -----
    The paper prints `t[j+1] = beta * t[j] + (1 - beta) * t[j]`, which is `t[j]`. Intended is `e[j+1] = beta * e[j] +
    (1 - beta) * t[j+1]` with e[0] the planned time.

    Examples
    --------
    >>> ewma([100, 100], [200, 100], beta=0.75)
    array([125., 100.])

    References
    ----------
    Zhang et al., TENSILE, section 4.3.
    """
    old, new = np.asarray(estimate, np.float64), np.asarray(measured, np.float64)
    if not 0 <= beta <= 1:
        raise ValueError(f"beta: {beta} is not in [0, 1]")
    if old.shape != new.shape:
        raise ValueError(f"ewma: estimates of the shape {old.shape}, measurements of the shape {new.shape}")
    new = old if as_printed else new
    # Rounding must not leave the interval: equal values stay what they are.
    mixed: F64 = np.clip(beta * old + (1 - beta) * new, np.minimum(old, new), np.maximum(old, new))
    return mixed
