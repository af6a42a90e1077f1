"""The executor of one job: walks the ops of its plan, iteration by iteration (section 3.2).

It is a generator, so that the same walk runs under a simulated clock and with real streams. It yields what it cannot
do itself, and goes on when that is done::

    k >= 0   the kernel of op k runs from now on; send the ns that it took when it has ended
    WAIT     go on when the environment resumes it
    TURN     go on at once, but after everybody else who has something to do at this instant

Kernels run one at a time, each from when the job's host has enqueued it (the environment says when). Copies do not wait
for the host: they go to the swap scheduler with the time at which they are due. Whenever the executor must wait for a
copy, that copy is due at once; a copy-in that an op needs before its time is a *passive swap-in*.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event
from gpumem.jobs.scheduler.instructions import Instructions
from gpumem.jobs.scheduler.memory import JobMemory, Latch, Request
from gpumem.jobs.scheduler.swaps import Swaps, Transfer
from gpumem.trace import COPY_IN, COPY_OUT, RECOMPUTE

WAIT, TURN = -1, -2  # what a walk yields beside ops
WAITS = ("host", "copy", "memory", "boundary", "admission")
Walk = Generator[int, int, None]
T = TypeVar("T")
Plans = list[Instructions]
# A controller's task: it yields planning, which takes long, and is sent the plans that come of it.
Errand = Generator[Callable[[], Plans], Plans, T]


class IterationRow(NamedTuple):
    """An iteration that has ended: its start, ns; bytes that it might hold, and held at most; its passive swap-ins."""

    start: int
    budget: int
    peak: int
    passive: int


class Controller(Protocol):
    """The global controller, as an executor sees it: asked at the boundaries of its iterations."""

    def new_plan(self, executor: Executor) -> Instructions | None:
        """Return the plan from now on, if that changes; a larger budget is granted already."""

    def measured(self, executor: Executor, ns: Sequence[int]) -> None:
        """Take the measured ns of each op of the job's trace in the iteration that has ended."""

    def adopted(self, executor: Executor) -> None:
        """Free the bytes by which the budget of the new plan, now in force, is smaller."""

    def left(self, executor: Executor) -> None:
        """Take the budget of a job that has left."""


class JobEnvironment(Protocol):
    """The execution environment, which runs ops and knows the time, as the controller and its executors see it."""

    @property
    def now(self) -> int:
        """Nanoseconds."""

    def log(self, event: Event) -> None:
        """Note an event."""

    def at(self, ns: int, act: Callable[[], None]) -> None:
        """Call `act` at a time, ns."""

    def soon(self, errand: Callable[[], Errand[None]]) -> None:
        """Run a task of the controller; no executor waits for it."""

    def launch(self, executor: Executor) -> None:
        """Begin to walk a job."""

    def enqueue_time(self, executor: Executor, op: int) -> int:
        """Return when the job's host enqueues its next kernel, that of op `op`: it starts no earlier."""

    def copy(self, executor: Executor, transfer: Transfer) -> None:
        """Copy as soon as the engine is free: call `executor.began`, then `executor.swaps.ended`."""

    def resume(self, executor: Executor) -> None:
        """Continue the walk of an executor: all that it waited for has come."""

    def change(self, executor: Executor) -> Iterable[int]:
        """Lay the device out for the executor's new plan; what crosses the boundary keeps its value.

        Yields, as a walk does, what there is to wait for.
        """

    def release(self, executor: Executor) -> Iterable[int]:
        """Free the job's device memory; yields as `change`."""


