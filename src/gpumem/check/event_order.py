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
    for i, e in enumerate(log):
        if e.ns < now:
            raise objection("time", f"time runs back from {now} ns", i, e)
        now = e.ns
        if e.kind == "replan":  # concerns all jobs
            continue
        if e.job not in jobs:
            raise objection("event", "there is no such job", i, e)
        try:
            jobs[e.job].follow(e)
        except CheckError as wrong:
            raise objection(wrong.rule, str(wrong), i, e) from None
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

    def follow(self, e: LoggedEvent) -> None:
        before, after = LIFE.get(e.kind, ((RUNNING,), RUNNING))
        if self.where not in before:
            raise CheckError("life", f"the job {self.where}")
        self.where = after
        if e.kind in RUN:
            self.begin(e)
        elif e.kind in RUN.values():
            self.end(e)
        elif e.kind == "iteration":
            self.next_iteration(e)
        elif e.kind in ("leave", "adopt"):
            self.at_boundary()
        elif e.kind not in (*LIFE, *DURING):
            raise CheckError("event", "there is no such kind of event")

    def begin(self, e: LoggedEvent) -> None:
        """An op starts, or one that ran in this iteration starts once more."""
        if self.running:
            raise CheckError("order", f"op {e.op} starts before op {self.running[1]} has ended")
        if e.iteration != self.iteration:
            raise CheckError("order", f"op {e.op} of iteration {e.iteration} starts in iteration {self.iteration}")
        if e.kind == "start" and e.op != self.op:
            raise CheckError("order", f"op {e.op} starts, the next one is {self.op} of {self.n}")
        if e.kind == "recompute" and not 0 <= e.op < self.op:
            raise CheckError("order", f"op {e.op} is run again, but has not run in this iteration")
        self.running = RUN[e.kind], e.op

    def end(self, e: LoggedEvent) -> None:
        if self.running != (e.kind, e.op) or e.iteration != self.iteration:
            raise CheckError("order", f"op {e.op} of iteration {e.iteration} is not running")
        self.running = None
        self.op += e.kind == "end"

    def next_iteration(self, e: LoggedEvent) -> None:
        if self.running or self.op != self.n or e.iteration != self.iteration:
            told = f"iteration {e.iteration} ends in iteration {self.iteration} before op {self.op} of {self.n}"
            raise CheckError("order", told)
        self.iteration, self.op = self.iteration + 1, 0

    def at_boundary(self) -> None:
        """No iteration is under way."""
        if self.running or self.op:
            raise CheckError("life", f"in the middle of iteration {self.iteration}")
