"""Jobs on real streams: the same executors and controller, with a thread for each part of TENSILE's system (figure 3).

    executor         one a job: submits a kernel, waits for it, walks on
    swap scheduler   holds copies back until they are due (and lets jobs arrive)
    swap executor    one a copy engine: submits a copy, waits for it, takes the next
    controller       plans beside all that

Each job has a backend of its own, on which its trace lies placed. Bookkeeping goes on under one lock; kernels and
copies, the starting of them too, planning and the taking and giving back of memory do not hold it.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from functools import partial
from threading import Condition, Lock, Thread
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpumem.execute.backend import Backend
from gpumem.execute.views import Launch
from gpumem.jobs.environments.backend_job import Running, prepared
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event
from gpumem.jobs.scheduler.controller import GlobalController
from gpumem.jobs.scheduler.executor import TURN, WAIT, Executor
from gpumem.jobs.scheduler.swaps import Transfer
from gpumem.simulator.machine import Machine

State = Mapping[str, MutableMapping[int, NDArray[Any]]]
T = TypeVar("T")


class _Stopped(Exception):
    """The run is over."""


class Threads:
    """The world of the executors."""

    def __init__(
        self,
        machine: Machine,
        backend: Callable[[], Backend],
        launch: Callable[[Job], Launch | None],
        state: State,
        enter: Callable[[], object] | None,
    ) -> None:
        self.machine, self.backend, self.new_launch, self.state = machine, backend, launch, state
        self.enter = enter
        self.events: list[Event] = []
        self.lock = Condition(Lock())
        self.over = False
        self.error: BaseException | None = None
        self.origin, self.now = time.perf_counter_ns(), 0
        self.count = 0
        self.alarms: list[tuple[int, int, Callable[[], None]]] = []
        self.tasks: list[Callable[[], None]] = []
        self.copies: list[deque[tuple[Executor, Transfer]]] = [deque(), deque()]
        self.running: dict[int, Running] = {}
        self.threads: list[Thread] = []

    # the world that executors and the controller see; they hold the lock

    def tick(self) -> int:
        """Look at the clock: what one thread does while it holds the lock happens at one instant."""
        self.now = time.perf_counter_ns() - self.origin
        return self.now

    def log(self, event: Event) -> None:
        """Note an event."""
        self.events.append(event)

    def at(self, ns: int, act: Callable[[], None]) -> None:
        """Do something at a time."""
        self.count += 1
        heapq.heappush(self.alarms, (ns, self.count, act))
        self.lock.notify_all()

    def handed_over(self, executor: Executor, op: int) -> int:
        """Now: the host is a real one, and takes what time it takes."""
        return self.now

    def copy(self, executor: Executor, transfer: Transfer) -> None:
        """Queue a copy that is ready; the clock never stands still, so first come is first served."""
        self.copies[transfer.into and self.machine.duplex].append((executor, transfer))
        self.lock.notify_all()

    def resume(self, executor: Executor) -> None:
        """Wake the executor's thread."""
        self.lock.notify_all()

    def soon(self, act: Callable[[], None]) -> None:
        """Leave it to the controller's thread."""
        self.tasks.append(act)
        self.lock.notify_all()

    def aside(self, work: Callable[[], T]) -> T:
        """Do it without the lock."""
        self.lock.release()
        try:
            return work()
        finally:
            self.lock.acquire()
            self.tick()

    def launch(self, executor: Executor) -> None:
        """Start the thread of an executor."""
        self._start(partial(self._execute, executor))

    def change(self, executor: Executor) -> None:
        """Read what crosses the boundary, lay the device out anew, write it back."""
        at = executor.place
        mine = self.running[at]

        def anew() -> Running:
            values = mine.program.read()
            del self.running[at]  # its backend is the new one's from here on
            return prepared(executor, mine.backend, mine.launch, values)

        self.running[at] = self.aside(anew)

    def release(self, executor: Executor) -> None:
        """Hand the state over, give the device's memory back."""
        mine, state = self.running[executor.place], self.state.get(executor.job.name, {})

        def over() -> None:
            values = mine.program.read()
            for of, array in state.items():
                if of in values:
                    array.reshape(-1).view(np.uint8)[:] = values[of][: array.nbytes]
            del self.running[executor.place]
            mine.backend.close()

        self.aside(over)

    # threads

    def run(self, jobs: Sequence[Job], controller: GlobalController) -> list[Event]:
        """Start all threads, and wait until all jobs are gone."""
        try:
            with self.lock:
                controller.expect(jobs)
                self._start(self._ring)
                self._start(partial(self._control, controller))
                for queue in self.copies:
                    self._start(partial(self._copy, queue))
                self.lock.wait_for(lambda: self.error is not None or self._done(jobs, controller))
        finally:
            self._end()
        if self.error is not None:
            raise self.error
        return self.events

    def _end(self) -> None:
        """End all threads, give back what failures have left."""
        with self.lock:
            self.over = True
            self.lock.notify_all()
        for thread in self.threads:
            thread.join()
        with ExitStack() as left:
            for mine in self.running.values():
                left.callback(mine.backend.close)

    def _done(self, jobs: Sequence[Job], controller: GlobalController) -> bool:
        inside = controller.queue or controller.admitted or controller.running
        return len(controller.members) == len(jobs) and not inside

    def _start(self, body: Callable[[], None]) -> None:
        thread = Thread(target=self._guarded, args=(body,))
        self.threads.append(thread)
        thread.start()

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            if self.enter is not None:
                self.enter()
            with self.lock:
                self.tick()
                body()
        except _Stopped:
            pass
        except BaseException as error:
            with self.lock:
                self.error = self.error or error
        with self.lock:
            self.lock.notify_all()

    def _until(self, there: Callable[[], object], timeout: float | None = None) -> None:
        self.lock.wait_for(lambda: self.over or there(), timeout)
        self.tick()
        if self.over:
            raise _Stopped

    def _ring(self) -> None:
        """The swap scheduler's clock: whatever is to be done at a time."""
        while True:
            while self.alarms and self.alarms[0][0] <= self.tick():
                heapq.heappop(self.alarms)[2]()
                self.lock.notify_all()
            first = self.alarms[0] if self.alarms else None
            pause = None if first is None else max(first[0] - self.now, 0) / 1e9
            self._until(lambda: self.alarms and self.alarms[0] is not first, pause)  # noqa: B023

    def _control(self, controller: GlobalController) -> None:
        """The controller's thread: plan, admit."""
        while True:
            self._until(lambda: self.tasks or controller.asked)
            while self.tasks:
                self.tasks.pop(0)()
            controller.admit()
            self.lock.notify_all()

    def _copy(self, queue: deque[tuple[Executor, Transfer]]) -> None:
        """A swap executor: one copy after another."""
        while True:
            self._until(lambda: queue)
            executor, transfer = queue.popleft()
            executor.began(transfer)
            if transfer.op >= 0:  # a change of plan carries its values over by itself
                self._submit(executor, transfer.op)
            executor.swaps.ended(transfer)

    def _execute(self, executor: Executor) -> None:
        """The thread of one executor."""
        job = executor.job
        values = self.state.get(job.name, {})
        self.running[executor.place] = self.aside(
            lambda: prepared(executor, self.backend(), self.new_launch(job), values)
        )
        walk = executor.walk()
        what = next(walk)
        try:
            while True:
                self._until(lambda: what != WAIT or not executor.missing)  # noqa: B023
                what = walk.send(0 if what in (WAIT, TURN) else self._submit(executor, what))
        except StopIteration:
            return

    def _submit(self, executor: Executor, op: int) -> int:
        """Run one op to its end, without the lock; return its ns."""
        mine = self.running[executor.place]
        token, ns = self.aside(partial(mine.run, op, executor.iteration))
        mine.ended(op, token)
        return ns
