"""A run of jobs from start to end, in whatever world: checks, a controller, and what all of them have noted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event, JobRun, Outcome
from gpumem.jobs.scheduler.controller import GlobalController
from gpumem.jobs.scheduler.executor import WAITS, World


class RunnableWorld(World, Protocol):
    """The world, as a session sees it."""

    def run(self, jobs: Sequence[Job], controller: GlobalController) -> Sequence[Event]:
        """Have the controller expect the jobs; return what was noted when all of them are gone."""


def run_session(jobs: Sequence[Job], controller: GlobalController, world: RunnableWorld) -> Outcome:
    """Run jobs in a world that the controller knows; no two of them share a name."""
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"jobs: {names.count(name)} of them are called {name!r}")
    return _outcome(jobs, controller, tuple(world.run(jobs, controller)))


def _outcome(jobs: Sequence[Job], controller: GlobalController, log: tuple[Event, ...]) -> Outcome:
    """Put together what the log says and what the executors have noted besides."""
    ns, size = defaultdict[tuple[str, str], list[int]](list), Counter[tuple[str, str]]()
    for event in log:
        ns[event.job, event.kind].append(event.ns)
        size[event.job, event.kind] += event.size
    found = []
    for name in (job.name for job in jobs):
        mine = controller.members[name].executor
        start, budget, peak, passive = zip(*mine.rows) if mine and mine.rows else ((),) * 4
        found.append(
            JobRun(
                name,
                max(ns[name, "launch"], default=-1),
                max(ns[name, "leave"], default=-1),
                size[name, "refused"],
                start,
                tuple(ns[name, "iteration"]),
                budget,
                peak,
                passive,
                size[name, "out"],
                size[name, "in"],
                mine.waits if mine else dict.fromkeys(WAITS, 0),
            )
        )
    held = accumulate((e.size if e.kind == "hold" else -e.size for e in log if e.kind in ("hold", "free")), initial=0)
    replans = tuple(event.ns for event in log if event.kind == "replan")
    return Outcome(tuple(found), max(held), tuple(controller.budgets), replans, log)
