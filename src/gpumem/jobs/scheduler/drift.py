"""When a job's times are so far off its plan that all jobs are planned anew.

By the sum, the paper's rule, errors of single ops cancel. What a plan relies on are windows: a copy starts some time
after an op has ended, and must have ended when a later op starts::

    planned    [ a ]..delay..[  copy in  ][ b reads it ]
    measured   [ a ]..delay..[  copy in  ]
                    [ fewer ns until b ][ b  . . . .     late by so much, whatever the rest of the iteration takes
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.jobs.scheduler.instructions import Instructions
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.times import Times
from gpumem.trace import COPY_IN, COPY_OUT, F64, I64, RECOMPUTE, Trace


@dataclass(frozen=True, slots=True, eq=False)
class SwapWindows:
    """The copies of a plan: each is due `delay` ns behind op `after`, takes `ns`, and has until op `before` starts.

    Ops are those of the job's own trace, counted on over iterations; copies of one `engine` go by the time at which
    they are due.
    """

    trace: Trace
    machine: Machine
    after: I64
    before: I64
    delay: I64
    ns: I64
    engine: I64

    @classmethod
    def of(cls, trace: Trace, todo: Instructions, machine: Machine) -> SwapWindows:
        """Return the windows of a job's plan, O(n + m) for n ops and the m of which copies are awaited."""
        role = np.array(todo.role)
        copies = np.flatnonzero((role == COPY_OUT) | (role == COPY_IN))
        ops_before = np.cumsum((role != COPY_OUT) & (role != COPY_IN) & (role != RECOMPUTE)).tolist()
        deadline = _deadlines(todo)
        after, before = np.zeros((2, len(copies)), np.int64)
        for index, copy in enumerate(copies.tolist()):
            until = deadline.get(copy, copy)
            after[index] = (
                ops_before[copy] - 1 + trace.n
            )  # of the iteration before where no op of this one came earlier
            before[index] = (ops_before[until - 1] if until else 0) + trace.n * (2 if until <= copy else 1)
        delay, ns = np.array(todo.delay, np.int64)[copies], np.array(todo.ns, np.int64)[copies]
        engine = (role[copies] == COPY_IN) & machine.duplex
        return cls(trace, machine, after, before, delay=delay, ns=ns, engine=engine)

    def late(self, duration: F64) -> float:
        """Return how late the copies are if the job's ops take `duration`: ns added up, as a share of its iteration.

        Copies of other jobs are left out, and that a copy that is late holds up what comes behind it.
        """
        times = Times.serial(self.trace, self.machine, np.rint(duration).astype(np.int64))
        due, until = times.end[self.after] + self.delay, times.start[self.before]
        total = 0
        for engine in (False, True):
            on_engine = np.flatnonzero(self.engine == engine)
            total += int(
                np.maximum(_queued(due[on_engine], self.ns[on_engine], times.period) - until[on_engine], 0).sum()
            )
        return total / max(times.period, 1)


def _queued(due: I64, ns: I64, period: int) -> I64:
    """When copies end that one engine serves first come, first served, where the iteration before had the same."""
    arrivals, ns_twice = np.concatenate([due, due + period]), np.concatenate([ns, ns])
    order = np.argsort(arrivals, kind="stable")
    ended = np.cumsum(ns_twice[order])
    ended += np.maximum.accumulate(arrivals[order] - (ended - ns_twice[order]))
    end_of = np.empty_like(arrivals)
    end_of[order] = ended
    return end_of[len(due) :] - period


def _deadlines(todo: Instructions) -> dict[int, int]:
    """When each copy must have ended: a copy-in at its first access, a copy-out when its part ends."""
    count = len(todo.role)
    deadlines: dict[int, int] = {}
    for op, awaited in enumerate(todo.after):
        for copy in awaited:
            if (
                todo.role[copy] == COPY_IN
                and copy != op
                and (copy not in deadlines or (op - copy) % count < (deadlines[copy] - copy) % count)
            ):
                deadlines[copy] = op
    ends = {part: copy for copy, parts in enumerate(todo.ends) for part in parts}
    return deadlines | {
        copy: ends[todo.part[copy]] for copy in range(count) if todo.role[copy] == COPY_OUT and todo.part[copy] in ends
    }


@dataclass(slots=True, eq=False)
class Drift:
    """Whether one job's windows are so far off that a new plan pays.

    `limit`: how much later than `expected`, when its plan was made, its copies may be. It doubles whenever a new plan
    has not made the job stall less: noise alone makes copies late under any plan.
    """

    limit: float
    windows: SwapWindows | None = None
    expected: float = 0.0
    stalled: int = 0  # ns for copies and memory, so far
    asked: tuple[Instructions, float] | None = (
        None  # the plan that was to be changed, and the share of time for which the job stalled
    )

    def rely(self, windows: SwapWindows, duration: F64) -> None:
        """Take the windows of the newest plan; the lateness that it has from the start does not count as drift."""
        self.windows, self.expected = windows, windows.late(duration)

    def accept(self, duration: F64) -> None:
        """Take the lateness as it is: no better plan was found."""
        if self.windows is not None:
            self.expected = self.windows.late(duration)

    def measure(self, todo: Instructions, duration: F64, stalled: int, ns: int) -> bool:
        """Take an iteration of `ns` under the plan `todo`; return whether a new plan is worth asking for.

        `duration`: of the job's ops, as known now; `stalled`: for how many ns the job has stalled so far.
        """
        share, self.stalled = (stalled - self.stalled) / max(ns, 1), stalled
        if self.asked is not None and self.asked[0] is not todo:
            if share >= self.asked[1]:
                self.limit *= 2
            self.asked = None
        assert self.windows is not None
        off = self.windows.late(duration) - self.expected > self.limit
        if off and self.asked is None:
            self.asked = todo, share
        return off
