"""Jobs on real streams: the same executors and controller in one loop, which goes on with whatever has ended.

One thread, the caller's, walks the executors, has copies become due and asks the controller: nothing is locked. What
takes long runs in other threads, whose results return to the loop::

    loop       walk a  walk b   ..   walk a    alarm: a copy is due   ..   new plans   walk b  ..
    threads      [ kernel of a ]       [ kernel of a           ] [ copy of a ]
                         [ kernel of b             planning         ]

A job has one kernel at a time, a copy engine one copy: its thread submits it, and waits for it; plans are made in one
more. Each job has a backend of its own, on which its trace lies placed, made in the job's thread: a CUDA context
belongs to a thread, so without `enter` the failure is the same each time.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpumem.execute.backend import Backend, Token
from gpumem.execute.views import Launch
from gpumem.jobs.environments.backend_job import Running, prepared
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event
from gpumem.jobs.scheduler.controller import GlobalController
from gpumem.jobs.scheduler.executor import TURN, WAIT, Errand, Executor, Plans, Walk
from gpumem.jobs.scheduler.swaps import Transfer
from gpumem.simulator.machine import Machine

PLANNING, ENGINES = -1, (-2, -3)  # threads beside those of jobs, which go by the jobs' places
State = Mapping[str, MutableMapping[int, NDArray[Any]]]
T = TypeVar("T")


class Threads:
    """The environment of the executors on real streams."""

    def __init__(
        self,
        machine: Machine,
        backend: Callable[[], Backend],
        launch: Callable[[Job], Launch | None],
        *,
        state: State,
        enter: Callable[[], object] | None,
    ) -> None:
        self.machine, self.backend, self.new_launch, self.state = machine, backend, launch, state
        self.enter = enter
        self.events: list[Event] = []
        self.origin, self.now = time.perf_counter_ns(), 0
        self.count = 0
        self.alarms: list[tuple[int, int, Callable[[], None]]] = []
        self.work: dict[int, SimpleQueue[Callable[[], Callable[[], None]] | None]] = {}  # queued work of each thread
        self.next = SimpleQueue[Callable[[], None]]()  # continuations that the loop runs next
        self.copies: list[deque[tuple[Executor, Transfer]]] = [deque(), deque()]  # of each engine: the first one runs
        self.errands: deque[Errand[None]] = deque()  # of the controller: the first one runs
        self.running: dict[int, Running] = {}
        self.walks: dict[int, Walk] = {}

    # The environment that executors and the controller see.

    def log(self, event: Event) -> None:
        """Note an event."""
        self.events.append(event)

    def at(self, ns: int, act: Callable[[], None]) -> None:
        """Call `act` at a time, ns."""
        self.count += 1
        heapq.heappush(self.alarms, (ns, self.count, act))

    def enqueue_time(self, executor: Executor, op: int) -> int:
        """Now: the host is a real one, whose time passes by itself."""
        return self.now

    def copy(self, executor: Executor, transfer: Transfer) -> None:
        """Queue a copy that is ready; the clock never stands still, so first come is first served."""
        engine = int(transfer.into and self.machine.duplex)
        self.copies[engine].append((executor, transfer))
        if len(self.copies[engine]) == 1:
            self.next.put(partial(self._start_copy, engine))

    def resume(self, executor: Executor) -> None:
        """Walk on when the loop comes to it."""
        self.next.put(partial(self._step, executor, 0))

    def soon(self, errand: Callable[[], Errand[None]]) -> None:
        """Run an errand behind those that have begun."""
        self.errands.append(errand())
        if len(self.errands) == 1:
            self.next.put(partial(self._go_on, None))

    def launch(self, executor: Executor) -> None:
        """Lay a job out, then begin its walk."""
        job = executor.job

        def lay_out() -> None:
            values = self.state.get(job.name, {})
            self.running[executor.place] = prepared(executor, self.backend(), self.new_launch(job), values)

        self.walks[executor.place] = executor.walk()
        self._aside(executor.place, lay_out, partial(self._step, executor))

    def change(self, executor: Executor) -> Iterator[int]:
        """Read the values that cross the boundary, lay the device out anew, write them back."""
        place = executor.place
        old = self.running[place]

        def anew() -> None:
            values = old.program.read()
            del self.running[place]  # its backend is the new one's from here on
            self.running[place] = prepared(executor, old.backend, old.launch, values)

        self._aside(place, anew, lambda _: self.resume(executor))
        yield WAIT

    def release(self, executor: Executor) -> Iterator[int]:
        """Copy the job's values into its `state`, free its device memory."""
        job, state = self.running[executor.place], self.state.get(executor.job.name, {})

        def over() -> None:
            values = job.program.read()
            for of, array in state.items():
                if of in values:
                    array.reshape(-1).view(np.uint8)[:] = values[of][: array.nbytes]
            del self.running[executor.place]
            job.backend.close()

        self._aside(executor.place, over, lambda _: self.resume(executor))
        yield WAIT

    # The loop, and what takes long.

    def run(self, jobs: Sequence[Job], controller: GlobalController) -> list[Event]:
        """Run the loop until all jobs have left; an error in a thread is raised here, when all threads have ended."""
        self.work = {whose: SimpleQueue() for whose in (*range(len(jobs)), PLANNING, *ENGINES)}
        threads = [Thread(target=self._thread, args=[queue]) for queue in self.work.values()]
        with ExitStack() as left:
            left.callback(self._close, threads)
            for thread in threads:
                thread.start()
            controller.expect(jobs)
            while len(controller.members) < len(jobs) or controller.queue or controller.admitted or controller.running:
                if controller.asked and not self.errands:
                    self.soon(controller.admit)
                self._following()()
        return self.events

    def _close(self, threads: Sequence[Thread]) -> None:
        """End all threads, close the backends that failures have left."""
        for queue in self.work.values():
            queue.put(None)
        for thread in threads:
            thread.join()
        with ExitStack() as left:
            for job in self.running.values():
                left.callback(job.backend.close)

    def _following(self) -> Callable[[], None]:
        """Wait for the next continuation; what the loop does until the next call happens at one instant."""
        pause = (self.alarms[0][0] - self._tick()) / 1e9 if self.alarms else None
        try:
            act = self.next.get(timeout=pause) if pause is None or pause > 0 else heapq.heappop(self.alarms)[2]
        except Empty:
            return self._following()
        self._tick()
        return act

    def _tick(self) -> int:
        self.now = time.perf_counter_ns() - self.origin
        return self.now

    def _aside(self, whose: int, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Have a thread do `work`, and call `then` in the loop with its result."""
        self.work[whose].put(lambda: partial(then, work()))

    def _thread(self, queue: SimpleQueue[Callable[[], Callable[[], None]] | None]) -> None:
        """Do what takes long, one task after another; an error is raised in the loop."""
        try:
            if self.enter is not None:
                self.enter()
            while (work := queue.get()) is not None:
                self.next.put(work())
        except BaseException as error:
            self.next.put(partial(self._fail, error))

    def _fail(self, error: BaseException) -> None:
        raise error

    def _step(self, executor: Executor, value: int | None) -> None:
        """Continue the walk of an executor."""
        try:
            what = self.walks[executor.place].send(value)  # type: ignore[arg-type]
        except StopIteration:
            return
        if what == TURN:
            self.resume(executor)
        elif what != WAIT:
            self._submit(executor.place, executor, what, partial(self._step, executor))

    def _submit(self, whose: int, executor: Executor, op: int, then: Callable[[int], None]) -> None:
        """Run one op to its end; continue with its ns."""
        job = self.running[executor.place]

        def ended(ran: tuple[Token, int]) -> None:
            token, ns = ran
            job.ended(op, token)
            then(ns)

        self._aside(whose, partial(job.run, op, executor.iteration), ended)

    def _start_copy(self, engine: int) -> None:
        """Start the first copy of an engine's queue."""
        executor, transfer = self.copies[engine][0]
        executor.began(transfer)
        if transfer.op >= 0:
            self._submit(ENGINES[engine], executor, transfer.op, lambda _: self._copied(engine))
        else:  # `change` moves the values itself
            self._copied(engine)

    def _copied(self, engine: int) -> None:
        executor, transfer = self.copies[engine][0]
        executor.swaps.ended(
            transfer
        )  # may enqueue others, which must not start beside this one: popped only afterwards
        self.copies[engine].popleft()
        if self.copies[engine]:
            self._start_copy(engine)

    def _go_on(self, plans: Plans | None) -> None:
        """Continue the first errand with the plans that it has waited for."""
        try:
            work = self.errands[0].send(plans)  # type: ignore[arg-type]
        except StopIteration:
            self.errands.popleft()
            if self.errands:
                self._go_on(None)
        else:
            self._aside(PLANNING, work, self._go_on)
