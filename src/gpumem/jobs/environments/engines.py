"""Simulated hardware: the copy engines and multiprocessors that all jobs share, and each job's own host threads."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from gpumem.jobs.scheduler.executor import Executor
from gpumem.jobs.scheduler.swaps import Transfer
from gpumem.simulator.host_threads import Hosts
from gpumem.simulator.machine import Machine
from gpumem.simulator.sharing import rates
from gpumem.trace import Trace


class Links:
    """The copy engines (the swap executor): one each way, or one for both; first come, first served.

    A transfer arrives when it is ready. Of those that arrive at one instant the job's place decides, then issue order.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.queues: list[list[tuple[int, int, int, int, int, Executor, Transfer]]] = [[], []]
        self.busy = [False, False]
        self.copy_ns = cache(self._copy_ns)
        self.count = 0

    def _engine(self, transfer: Transfer) -> int:
        return int(transfer.into and self.machine.duplex)

    def add(self, now: int, executor: Executor, transfer: Transfer) -> None:
        """Queue a transfer that is ready."""
        transfer_ = transfer
        self.count += 1
        item = (now, executor.place, transfer_.iteration, transfer_.op, self.count, executor, transfer_)
        heapq.heappush(self.queues[self._engine(transfer_)], item)

    def start(self) -> Iterable[tuple[Executor, Transfer, int]]:
        """Let idle engines take up what is first in their queues; yield how many ns that takes."""
        for engine, queue in enumerate(self.queues):
            if queue and not self.busy[engine]:
                self.busy[engine] = True
                *_, executor, transfer = heapq.heappop(queue)
                yield executor, transfer, self.copy_ns(transfer.into, transfer.size)

    def done(self, transfer: Transfer) -> None:
        """Free the engine of a transfer that has ended."""
        self.busy[self._engine(transfer)] = False

    def _copy_ns(self, into: bool, size: int) -> int:
        return int((self.machine.into if into else self.machine.out).copy_ns(np.array([size]))[0])


@dataclass(slots=True, eq=False)
class Kernel:
    """A running kernel: work left, its start, and its end if no other starts or ends before (-1: not known), ns."""

    executor: Executor
    op: int
    left: int
    start: int
    end: int = -1


class Kernels:
    """The multiprocessors, shared by the kernels that run at once: each progresses as `sharing.rates` says.

    A kernel ends at the first whole nanosecond at which its work is done.
    """

    def __init__(self, slowdown: float, jobs: int) -> None:
        self.unit, self.rate = rates(slowdown, jobs)
        self.running: dict[int, Kernel] = {}
        self.since = 0

    def _progress(self, now: int) -> None:
        if now > self.since:
            done = (now - self.since) * self.rate[len(self.running)]
            for kernel in self.running.values():
                kernel.left -= done
            self.since = now

    def start(self, now: int, executor: Executor, op: int, ns: int) -> None:
        """Start the kernel of an op, which takes `ns` alone."""
        self._progress(now)
        self.running[executor.place] = Kernel(executor, op, ns * self.unit, now)

    def done(self, now: int, kernel: Kernel) -> None:
        """Remove a kernel that has ended."""
        self._progress(now)
        del self.running[kernel.executor.place]

    def changed(self) -> Iterable[Kernel]:
        """Recompute when each kernel ends; yield those whose end has changed."""
        rate = self.rate[len(self.running)]
        for kernel in self.running.values():
            end = self.since - (-kernel.left // rate)
            if end != kernel.end:
                kernel.end = end
                yield kernel


class JobHost:
    """The host threads of one job, which begin when it is launched and enqueue its kernels (`simulator`)."""

    def __init__(self, machine: Machine, trace: Trace, now: int) -> None:
        self.machine, self.last = machine, now
        self.clock = [now] * len(trace.ops.hosts)
        self.follow(trace)

    def follow(self, trace: Trace) -> None:
        """Enqueue the ops of the job's trace as rewritten by a new plan; the last one blocks."""
        columns = Hosts.make(trace, self.machine, True)
        self.cost, self.host, self.blocks = columns.cost.tolist(), trace.ops.host.tolist(), columns.blocks.tolist()

    def enqueue(self, op: int) -> int:
        """Enqueue the next op to run; return when that is done, ns."""
        host = self.host[op]
        self.last = self.clock[host] = max(self.clock[host] + self.cost[op], self.last)
        return self.last

    def ended(self, op: int, now: int) -> None:
        """Let the host continue, if it has waited for the op."""
        if self.blocks[op]:
            self.clock[self.host[op]] = now
