"""What comes out of a run of several jobs."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.jobs.events import Event


@dataclass(frozen=True, slots=True, eq=False)
class JobRun:
    """What one job did.

    Parameters
    ----------
    name : str
    launch, leave : int
        ns; -1 where it never was launched, or was refused.
    refused : int
        Bytes that its plan got down to alone, if that was above the capacity; else 0.
    start, end : tuple of int
        ns of each iteration, its wait for copies at the end included, the change of plans after it not.
    budget, peak : tuple of int
        Bytes that each iteration might hold, and held at most.
    passive : tuple of int
        Copies in that an op needed before their time, by iteration; those of a change of plans count in the next.
    out, into : int
        Bytes copied.
    waits : dict of str to int
        ns that the job stood still: for a `copy` or `memory` that an op needs, at a `boundary`, for `admission`.
        Kernels are synchronous, so none waits for another's result.
    """

    name: str
    launch: int
    leave: int
    refused: int
    start: tuple[int, ...]
    end: tuple[int, ...]
    budget: tuple[int, ...]
    peak: tuple[int, ...]
    passive: tuple[int, ...]
    out: int
    into: int
    waits: dict[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What all jobs did.

    Parameters
    ----------
    jobs : tuple of JobRun
    peak : int
        Bytes that they held together at most, for longer than an instant.
    budgets : tuple of (int, int)
        ns, and the sum of the budgets from then on.
    replans : tuple of int
        ns at which running jobs were planned anew.
    log : tuple of Event
    """

    jobs: tuple[JobRun, ...]
    peak: int
    budgets: tuple[tuple[int, int], ...]
    replans: tuple[int, ...]
    log: tuple[Event, ...]

    def __getitem__(self, name: str) -> JobRun:
        for job in self.jobs:
            if job.name == name:
                return job
        raise KeyError(name)
