"""TENSILE's metrics: how much memory is saved, what that costs, and the one over the other (section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gpumem.base.arguments import strict
from gpumem.jobs.outcome import JobRun, Outcome


@dataclass(frozen=True, slots=True)
class Saving:
    """MSR and EOR; `cbr` is the one over the other, infinite where memory is saved at no cost.

    >>> Saving(0.25, 0.1).cbr, Saving(0.25, 0.0).cbr, Saving(0.0, 0.0).cbr
    (2.5, inf, 0.0)
    """

    msr: float
    eor: float

    @property
    def cbr(self) -> float:
        """MSR / EOR."""
        if self.msr <= 0:
            return 0.0
        return self.msr / self.eor if self.eor > 0 else math.inf

    def row(self) -> dict[str, float | None]:
        """Return all three for JSON; None where one is infinite."""
        return {"msr": self.msr, "eor": self.eor, "cbr": None if math.isinf(self.cbr) else self.cbr}


@dataclass(frozen=True, slots=True)
class Steady:
    """One job while all jobs run and no plan changes: its iterations (numbers), their mean ns and largest peak."""

    iterations: range
    ns: float
    peak: int


@strict
def steady(outcome: Outcome) -> dict[str, Steady]:
    """Return how each job ran between the last launch or change of plans and the first departure after it.

    A job without a whole iteration in that time counts with its last one, so jobs that have to wait for others to leave
    look fast; the makespan tells. Jobs that never ran are left out.

    >>> from gpumem.io import bundled
    >>> from gpumem.jobs import Job, simulate_jobs
    >>> from gpumem.simulator import Machine
    >>> out = simulate_jobs([Job("a", bundled("mlp3"), iterations=4)], Machine.named("rtx2080ti"), 2**40)
    >>> steady(out)["a"].iterations, steady(out)["a"].peak == bundled("mlp3").peak_load
    (range(0, 4), True)
    """
    until = min((job.leave for job in outcome.jobs if job.start), default=0)
    changes = (event.ns for event in outcome.log if event.kind in ("launch", "adopt"))
    since = max((ns for ns in changes if ns < until), default=0)
    return {job.name: _mean(job, since, until) for job in outcome.jobs if job.end}


def _mean(job: JobRun, since: int, until: int) -> Steady:
    inside = [k for k, (start, end) in enumerate(zip(job.start, job.end)) if start >= since and end <= until]
    rows = range(inside[0], inside[-1] + 1) if inside else range(len(job.end) - 1, len(job.end))
    ns = sum(job.end[k] - job.start[k] for k in rows) / len(rows)
    return Steady(rows, ns, max(job.peak[k] for k in rows))


@strict
def savings(planned: Outcome, unmanaged: Outcome) -> tuple[Saving, dict[str, Saving]]:
    """Return what a plan saves and costs against the same jobs without one: of all together, and of each.

    Parameters
    ----------
    planned, unmanaged : Outcome
        Of the same jobs.

    Returns
    -------
    whole : Saving
        By the sum of the jobs' peaks, and the mean of their extra time. Of the jobs that ran in both.
    each : dict of str to Saving

    Notes
    -----
    The peak of several jobs is the sum of their peaks: they run asynchronously, so their peaks may meet.
    """
    after, before = steady(planned), steady(unmanaged)
    names = [name for name in before if name in after]
    each = {name: _saving(after[name], before[name]) for name in names}
    peaks = sum(before[name].peak for name in names)
    msr = 1 - sum(after[name].peak for name in names) / peaks if peaks else 0.0
    return Saving(msr, fmean(s.eor for s in each.values()) if each else 0.0), each


def _saving(after: Steady, before: Steady) -> Saving:
    msr = 1 - after.peak / before.peak if before.peak else 0.0
    return Saving(msr, after.ns / before.ns - 1 if before.ns else 0.0)


@strict
def makespan(outcome: Outcome) -> int:
    """Return the ns from the first arrival to the last departure of a job that ran, 0 where none did."""
    arrivals = [event.ns for event in outcome.log if event.kind == "arrive"]
    return max((job.leave - min(arrivals) for job in outcome.jobs if job.end), default=0)


def cells(r: Mapping[str, Any], digits: int) -> list[str]:
    """MSR, EOR and CBR, the last with some digits."""
    return [f"{r['msr']:.4f}", f"{r['eor']:.4f}", "infinite" if r["cbr"] is None else f"{r['cbr']:.{digits}f}"]