class Executor:
    """One job that has been admitted; its `place` among all breaks ties, `todo` is its plan, `drain` as in `Policy`.

    What it counts besides the log: `rows`, the iterations that have ended, and `waits`, ns by cause as in `JobRun`.
    """

    def __init__(
        self,
        job: Job,
        place: int,
        todo: Instructions,
        *,
        environment: JobEnvironment,
        controller: Controller,
        drain: bool,
    ) -> None:
        self.job, self.place = job, place
        self.environment, self.controller, self.drain = environment, controller, drain
        self.iteration = 0
        self.rows: list[IterationRow] = []
        self.waits = dict.fromkeys(WAITS, 0)
        self._take(todo)

    def _take(self, todo: Instructions) -> None:
        """Start from scratch under a plan: nothing held, no copy in flight."""
        self.todo = todo
        self.memory = JobMemory(todo.budget, todo.size, self.say)
        self.swaps = Swaps(self, self.memory, len(todo.op))

    @property
    def now(self) -> int:
        """Nanoseconds."""
        return self.environment.now

    def _log(self, kind: str, *, op: int = -1, size: int = 0) -> None:
        self.environment.log(Event(self.now, self.job.name, kind, self.iteration, op=op, size=size))

    def say(self, kind: str, part: int, iteration: int | None = None) -> None:
        """Log what happens to a part, in a copy that this or an earlier iteration issued."""
        issued_in, todo = self.iteration if iteration is None else iteration, self.todo
        buffer, size = todo.buffer[part], todo.size[part]
        self.environment.log(Event(self.now, self.job.name, kind, issued_in, buffer=buffer, size=size, part=part))

    def alarm(self, transfer: Transfer) -> None:
        """Have `swaps.due` called when its time has come."""
        self.environment.at(transfer.due, partial(self.swaps.due, transfer))

    def ready(self, transfer: Transfer) -> None:
        """Enqueue a copy on its engine."""
        self.environment.copy(self, transfer)

    def began(self, transfer: Transfer) -> None:
        """Log that an engine has started a copy."""
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
        for at, role in enumerate(todo.role):
            for part in todo.ends[at]:
                memory.end(part, self.now)
            request = memory.request(todo.makes[at], self.now) if todo.makes[at] else None
            if role not in (COPY_OUT, COPY_IN):
                yield from self._host(at)
            needs = [
                transfer
                for transfer in map(last.__getitem__, todo.after[at])
                if transfer is not None and transfer.end < 0
            ]
            if role in (COPY_OUT, COPY_IN):
                self._issue(at, todo.part[at], role == COPY_IN, self.now + todo.delay[at], needs=needs, request=request)
                continue
            if needs or (request is not None and request.at < 0):
                yield from self._stall(needs, request)
            recomputes = role == RECOMPUTE
            self._log("recompute" if recomputes else "start", op=todo.op[at])
            op_ns = yield at
            self._log("recomputed" if recomputes else "end", op=todo.op[at])
            if not recomputes:
                ns[todo.op[at]] = op_ns
        return [ns[op] for op in range(len(ns))]

    def _host(self, op: int) -> Walk:
        """Wait until the host enqueues an op; copies that are not due meanwhile take their time."""
        since = self.now
        if (ns := self.environment.enqueue_time(self, op)) > since:
            self.environment.at(ns, partial(self.environment.resume, self))
            yield WAIT
            self.waits["host"] += self.now - since

    def _issue(
        self, op: int, part: int, into: bool, due: int, *, needs: list[Transfer], request: Request | None = None
    ) -> None:
        size = self.todo.size[part]
        self.swaps.issue(Transfer(self.iteration, op, into, part, size=size, due=due, needs=needs, request=request))

    def _stall(self, needs: Sequence[Transfer], request: Request | None) -> Walk:
        """Wait for the operands and the memory of an op; the wait counts for the last to come."""
        since = self.now
        yield from self._wait_until_granted(needs, request, passive=True)
        operands = max((transfer.end for transfer in needs), default=since)
        memory = -1 if request is None else request.at
        self.waits["memory" if memory > operands else "copy"] += self.now - since

    def _wait_until_granted(
        self, transfers: Sequence[Transfer], request: Request | None = None, *, passive: bool = False
    ) -> Walk:
        """Wait until copies have ended and memory is granted; the copies become due at once."""
        asked = [request] if request is not None and request.at < 0 else []
        if not (transfers or asked):
            return
        latch = Latch(len(transfers) + len(asked), partial(self.environment.resume, self))
        for waited in asked:
            waited.granted = latch.arrive
        for transfer in transfers:
            transfer.awaiting.append(latch)
        self.swaps.hurry(transfers, asked, passive=passive)
        yield WAIT

    def _close(self, since: int) -> Walk:
        """End an iteration: wait for its copies out, whose device parts end within it, then log."""
        for part in self.todo.ends[-1]:
            self.memory.end(part, self.now)
        yield from self._wait_until_granted(
            [transfer for transfer in self.swaps.open if self.drain or self.todo.awaited_at_end[transfer.op]]
        )
        self.rows.append(IterationRow(since, self.memory.budget, self.memory.peak, self.swaps.passive))
        self.swaps.passive = 0
        self._log("iteration")
        yield TURN

    def _switch(self, new: Instructions) -> Walk:
        """Change the plan: values move to where the new one expects them at the iteration's boundary.

        Copies out come before the change of budget, copies in (passive swap-ins) after it.
        """
        yield from self._wait_until_granted(list(self.swaps.open))
        old = self.todo
        for buffer in sorted(new.host - old.host):
            self._issue(-1, old.device[buffer], False, self.now, needs=[])
        yield from self._wait_until_granted(list(self.swaps.open))
        self._log("adopt", size=new.budget)
        self.memory.clear()
        self._take(new)
        self.memory.start(new.device.values())
        yield from self.environment.change(self)
        self.controller.adopted(self)
        for buffer in sorted(new.device.keys() - old.device.keys()):
            self.swaps.passive += 1  # counted in the iteration that needs them
            self._issue(-1, new.device[buffer], True, self.now, needs=[])
            self.say("passive", new.device[buffer])
        yield from self._wait_until_granted(list(self.swaps.open))

    def _leave(self) -> Walk:
        """End all copies, free all memory."""
        yield from self._wait_until_granted(list(self.swaps.open))
        self.memory.clear()
        yield from self.environment.release(self)
        self._log("leave")
        yield TURN
        self.controller.left(self)
