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
def steady(outcome: Outcome, first: int | None = None) -> dict[str, Steady]:
    """Return how each job ran between the last launch or change of plans and the first departure after it.

    With `first`, where plans are made anew all the time: from its iteration of that number on, changes of plans
    counted, to the first departure. A job without a whole iteration in that time counts with its last one, so jobs that
    have to wait for others to leave look fast; the makespan shows that. Jobs that never ran are left out.

    >>> from gpumem.io import bundled
    >>> from gpumem.jobs import Job, simulate_jobs
    >>> from gpumem.simulator import Machine
    >>> out = simulate_jobs([Job("a", bundled("mlp3"), iterations=4)], Machine.named("rtx2080ti"), 2**40)
    >>> steady(out)["a"].iterations, steady(out)["a"].peak == bundled("mlp3").peak_live_bytes
    (range(0, 4), True)
    """
    until = min((job.leave for job in outcome.jobs if job.start), default=0)
    if first is not None:
        return {job.name: _from(job, first, until) for job in outcome.jobs if job.end}
    changes = (event.ns for event in outcome.log if event.kind in ("launch", "adopt"))
    since = max((ns for ns in changes if ns < until), default=0)
    return {job.name: _mean(job, since, until) for job in outcome.jobs if job.end}


def _from(job: JobRun, first: int, until: int) -> Steady:
    whole = sum(end <= until for end in job.end)
    if whole <= first:
        return _mean(job, until, until)
    ns = (job.end[whole - 1] - (job.end[first - 1] if first else job.start[0])) / (whole - first)
    return Steady(range(first, whole), ns, max(job.peak[first:whole]))


def _mean(job: JobRun, since: int, until: int) -> Steady:
    inside = [
        iteration for iteration, (start, end) in enumerate(zip(job.start, job.end)) if start >= since and end <= until
    ]
    iterations = range(inside[0], inside[-1] + 1) if inside else range(len(job.end) - 1, len(job.end))
    ns = sum(job.end[iteration] - job.start[iteration] for iteration in iterations) / len(iterations)
    return Steady(iterations, ns, max(job.peak[iteration] for iteration in iterations))


@strict
def savings(planned: Outcome, unmanaged: Outcome, first: int | None = None) -> tuple[Saving, dict[str, Saving]]:
    """Return what a plan saves and costs compared with the same jobs without one: of all together, and of each.

    Parameters
    ----------
    planned, unmanaged : Outcome
        Of the same jobs.
    first : int, optional
        As of `steady`.

    Returns
    -------
    whole : Saving
        By the sum of the jobs' peaks, and the mean of their extra time. Of the jobs that ran in both.
    each : dict of str to Saving

    Notes
    -----
    The peak of several jobs is the sum of their peaks: they run asynchronously, so their peaks may meet.
    """
    after, before = steady(planned, first), steady(unmanaged, first)
    names = [name for name in before if name in after]
    each = {name: _saving(after[name], before[name]) for name in names}
    peaks = sum(before[name].peak for name in names)
    msr = 1 - sum(after[name].peak for name in names) / peaks if peaks else 0.0
    return Saving(msr, fmean(saving.eor for saving in each.values()) if each else 0.0), each


def _saving(after: Steady, before: Steady) -> Saving:
    msr = 1 - after.peak / before.peak if before.peak else 0.0
    return Saving(msr, after.ns / before.ns - 1 if before.ns else 0.0)


@dataclass(frozen=True, slots=True)
class IterationCost:
    """All jobs in their iteration of one number: mean extra time, the change of plans counted, and passive swap-ins."""

    eor: float
    passive: int


@strict
def by_iteration(planned: Outcome, unmanaged: Outcome) -> list[IterationCost]:
    """Return how a run gets from its first plans, by estimates, to a steady state: its first iteration, its second, ...

    Against the unmanaged jobs in their steady state; each number is of the jobs that have so many iterations.

    >>> from gpumem.io import bundled
    >>> from gpumem.jobs import Job, Policy, simulate_jobs, unmanaged
    >>> from gpumem.simulator import Machine, Uncertainty
    >>> trace, machine, off = bundled("vgg16"), Machine.named("rtx2080ti"), Uncertainty(spread=0.6)
    >>> job, most = Job("a", trace, iterations=6), trace.peak_live_bytes
    >>> before = simulate_jobs([job], machine, most, Policy(unmanaged), uncertainty=off)
    >>> after = simulate_jobs([job], machine, most * 4 // 5, Policy(replan="windows"), uncertainty=off)
    >>> [f"{turn.eor:.3f}" for turn in by_iteration(after, before)]
    ['0.027', '0.027', '0.013', '0.007', '0.004', '0.004']
    """
    usual = steady(unmanaged)
    jobs = [job for job in planned.jobs if job.end and job.name in usual and usual[job.name].ns]
    costs = []
    for iteration in range(max((len(job.end) for job in jobs), default=0)):
        measured = [job for job in jobs if iteration < len(job.end)]
        until = [job.start[iteration + 1] if iteration + 1 < len(job.end) else job.end[iteration] for job in measured]
        extra = [(ns - job.start[iteration]) / usual[job.name].ns - 1 for job, ns in zip(measured, until)]
        costs.append(IterationCost(fmean(extra), sum(job.passive[iteration] for job in measured)))
    return costs


@strict
def makespan(outcome: Outcome) -> int:
    """Return the ns from the first arrival to the last departure of a job that ran, 0 where none did."""
    arrivals = [event.ns for event in outcome.log if event.kind == "arrive"]
    return max((job.leave - min(arrivals) for job in outcome.jobs if job.end), default=0)


def cells(row: Mapping[str, Any], digits: int) -> list[str]:
    """MSR, EOR and CBR, the last with some digits."""
    return [f"{row['msr']:.4f}", f"{row['eor']:.4f}", "infinite" if row["cbr"] is None else f"{row['cbr']:.{digits}f}"]
