"""Order in an event log: each job arrives, runs its iterations op by op, and leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpumem.base.errors import CheckError
from gpumem.check.event_log import RUN, LoggedEvent, objection
from gpumem.trace import Trace

AWAY, WAITING, RUNNING, GONE = "has not arrived", "is waiting", "runs", "is gone"
# What a job does -> (where it must be for that, where it is then).
LIFE = {
    "arrive": ((AWAY,), WAITING),
    "wait": ((WAITING,), WAITING),
    "refused": ((WAITING,), GONE),
    "launch": ((WAITING,), RUNNING),
    "leave": ((WAITING, RUNNING), GONE),
}
DURING = ("hold", "free", "out", "out_end", "in", "in_end", "passive")


def order(log: Sequence[LoggedEvent], traces: Mapping[str, Trace]) -> None:
    """Check that time does not run backwards, and that each job runs each op once an iteration, in issue order.

    Raises
    ------
    CheckError
        An event out of turn, a job that is not in `traces` or that never comes to its end.
    """
    jobs = {name: _Job(trace.n) for name, trace in traces.items()}
    now = 0
    for index, event in enumerate(log):
        if event.ns < now:
            raise objection("time", f"time runs back from {now} ns", index, event)
        now = event.ns
        if event.kind == "replan":  # concerns all jobs
            continue
        if event.job not in jobs:
            raise objection("event", "there is no such job", index, event)
        try:
            jobs[event.job].follow(event)
        except CheckError as wrong:
            raise objection(wrong.rule, str(wrong), index, event) from None
    for name, job in jobs.items():
        if job.where != GONE:
            raise objection("life", f"the log ends, but job {name!r} {job.where}", len(log))


@dataclass(slots=True)
class _Job:
    n: int
    where: str = AWAY
    iteration: int = 0
    op: int = 0  # the next one
    running: tuple[str, int] | None = None  # how the event that ends the running op must look like

    def follow(self, event: LoggedEvent) -> None:
        before, after = LIFE.get(event.kind, ((RUNNING,), RUNNING))
        if self.where not in before:
            raise CheckError("life", f"the job {self.where}")
        self.where = after
        if event.kind in RUN:
            self.begin(event)
        elif event.kind in RUN.values():
            self.end(event)
        elif event.kind == "iteration":
            self.next_iteration(event)
        elif event.kind in ("leave", "adopt"):
            self.at_boundary()
        elif event.kind not in (*LIFE, *DURING):
            raise CheckError("event", "there is no such kind of event")

    def begin(self, event: LoggedEvent) -> None:
        """An op starts, or one that ran in this iteration is recomputed."""
        if self.running:
            raise CheckError("order", f"op {event.op} starts before op {self.running[1]} has ended")
        if event.iteration != self.iteration:
            raise CheckError(
                "order", f"op {event.op} of iteration {event.iteration} starts in iteration {self.iteration}"
            )
        if event.kind == "start" and event.op != self.op:
            raise CheckError("order", f"op {event.op} starts, the next one is {self.op} of {self.n}")
        if event.kind == "recompute" and not 0 <= event.op < self.op:
            raise CheckError("order", f"op {event.op} is recomputed, but has not run in this iteration")
        self.running = RUN[event.kind], event.op

    def end(self, event: LoggedEvent) -> None:
        if self.running != (event.kind, event.op) or event.iteration != self.iteration:
            raise CheckError("order", f"op {event.op} of iteration {event.iteration} is not running")
        self.running = None
        self.op += event.kind == "end"

    def next_iteration(self, event: LoggedEvent) -> None:
        if self.running or self.op != self.n or event.iteration != self.iteration:
            reason = f"iteration {event.iteration} ends in iteration {self.iteration} before op {self.op} of {self.n}"
            raise CheckError("order", reason)
        self.iteration, self.op = self.iteration + 1, 0

    def at_boundary(self) -> None:
        """No iteration is under way."""
        if self.running or self.op:
            raise CheckError("life", f"in the middle of iteration {self.iteration}")
