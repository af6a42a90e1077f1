"""A run of jobs from start to end, in any execution environment: checks, a controller, and the outcome of its log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event, JobRun, Outcome
from gpumem.jobs.scheduler.controller import GlobalController
from gpumem.jobs.scheduler.executor import WAITS, JobEnvironment


class RunnableEnvironment(JobEnvironment, Protocol):
    """The execution environment, as a session sees it."""

    def run(self, jobs: Sequence[Job], controller: GlobalController) -> Sequence[Event]:
        """Have the controller expect the jobs; return all events when every job has left."""


def run_session(jobs: Sequence[Job], controller: GlobalController, environment: RunnableEnvironment) -> Outcome:
    """Run jobs in an environment that the controller knows; no two of them share a name."""
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"jobs: {names.count(name)} of them are called {name!r}")
    return _outcome(jobs, controller, tuple(environment.run(jobs, controller)))


def _outcome(jobs: Sequence[Job], controller: GlobalController, log: tuple[Event, ...]) -> Outcome:
    """Join what the log says with what the executors have counted besides."""
    ns, size = defaultdict[tuple[str, str], list[int]](list), Counter[tuple[str, str]]()
    for event in log:
        ns[event.job, event.kind].append(event.ns)
        size[event.job, event.kind] += event.size
    runs = []
    for name in (job.name for job in jobs):
        executor = controller.members[name].executor
        rows = executor.rows if executor else []
        runs.append(
            JobRun(
                name,
                launch=max(ns[name, "launch"], default=-1),
                leave=max(ns[name, "leave"], default=-1),
                refused=size[name, "refused"],
                start=tuple(row.start for row in rows),
                end=tuple(ns[name, "iteration"]),
                budget=tuple(row.budget for row in rows),
                peak=tuple(row.peak for row in rows),
                passive=tuple(row.passive for row in rows),
                out=size[name, "out"],
                into=size[name, "in"],
                waits=executor.waits if executor else dict.fromkeys(WAITS, 0),
            )
        )
    held = accumulate(
        (
            part_event.size if part_event.kind == "hold" else -part_event.size
            for part_event in log
            if part_event.kind in ("hold", "free")
        ),
        initial=0,
    )
    replans = tuple(event.ns for event in log if event.kind == "replan")
    return Outcome(tuple(runs), max(held), tuple(controller.budgets), replans=replans, log=log)
