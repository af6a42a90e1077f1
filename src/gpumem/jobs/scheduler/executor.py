"""The executor of one job: walks the ops of its plan, iteration by iteration (section 3.2).

It is a generator, so that the same walk runs under a simulated clock and with real streams. It yields what it cannot
do itself, and goes on when that is done::

    k >= 0   the kernel of op k runs from now on; send the ns that it took when it has ended
    WAIT     go on when the world resumes it
    TURN     go on at once, but after everybody else who has something to do at this instant

Kernels run one at a time, each from when the job's host has handed it over (the world says when). Copies do not wait
for the host: they are handed to the swap scheduler with the time at which they are due.
Whenever the executor must wait for a copy, that copy is due at once; a copy-in that an op needs before its time is a
*passive swap-in*.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event
from gpumem.jobs.scheduler.instructions import Instructions
from gpumem.jobs.scheduler.memory import JobMemory, Latch, Request
from gpumem.jobs.scheduler.swaps import Swaps, Transfer
from gpumem.trace import COPY_IN, COPY_OUT, RECOMPUTE

WAIT, TURN = -1, -2
WAITS = ("host", "copy", "memory", "boundary", "admission")
Walk = Generator[int, int, None]
T = TypeVar("T")
Plans = list[Instructions]
Errand = Generator[
    Callable[[], Plans], Plans, T
]  # of the controller: yields what takes long, is sent what that returns


class Controller(Protocol):
    """The global controller, as an executor sees it: asked at the boundaries of its iterations."""

    def new_plan(self, executor: Executor) -> Instructions | None:
        """Return what to do from now on, if that changes; a larger budget is granted already."""

    def measured(self, executor: Executor, ns: Sequence[int]) -> None:
        """Take the ns of each op of the job's trace in the iteration that has ended."""

    def adopted(self, executor: Executor) -> None:
        """The new plan is in force: what its budget is smaller by is free."""

    def left(self, executor: Executor) -> None:
        """The job is gone."""


class World(Protocol):
    """What runs ops and knows the time, simulated or real, as the controller and its executors see it."""

    @property
    def now(self) -> int:
        """Nanoseconds."""

    def log(self, event: Event) -> None:
        """Note an event."""

    def at(self, ns: int, act: Callable[[], None]) -> None:
        """Do something at a time."""

    def soon(self, errand: Callable[[], Errand[None]]) -> None:
        """Run an errand that nobody waits for."""

    def launch(self, executor: Executor) -> None:
        """Let a job begin."""

    def handed_over(self, executor: Executor, op: int) -> int:
        """Return when the job's host hands its next kernel over, that of op `op`: no earlier does it start."""

    def copy(self, executor: Executor, transfer: Transfer) -> None:
        """Copy as soon as the engine is free: call `executor.began`, then `executor.swaps.ended`."""

    def resume(self, executor: Executor) -> None:
        """All that the executor waited for is there."""

    def change(self, executor: Executor) -> Iterable[int]:
        """Lay the device out for the executor's new plan; what crosses the boundary keeps its value.

        Yields, as a walk does, what there is to wait for.
        """

    def release(self, executor: Executor) -> Iterable[int]:
        """The job leaves the device; yields as `change`."""


