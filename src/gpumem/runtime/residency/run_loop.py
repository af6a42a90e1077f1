"""What a device learns of its program: the iteration, a plan for it, and where in that the program is.

::

    ops     | native, or on demand      | guarded         | planned ...      | on demand   | planned ...
    book    | recorded, two are alike   |                 |                  | recorded    |
                                        ^                 ^                  ^             ^
                                        found: planned    the plan is there  deviated      its first ops came by, or
                                        aside             at a boundary                    another iteration was found
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.environment import LiveBlock
from gpumem.runtime.residency.follower import LOST, Follower
from gpumem.runtime.residency.hints import Hints
from gpumem.runtime.residency.iteration_recorder import Notebook, OpTimes, timed
from gpumem.runtime.residency.limited_memory import LimitedMemory, LimitError
from gpumem.runtime.residency.report import IDLE, NATIVE, ON_DEMAND, PLANNED, Iteration
from gpumem.swap.plan import Plan
from gpumem.trace import Trace
from gpumem.trace.lifetimes import tails, without_idle
from gpumem.trace.record.recorder import Exec

KEPT = 1000  # rows of a report
HORIZON = 2**17  # ops recorded at most before the search begins afresh
CALM = 2  # iterations in a row as planned, and what was recorded beside them is given up
PATIENCE = 3  # iterations in a row that look as planned and find blocks away, before they are recorded again


class _Step(NamedTuple):
    """What was done for one op."""

    peak: int
    out: int
    back: int
    misses: int
    evictions: int
    end: int


def _touched(trace: Trace) -> list[list[int]]:
    """Which buffers each op touches, by the order in which they come first."""
    number: dict[int, int] = {}
    rows = zip(trace.ops.reads.tolist(), trace.ops.writes.tolist())
    return [[number.setdefault(b, len(number)) for b in (*reads, *writes)] for reads, writes in rows]


class Learner:
    """Follows a program: records it, finds its iteration, has it planned for, and carries the plan out.

    Parameters
    ----------
    memory : LimitedMemory
    blocks : dict of int to LiveBlock
        Those that are alive, by number.
    settled : callable
        Told of an iteration that was there twice; returns what will plan for it, None where there is nothing to plan.
    told : callable
        `told(kind, why)`: what is to stand in the log.
    now : callable
        The time, in ns.
    lasted : callable
        How long a timed op took, in ns.
    """

    def __init__(
        self,
        memory: LimitedMemory[LiveBlock],
        blocks: dict[int, LiveBlock],
        settled: Callable[[Trace], Planning | None],
        told: Callable[[str, str], None],
        now: Callable[[], int],
        lasted: Callable[[Any], int],
        *,
        detect: str,
        min_length: int,
        wait: bool,
    ) -> None:
        self.memory, self.blocks, self.settled, self.told = memory, blocks, settled, told
        self.now, self._times = now, OpTimes(lasted)
        self.detect, self.min_length, self.wait = detect, min_length, wait
        self.rows: deque[Iteration] = deque(maxlen=KEPT)
        self.notes: deque[str] = deque(maxlen=KEPT)
        self.follower: Follower[LiveBlock] | None = None
        self.hints: Hints | None = None
        self.job: Planning | None = None
        self._steps: list[_Step] = []
        self._calm = self._strayed = 0
        self._rows: list[list[int]] = []  # what the ops of the iteration touch
        self._began = now()
        self._number = 0
        self.book: Notebook | None = self._new_book()

    def _new_book(self) -> Notebook:
        self._times.forget()
        return Notebook([*self.blocks.values()], len(self._steps), self.detect, self.min_length, self._times)

    # around an op

    def before(self, op: Exec, key: int, is_input: bool) -> int:
        """Do what is due before an op; return which one of the iteration it is, or `LOST`."""
        if self.book is not None and (bounds := self.book.before(is_input)) is not None:
            self._alike(self.book, bounds)
        follower = self.follower
        if follower is None:
            return LOST
        was = follower.i
        i = follower.before(key, op.name)
        if was != LOST and i == LOST:
            self._calm = 0
            self.told("deviated", follower.deviation)
            self.book = self.book or self._new_book()
        elif was == LOST and i != LOST:
            self.told("resumed", "")
            self._row(len(self._steps) - i, ON_DEMAND, follower.deviation)
            follower.deviation = ""
        return i

    def after(self, op: Exec, key: int, touched: list[LiveBlock]) -> None:
        """Take note of an op that was begun, and do what is due after it."""
        memory, follower = self.memory, self.follower
        now = self.now()
        ended = follower is not None and follower.after(touched)
        c = memory.counts
        self._steps.append(_Step(memory.peak, c.out, c.back, c.misses, c.evictions, now))
        memory.begin()
        bounds = None if self.book is None else self.book.note(op, key, touched)
        if ended:
            self._ended()
        elif follower is not None and follower.i == LOST and len(self._steps) >= follower.hints.n:
            self._row(len(self._steps), ON_DEMAND, follower.deviation)
        if bounds is not None and self.book is not None:
            self._alike(self.book, bounds)
        elif self.book is not None and len(self.book.keys) >= HORIZON:
            self._row(len(self._steps), self._unplanned(self._steps), "")
            self.book = self._new_book()

    def _ended(self) -> None:
        """An iteration went as it was to."""
        follower, job = self.follower, self.job
        assert follower is not None
        self._row(len(self._steps), self._state(), "")
        row = self.rows[-1]
        strayed = row.state == PLANNED and row.misses + row.evictions > 0
        self._calm, self._strayed = (0, self._strayed + 1) if strayed else (self._calm + 1, 0)
        if self._calm >= CALM:
            self.book = None
        elif self._strayed == PATIENCE:  # ops that look as planned, on other blocks
            self.book = self.book or self._new_book()
        if job is not None:
            self._switch(job, follower.trail)

    def _state(self) -> str:
        hints = self.hints
        if hints is not None and hints.count:
            return PLANNED
        idle = hints is not None and hints.trace.peak_load <= self.memory.limit
        return IDLE if idle else self._unplanned(self._steps)

    @staticmethod
    def _unplanned(steps: Sequence[_Step]) -> str:
        return ON_DEMAND if any(step.evictions or step.misses for step in steps) else NATIVE

    def _row(self, count: int, state: str, deviation: str) -> None:
        """Close a row over the first steps since the last one."""
        steps, self._steps = self._steps[:count], self._steps[count:]
        if self.book is not None:
            self.book.first -= len(steps)
        if steps:
            self.rows.append(self._summed(steps, state, deviation))
            self._number, self._began = self._number + 1, steps[-1].end

    def _summed(self, steps: Sequence[_Step], state: str, deviation: str) -> Iteration:
        peak = max(step.peak for step in steps)
        sums = [sum(step[k] for step in steps) for k in (1, 2)], [sum(step[k] for step in steps) for k in (3, 4)]
        (out, back), (misses, evictions) = sums
        seconds = (steps[-1].end - self._began) / 1e9
        return Iteration(self._number, state, len(steps), peak, out, back, 0, misses, evictions, deviation, seconds)

    def iterations(self) -> list[Iteration]:
        """Return the rows so far; the last one may be under way."""
        if not self._steps:
            return [*self.rows]
        deviation = "" if self.follower is None else self.follower.deviation
        return [*self.rows, self._summed(self._steps, ON_DEMAND if deviation else self._state(), deviation)]

    # an iteration that was there twice

    def _alike(self, book: Notebook, bounds: list[tuple[int, int]]) -> None:
        """Have two iterations planned for, unless they are what is followed already."""
        lo, hi = bounds[-1]
        follower = self.follower
        try:
            if follower is not None and follower.i != LOST and follower.hints.n == hi - lo:
                mine = book.recorder.trace(lo - follower.i, hi - follower.i)  # as it is followed
                if self._strayed < PATIENCE or _touched(mine) == self._rows:
                    self.book = None
                    return
            trace = without_idle(timed(book.recorder.trace(lo, hi, name="program"), lo, book.times.read()))
        except ValueError:  # not steady after all
            self.book = self._new_book()
            return
        deviation = "" if follower is None else follower.deviation
        for begin, _ in bounds:
            part = self._steps[: max(book.first + begin, 0)]  # its first ops may be in a row that is closed
            self._row(len(part), ON_DEMAND if deviation else self._unplanned(part), deviation)
            deviation = ""
        self._row(len(self._steps), self._unplanned(self._steps), "")
        self.told("found", f"{trace.n} ops")
        trail = book.trail[lo:hi]
        self.book, self._calm, self._strayed, self._rows = None, 0, 0, _touched(trace)
        self._follow(trace, Plan.of(trace))
        if self.job is not None:
            self.job.give_up()
        self.job = self.settled(trace)
        self._fit()
        if self.job is not None:
            self.job.start()
            if self.wait:
                self.job.stop()
                self._switch(self.job, trail)
                self._began = self.now()  # no iteration's time

    def _follow(self, trace: Trace, plan: Plan, tails: Sequence[int] = ()) -> None:
        self.hints = Hints.of(trace, plan, tails)
        self.follower = Follower(self.memory, self.hints)

    def _switch(self, job: Planning, trail: list[list[LiveBlock]]) -> None:
        """Begin with a plan that is better, at the end of an iteration whose ops touched these blocks."""
        if job.done:
            self.notes.extend(job.notes)
            self.job = None
        if (news := job.news()) is None:
            return
        trace, plan = news
        self._follow(trace, plan, tails(job.trace, trace, job.limit))
        assert self.follower is not None
        self.told("planned", repr(plan))
        self.follower.switch(trail)
        self._fit()

    def _fit(self) -> None:
        """Be within the limit, which may be known just now."""
        with suppress(LimitError):  # which the next op will say
            self.memory.room(0)
        self.memory.peak = self.memory.held  # what moved is the next op's

    def close(self) -> None:
        """Close the last row, record no more, and have planning end, which is waited for as long as it was given."""
        self.book = None
        if self.job is not None:
            self.job.give_up()
            self.job.stop(self.job.seconds)
        follower = self.follower
        deviation = "" if follower is None else follower.deviation
        self._row(len(self._steps), ON_DEMAND if deviation else self._state(), deviation)
