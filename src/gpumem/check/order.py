"""Order in an event log: each job arrives, runs its iterations op by op, and leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpumem.check.log import RUN, Event, LogError
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
DURING = ("adopt", "hold", "free", "out", "out_end", "in", "in_end", "passive")


def order(log: Sequence[Event], traces: Mapping[str, Trace]) -> None:
    """Check that time does not run backwards, and that each job runs each op once an iteration, in issue order.

    Parameters
    ----------
    log, traces
        As in `gpumem.check.jobs`.

    Raises
    ------
    LogError
        An event out of turn, a job that is not in `traces` or that never comes to its end.
    """
    jobs = {name: _Job(trace.n) for name, trace in traces.items()}
    now = 0
    for i, e in enumerate(log):
        if e.ns < now:
            raise LogError(f"time runs back from {now} ns", i, e)
        now = e.ns
        if e.kind == "replan":  # concerns all jobs
            continue
        wrong = jobs[e.job].follow(e) if e.job in jobs else "there is no such job"
        if wrong:
            raise LogError(wrong, i, e)
    for name, job in jobs.items():
        if job.where != GONE:
            raise LogError(f"the log ends, but job {name!r} {job.where}", len(log))


@dataclass(slots=True)
class _Job:
    n: int
    where: str = AWAY
    iteration: int = 0
    op: int = 0  # the next one
    running: tuple[str, int] | None = None  # how the event that ends the running op must look like

    def follow(self, e: Event) -> str:
        """Do what the event says; return what is wrong with it."""
        if e.kind in LIFE:
            before, after = LIFE[e.kind]
            if self.where not in before:
                return f"the job {self.where}"
            self.where = after
            return self.at_boundary() if e.kind == "leave" else ""
        if self.where != RUNNING:
            return f"the job {self.where}"
        if e.kind in RUN:
            return self.begin(e)
        if e.kind in RUN.values():
            return self.end(e)
        if e.kind == "iteration":
            return self.next_iteration(e)
        if e.kind == "adopt":
            return self.at_boundary()
        return "" if e.kind in DURING else "there is no such kind of event"

    def begin(self, e: Event) -> str:
        """An op starts, or one that ran in this iteration starts once more."""
        if self.running:
            return f"op {e.op} starts before op {self.running[1]} has ended"
        if e.iteration != self.iteration:
            return f"op {e.op} of iteration {e.iteration} starts in iteration {self.iteration}"
        if e.kind == "start" and e.op != self.op:
            return f"op {e.op} starts, the next one is {self.op} of {self.n}"
        if e.kind == "recompute" and not 0 <= e.op < self.op:
            return f"op {e.op} is run again, but has not run in this iteration"
        self.running = RUN[e.kind], e.op
        return ""

    def end(self, e: Event) -> str:
        """The running op ends."""
        if self.running != (e.kind, e.op) or e.iteration != self.iteration:
            return f"op {e.op} of iteration {e.iteration} is not running"
        self.running = None
        self.op += e.kind == "end"
        return ""

    def next_iteration(self, e: Event) -> str:
        """The iteration ends."""
        if self.running or self.op != self.n or e.iteration != self.iteration:
            return f"iteration {e.iteration} ends in iteration {self.iteration} before op {self.op} of {self.n}"
        self.iteration, self.op = self.iteration + 1, 0
        return ""

    def at_boundary(self) -> str:
        """No iteration is under way."""
        return f"in the middle of iteration {self.iteration}" if self.running or self.op else ""
