"""Jobs on one simulated GPU: a discrete-event clock under the executors."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from gpumem.base.arguments import strict
from gpumem.jobs.actual_times import CERTAIN, ActualTimes
from gpumem.jobs.environments.engines import JobHost, Kernel, Kernels, Links
from gpumem.jobs.job import Job
from gpumem.jobs.outcome import Event, Outcome
from gpumem.jobs.policy import TENSILE, Policy
from gpumem.jobs.scheduler.controller import GlobalController
from gpumem.jobs.scheduler.executor import TURN, WAIT, Errand, Executor, Walk
from gpumem.jobs.scheduler.session import run_session
from gpumem.jobs.scheduler.swaps import Transfer
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import hosted
from gpumem.simulator.uncertainty import Uncertainty

# Of one round (an instant may have several): what ends, then what is decided, freed, held and started. So what is
# freed and held in one round never counts twice: `check.jobs` counts in the order of the log.
_ORDER = (
    ("end", "recomputed", "out_end", "in_end"),
    ("arrive", "wait", "refused", "replan", "launch", "adopt"),
    ("free",),
    ("hold",),
    ("passive",),
    ("start", "recompute", "out", "in"),
    ("iteration", "leave"),
)
_RANK = {kind: rank for rank, kinds in enumerate(_ORDER) for kind in kinds}


@strict
def simulate_jobs(
    jobs: Sequence[Job],
    machine: Machine,
    capacity: int,
    policy: Policy = TENSILE,
    *,
    slowdown: float = 0.0,
    uncertainty: Uncertainty = CERTAIN,
) -> Outcome:
    """Run jobs that arrive, swap and leave on one simulated GPU, as TENSILE's run-time system does.

    Parameters
    ----------
    jobs : sequence of Job
        Ties go to the earlier one.
    machine : Machine
        Gives the ns of kernels and copies, and one copy engine or two.
    capacity : int
        Bytes of device memory.
    policy : Policy
        Who plans for all of them, and when plans are made anew; by default TENSILE. Without an `estimate`, times are
        the machine's roofline, slowed down by `slowdown`.
    slowdown : float
        Of `k` kernels that run at once each progresses at the rate `1 / (1 + slowdown (k - 1))`: 0 if they do not
        disturb each other, 1 if they share the throughput.
    uncertainty : Uncertainty
        How far kernels and copies are off the machine's times. Plans do not know: they rely on estimates, which are
        corrected by measurements.

    Returns
    -------
    Outcome
        Deterministic: the same input gives the same log.

    Raises
    ------
    ValueError
        Two jobs of one name, a capacity below 1, numbers out of range, plans that do not fit their traces.

    Notes
    -----
    About 20 us an event. No deadlock: the sum of the budgets never exceeds the capacity, so running jobs do not wait
    for each other's memory, and within a job memory is reserved in issue order (see `JobMemory`). A kernel waits for
    copies that were issued before it, and these for memory, for copies issued before them, and for a link that serves
    whoever is ready. Planning runs beside: it takes no time here, and plans are in force from the next boundary on.

    Where the host is on (see `gpumem.simulator.simulate`), each job has host threads of its own, which enqueue its
    kernels. Host time delays a kernel and is no part of it: it takes nothing from other jobs, and no copy waits for
    it, as the swap executor enqueues the copies of all jobs. No copy blocks, whatever a plan says.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("mlp3"), Machine.named("rtx2080ti")
    >>> two = [Job("a", trace, iterations=3), Job("b", trace, iterations=3)]
    >>> ran = simulate_jobs(two, machine, 2 * trace.peak_live_bytes)
    >>> [len(job.end) for job in ran.jobs], ran.peak <= 2 * trace.peak_live_bytes
    ([3, 3], True)

    References
    ----------
    Zhang et al., TENSILE, sections 3.2 and 4.5.
    """
    clock = _Clock(jobs, machine, slowdown, uncertainty)
    return run_session(jobs, GlobalController(machine, capacity, clock, policy, slowdown=slowdown), clock)


class _Clock:
    """The simulated environment of the executors: time, copy engines, kernels.

    At one instant there are rounds: what is due happens, then every executor that can go on does. When none can, the
    copy engines start what is ready by now.
    """

    def __init__(self, jobs: Sequence[Job], machine: Machine, slowdown: float, uncertainty: Uncertainty) -> None:
        self.now = 0
        self.events: list[Event] = []
        self.round: list[Event] = []
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.machine, self.links = machine, Links(machine)
        self.actual = ActualTimes(jobs, machine, uncertainty)
        self.kernels = Kernels(slowdown, len(jobs))
        self.walks: dict[int, tuple[Executor, Walk]] = {}
        self.hosts: dict[int, JobHost] = {}  # by place, of the jobs whose host threads are simulated
        self.next: dict[int, int | None] = {}  # place of an executor that can go on -> what to send

    def at(self, ns: int, act: Callable[[], None]) -> None:
        """Call `act` at a time, ns."""
        self.count += 1
        heapq.heappush(self.heap, (ns, self.count, act))

    def log(self, event: Event) -> None:
        """Note an event."""
        self.round.append(event)

    def enqueue_time(self, executor: Executor, op: int) -> int:
        """Now, unless the job's host threads are simulated."""
        host = self.hosts.get(executor.place)
        return self.now if host is None else host.enqueue(op)

    def copy(self, executor: Executor, transfer: Transfer) -> None:
        """Queue a copy that is ready."""
        self.links.add(self.now, executor, transfer)

    def resume(self, executor: Executor) -> None:
        """Continue an executor in this round or the next."""
        self.next[executor.place] = 0

    def launch(self, executor: Executor) -> None:
        """Begin to walk a job."""
        if hosted(executor.job.trace, self.machine):
            self.hosts[executor.place] = JobHost(self.machine, executor.todo.trace, self.now)
        self.walks[executor.place] = executor, executor.walk()
        self.next[executor.place] = None

    def change(self, executor: Executor) -> tuple[()]:
        """Move no bytes; the job's host threads, if it has any, go by the new plan from now on."""
        if executor.place in self.hosts:
            self.hosts[executor.place].follow(executor.todo.trace)
        return ()

    def release(self, executor: Executor) -> tuple[()]:
        """No bytes to free."""
        return ()

    def soon(self, errand: Callable[[], Errand[None]]) -> None:
        """Run an errand at once: planning takes no time here."""
        running = errand()
        with suppress(StopIteration):
            work = next(running)
            while True:
                work = running.send(work())

    def run(self, jobs: Sequence[Job], controller: GlobalController) -> list[Event]:
        """Go from instant to instant until no event is left."""
        controller.expect(jobs)
        while self.heap:
            self.now = self.heap[0][0]
            while self._round(controller) or self._start_copies():
                self._flush()
            self._flush()
        return self.events

    def _flush(self) -> None:
        """End a round: its events go to the log in the order of their kinds."""
        self.round.sort(key=lambda event: _RANK[event.kind])
        self.events += self.round
        self.round.clear()

    def _round(self, controller: GlobalController) -> bool:
        """Do what is due now; return whether anything was."""
        due = bool(self.heap) and self.heap[0][0] == self.now
        while self.heap and self.heap[0][0] == self.now:
            heapq.heappop(self.heap)[2]()
        if controller.asked:
            self.soon(controller.admit)
        able, self.next = self.next, {}
        for place in sorted(able):
            self._step(place, able[place])
        for kernel in self.kernels.changed():
            self.at(kernel.end, partial(self._kernel_done, kernel, kernel.end))
        return due or bool(able)

    def _step(self, place: int, value: int | None) -> None:
        """Continue the walk of one executor."""
        executor, walk = self.walks[place]
        try:
            what = next(walk) if value is None else walk.send(value)
        except StopIteration:
            del self.walks[place]
            return
        if what == TURN:
            self.next[place] = 0
        elif what != WAIT:
            ns = self.actual.kernel(place, executor.iteration, executor.todo.op[what])
            self.kernels.start(self.now, executor, what, ns)

    def _kernel_done(self, kernel: Kernel, end: int) -> None:
        """End a kernel, unless its end has moved."""
        if kernel.end == end:
            kernel.end = -1
            self.kernels.done(self.now, kernel)
            place = kernel.executor.place
            if place in self.hosts:
                self.hosts[place].ended(kernel.op, self.now)
            self.next[place] = self.now - kernel.start

    def _start_copies(self) -> bool:
        """Start the copies that are ready on engines that are idle; return whether one was started."""
        started = list(self.links.start())
        for executor, transfer, ns in started:
            executor.began(transfer)
            self.at(self.now + self.actual.copy(executor.place, ns), partial(self._copied, executor, transfer))
        return bool(started)

    def _copied(self, executor: Executor, transfer: Transfer) -> None:
        self.links.done(transfer)
        executor.swaps.ended(transfer)
