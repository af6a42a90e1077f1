"""A run of jobs from start to end, in whatever world: checks, a controller, and what all of them have noted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event, JobRun, Outcome
from gpumem.jobs.policy import Policy
from gpumem.jobs.runtime.controller import GlobalController, Launcher
from gpumem.jobs.runtime.instructions import Place
from gpumem.machine import Machine


class RunnableWorld(Launcher, Protocol):
    """The world, as a session sees it."""

    @property
    def events(self) -> Sequence[Event]:
        """What has been noted."""

    def run(self, jobs: Sequence[Job], controller: GlobalController) -> None:
        """Have the controller expect the jobs; return when all of them are gone."""


def run_session(
    jobs: Sequence[Job],
    machine: Machine,
    capacity: int,
    policy: Policy,
    world: RunnableWorld,
    *,
    slowdown: float = 0.0,
    place: Place | None = None,
) -> Outcome:
    """Run jobs in a world; see `simulate_jobs` for the parameters and errors, `GlobalController` for `place`."""
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"jobs: {names.count(name)} of them are called {name!r}")
    if capacity < 1:
        raise ValueError(f"capacity: {capacity} bytes is below 1")
    controller = GlobalController(machine, capacity, world, policy, slowdown=slowdown, place=place)
    world.run(jobs, controller)
    return _outcome(jobs, controller, tuple(world.events))


def _outcome(jobs: Sequence[Job], controller: GlobalController, log: tuple[Event, ...]) -> Outcome:
    """Put together what the executors and the controller have noted."""
    found = []
    for job in jobs:
        member = controller.members[job.name]
        r = member.record
        found.append(
            JobRun(
                job.name,
                r.launch,
                r.leave,
                member.refused if member.todo is None else 0,
                tuple(r.start),
                tuple(r.end),
                tuple(r.budget),
                tuple(r.peak),
                tuple(r.passive),
                r.moved["out"],
                r.moved["in"],
                r.waits,
            )
        )
    return Outcome(tuple(found), _peak(log), tuple(controller.budgets), tuple(controller.replans), log)


def _peak(log: Iterable[Event]) -> int:
    held = peak = 0
    for event in log:
        if event.kind == "hold":
            held += event.size
            peak = max(peak, held)
        elif event.kind == "free":
            held -= event.size
    return peak
