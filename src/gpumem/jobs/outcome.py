"""The outcome of a run of several jobs: the event log, and the counts that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.base.display import Facts, Shown
from gpumem.base.units import human, human_ns


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one job.

    Parameters
    ----------
    ns : int
    job : str
    kind : str
        `arrive`, `wait` (for admission), `refused` (`size`: the lowest peak of its plan, alone), `launch`,
        `adopt` (a new plan; `size` of both: the job's budget from now on), `iteration` (has ended), `leave`;
        `replan` (of all jobs, because of this one; `size`: the sum of their budgets by the new plans);
        `hold`, `free` (`size` device bytes of `part`); `start`, `end` (of op `op`), `recompute`, `recomputed` (`op`
        once more); `out`, `out_end`, `in`, `in_end` (a copy of `size` bytes from or to device part `part`);
        `passive` (a copy-in that an op needs before its time, or that a change of plan takes).
    iteration : int
        Of this job; of a copy, the one that issued it. Between two iterations the coming one; -1 while it waits.
    op, buffer : int
        In the job's own trace; -1 where there is none.
    size : int
        Bytes.
    part : int
        The buffer's id in the trace rewritten by the plan in force.
    """

    ns: int
    job: str
    kind: str
    iteration: int = -1
    op: int = -1
    buffer: int = -1
    size: int = 0
    part: int = -1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JobRun(Shown):
    """What one job did.

    Parameters
    ----------
    name : str
    launch, leave : int
        ns; -1 where it never was launched, or was refused.
    refused : int
        The lowest peak of its plan alone, bytes, if that was above the capacity; else 0.
    start, end : tuple of int
        ns of each iteration, its wait for copies at the end included, the change of plans after it not.
    budget, peak : tuple of int
        Bytes that each iteration might hold, and held at most.
    passive : tuple of int
        Copies in that an op needed before their time, by iteration; those of a change of plans count in the next.
    out, into : int
        Bytes copied.
    waits : dict of str to int
        ns that the job stalled: for its `host` to enqueue an op, for a `copy` or `memory` that the op needs then, at a
        `boundary`, for `admission`. Kernels run one at a time, so none waits for another's result.
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

    def _facts(self) -> Facts:
        if self.launch < 0:
            return {"": self.name, "iterations": 0} | ({"refused at": human(self.refused)} if self.refused else {})
        ran = {"launched at": human_ns(self.launch), "left at": human_ns(self.leave)}
        held = {"peak": human(max(self.peak, default=0)), "copied": f"{human(self.out)} out, {human(self.into)} in"}
        return {"": self.name, "iterations": len(self.end), **ran, **held}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Outcome(Shown):
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

    def _facts(self) -> Facts:
        end = human_ns(max((job.leave for job in self.jobs), default=0))
        counts = {"replans": len(self.replans), "events": len(self.log)}
        return {"jobs": len(self.jobs), "peak": human(self.peak), "last left at": end, **counts}

    def __getitem__(self, name: str) -> JobRun:
        for job in self.jobs:
            if job.name == name:
                return job
        raise KeyError(name)
