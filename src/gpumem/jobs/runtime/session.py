"""The end of a run of jobs: what executors and controller have noted, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpumem.jobs.events import Event
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import JobRun, Outcome
from gpumem.jobs.runtime.controller import GlobalController


def outcome(jobs: Sequence[Job], controller: GlobalController, log: tuple[Event, ...]) -> Outcome:
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