class Executor:
    """One job that has been admitted; its `place` among all breaks ties, `todo` is its plan, `drain` as in `Policy`.

    What it notes besides the log, as in `JobRun`: `rows`, the `start`, `budget`, `peak` and `passive` of each iteration
    that has ended, and `waits`, ns by cause.
    """

    def __init__(
        self, job: Job, place: int, todo: Instructions, world: World, controller: Controller, *, drain: bool
    ) -> None:
        self.job, self.place = job, place
        self.world, self.controller, self.drain = world, controller, drain
        self.iteration = 0
        self.rows: list[tuple[int, int, int, int]] = []
        self.waits = dict.fromkeys(WAITS, 0)
        self._take(todo)

    def _take(self, todo: Instructions) -> None:
        """Start from scratch under a plan: nothing held, no copy under way."""
        self.todo = todo
        self.memory = JobMemory(todo.budget, todo.size, self.say)
        self.swaps = Swaps(self, self.memory, len(todo.op))

    @property
    def now(self) -> int:
        """Nanoseconds."""
        return self.world.now

    def _log(self, kind: str, *, op: int = -1, size: int = 0) -> None:
        self.world.log(Event(self.now, self.job.name, kind, self.iteration, op, -1, size))

    def say(self, kind: str, part: int, iteration: int | None = None) -> None:
        """Log what happens to a part, in a copy that this or an earlier iteration issued."""
        k, todo = self.iteration if iteration is None else iteration, self.todo
        self.world.log(Event(self.now, self.job.name, kind, k, -1, todo.buffer[part], todo.size[part], part))

    def alarm(self, transfer: Transfer) -> None:
        """Have `swaps.due` called when its time has come."""
        self.world.at(transfer.due, partial(self.swaps.due, transfer))

    def ready(self, transfer: Transfer) -> None:
        """Hand a copy to the engines."""
        self.world.copy(self, transfer)

    def began(self, transfer: Transfer) -> None:
        """An engine has taken a copy up."""
        self.say("in" if transfer.into else "out", transfer.part, transfer.iteration)

    def walk(self) -> Walk:
        """Launch; iterate and change plans; leave."""
        self.waits["admission"] = self.now - self.job.arrival
        self._log("launch", size=self.todo.budget)
        self.memory.start(self.todo.device.values())
        yield TURN
        while True:
            since = self.now
            ns = yield from self._iterate()
            over = self.now
            yield from self._close(since)
            if self._is_done():
                yield from self._leave()
                self.waits["boundary"] += self.now - over
                return
            new = self.controller.new_plan(self)
            self.controller.measured(self, ns)
            self.iteration += 1
            if new is not None:
                yield from self._switch(new)
            self.waits["boundary"] += self.now - over

    def _is_done(self) -> bool:
        done = self.iteration + 1 >= self.job.iterations
        return done or (self.job.leave is not None and self.now >= self.job.leave)

    def _iterate(self) -> Generator[int, int, list[int]]:
        """Walk the ops of one iteration; return the ns of those of the job's own trace."""
        todo, memory, last = self.todo, self.memory, self.swaps.last
        memory.peak = memory.used
        ns: dict[int, int] = {}
        for i, role in enumerate(todo.role):
            for part in todo.ends[i]:
                memory.end(part, self.now)
            request = memory.request(todo.makes[i], self.now) if todo.makes[i] else None
            if role not in (COPY_OUT, COPY_IN):
                yield from self._host(i)
            needs = [t for t in map(last.__getitem__, todo.after[i]) if t is not None and t.end < 0]
            if role in (COPY_OUT, COPY_IN):
                self._issue(i, todo.part[i], role == COPY_IN, self.now + todo.delay[i], needs, request)
                continue
            if needs or (request is not None and request.at < 0):
                yield from self._stall(needs, request)
            again = role == RECOMPUTE
            self._log("recompute" if again else "start", op=todo.op[i])
            took = yield i
            self._log("recomputed" if again else "end", op=todo.op[i])
            if not again:
                ns[todo.op[i]] = took
        return [ns[op] for op in range(len(ns))]

    def _host(self, op: int) -> Walk:
        """Wait until the host hands an op over; copies that are not due meanwhile take their time."""
        since = self.now
        if (ns := self.world.handed_over(self, op)) > since:
            self.world.at(ns, partial(self.world.resume, self))
            yield WAIT
            self.waits["host"] += self.now - since

    def _issue(
        self, op: int, part: int, into: bool, due: int, needs: list[Transfer], request: Request | None = None
    ) -> None:
        self.swaps.issue(Transfer(self.iteration, op, into, part, self.todo.size[part], due, needs, request))

    def _stall(self, needs: Sequence[Transfer], request: Request | None) -> Walk:
        """Wait for the operands and the memory of an op; the last to come is the cause."""
        since = self.now
        yield from self._settle(needs, request, passive=True)
        operands = max((t.end for t in needs), default=since)
        memory = -1 if request is None else request.at
        self.waits["memory" if memory > operands else "copy"] += self.now - since

    def _settle(self, transfers: Sequence[Transfer], request: Request | None = None, *, passive: bool = False) -> Walk:
        """Wait until copies have ended and memory is granted; the copies become due at once."""
        asked = [request] if request is not None and request.at < 0 else []
        if not (transfers or asked):
            return
        latch = Latch(len(transfers) + len(asked), partial(self.world.resume, self))
        for waited in asked:
            waited.granted = latch.arrive
        for transfer in transfers:
            transfer.awaiting.append(latch)
        self.swaps.hurry(transfers, asked, passive=passive)
        yield WAIT

    def _close(self, since: int) -> Walk:
        """End an iteration: wait for its copies out, whose device parts end within it, then tell."""
        for part in self.todo.ends[-1]:
            self.memory.end(part, self.now)
        yield from self._settle([t for t in self.swaps.open if self.drain or self.todo.settles[t.op]])
        self.rows.append((since, self.memory.budget, self.memory.peak, self.swaps.passive))
        self.swaps.passive = 0
        self._log("iteration")
        yield TURN

    def _switch(self, new: Instructions) -> Walk:
        """Change the plan: values move to where the new one expects them at the boundary.

        Copies out come before the change of budget, copies in (passive swap-ins) after it.
        """
        yield from self._settle(list(self.swaps.open))
        old = self.todo
        for b in sorted(new.host - old.host):
            self._issue(-1, old.device[b], False, self.now, [])
        yield from self._settle(list(self.swaps.open))
        self._log("adopt", size=new.budget)
        self.memory.clear()
        self._take(new)
        self.memory.start(new.device.values())
        yield from self.world.change(self)
        self.controller.adopted(self)
        for b in sorted(new.device.keys() - old.device.keys()):
            self.swaps.passive += 1  # counted in the iteration that needs them
            self._issue(-1, new.device[b], True, self.now, [])
            self.say("passive", new.device[b])
        yield from self._settle(list(self.swaps.open))

    def _leave(self) -> Walk:
        """End all copies, give everything back."""
        yield from self._settle(list(self.swaps.open))
        self.memory.clear()
        yield from self.world.release(self)
        self._log("leave")
        yield TURN
        self.controller.left(self)
