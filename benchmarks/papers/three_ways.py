"""Three ways for jobs to share a GPU where durations are off: by swapping (TENSILE), by groups (Waterwave), in turn.

Plans and pipelines are made for the estimates, all three run by the same errors of ops: those of a net, whichever job
trains it. What counts is the time until the last job has left, as a part of what the jobs take alone and one after the
other, of the same draw; and what jobs wait until they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import Any
from zlib import crc32

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.units import percent
from gpumem.jobs import Job, Outcome, Policy, makespan, simulate_jobs
from gpumem.jobs.waterwave import Pipeline, simulate_together, temporal, waterwave
from gpumem.pipeline.report import columns
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.trace import Trace

Row = dict[str, Any]
CAPACITIES = (0.9, 0.75, 0.6)  # of the jobs' peaks added up
ARRIVALS = {"at once": 0.0, "staggered": 2.5, "one by one": 8.0}  # iterations alone between one job and the next
ITERATIONS = 8  # of each job


@dataclass(frozen=True, slots=True)
class Crowd:
    """Jobs, the machine they share, and how far their ops are off."""

    traces: tuple[Trace, ...]
    machine: Machine
    slowdown: float
    off: Uncertainty

    @property
    def name(self) -> str:
        """The nets with a plus between."""
        return " + ".join(trace.name for trace in self.traces)

    def alone(self, draw: int) -> list[int]:
        """What an iteration of each job takes alone, ns."""
        return [simulate(self.true(trace, draw), self.machine).makespan for trace in self.traces]

    def true(self, trace: Trace, draw: int) -> Trace:
        """A job's trace with the durations of a draw: the same for the same net."""
        return self.off.drawn(trace, self.machine, draw * 2**32 + crc32(trace.name.encode()))

    def jobs(self, apart: float, *, iterations: int = ITERATIONS) -> list[Job]:
        """The jobs, `apart` estimated iterations from one to the next."""
        turn = max(simulate(trace, self.machine).makespan for trace in self.traces)
        return [
            Job(f"{trace.name}#{k}", trace, round(k * apart * turn), iterations)
            for k, trace in enumerate(self.traces, 1)
        ]


@strict
def rows(crowd: Crowd, draws: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Return a row for each capacity and pattern of arrivals: medians over the draws, of each way."""
    whole = sum(trace.peak_live_bytes for trace in crowd.traces)
    for part in CAPACITIES:
        for pattern, apart in ARRIVALS.items():
            jobs, capacity = crowd.jobs(apart), int(part * whole)
            alone = [_after_another(crowd, jobs, k) for k in range(draws)]
            arrived, turn = fmean(job.arrival for job in jobs), fmean(crowd.alone(0))
            row: Row = {"jobs": crowd.name, "capacity": part, "arrivals": pattern}
            for way, run in WAYS.items():
                progress(f"{crowd.name} at {part:.0%}, {pattern}: {way}")
                ran = [run(crowd, jobs, capacity, draw) for draw in range(draws)]
                times = [makespan(out) / in_order for out, in_order in zip(ran, alone) if _all_ran(out)]
                waits = [fmean(job.launch for job in out.jobs) for out in ran if _all_ran(out)]
                row[way] = median(times) if times else None
                row[f"{way}_waits"] = (median(waits) - arrived) / turn if waits else None
            yield row


def _all_ran(out: Outcome) -> bool:
    return all(job.end for job in out.jobs)


def _after_another(crowd: Crowd, jobs: Sequence[Job], draw: int) -> int:
    """The time until the last of the jobs has left where each has the GPU for itself, in order of arrival; ns."""
    now = 0
    for job, turn in zip(jobs, crowd.alone(draw), strict=True):
        now = max(now, job.arrival) + job.iterations * turn
    return now - jobs[0].arrival


def _tensile(crowd: Crowd, jobs: Sequence[Job], capacity: int, draw: int) -> Outcome:
    """By swapping: what ops really take is in the traces, what is planned for is estimated."""
    true = [replace(job, trace=crowd.true(job.trace, draw)) for job in jobs]
    policy = Policy(estimate=lambda job, others: _estimate(crowd, job, others), replan="windows")
    return simulate_jobs(true, crowd.machine, capacity, policy, slowdown=crowd.slowdown)


def _estimate(crowd: Crowd, job: Job, others: float) -> Any:
    trace = next(trace for trace in crowd.traces if trace.name == job.trace.name)
    return np.rint(crowd.machine.durations(trace) * (1 + crowd.slowdown * others)).astype(np.int64)


def _by_rounds(way: Callable[..., Pipeline], crowd: Crowd, jobs: Sequence[Job], capacity: int, draw: int) -> Outcome:
    def late(traces: Sequence[Trace], machine: Machine, limit: int | None = None) -> Pipeline:
        """A pipeline for the estimates, whose ops take what they take."""
        line = way(traces, machine, limit)
        return replace(line, parts=tuple(replace(part, trace=crowd.true(part.trace, draw)) for part in line.parts))

    return simulate_together(jobs, crowd.machine, capacity, late, slowdown=crowd.slowdown)


WAYS: dict[str, Callable[[Crowd, Sequence[Job], int, int], Outcome]] = {
    "tensile": _tensile,
    "waterwave": partial(_by_rounds, waterwave),
    "in turn": partial(_by_rounds, temporal),
}


def table(found: Sequence[Row]) -> str:
    """Times and waits by way."""
    head = ["jobs", "capacity", "arrivals", *WAYS, *(f"{way} waits" for way in WAYS)]
    lines = [head]
    for r in found:
        times = ["not all fit" if r[way] is None else percent(r[way]) for way in WAYS]
        waits = ["" if r[f"{way}_waits"] is None else f"{r[f'{way}_waits']:.2f}" for way in WAYS]
        lines.append([r["jobs"], f"{r['capacity']:.0%}", r["arrivals"], *times, *waits])
    told = "Time until the last job has left, of the jobs alone and one after the other; waits in iterations alone."
    return f"{columns(lines)}\n\n{told}"
