"""Random schedules of jobs, and the oracle over what real runs log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpumem import check
from gpumem.check.event_order import order
from gpumem.check.event_values import values
from gpumem.check.jobs import memory
from gpumem.jobs import Job, Outcome
from gpumem.simulator.machine import Machine
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.plan.gaps import gaps
from gpumem.swap.tasks import Scheduled, Task
from gpumem.trace import I64, Trace


class Drawn:
    """A memory scheduler that gives each trace one of a few plans after another."""

    def __init__(self, choice: dict[int, list[Scheduled]]) -> None:
        self.choice = choice
        self.asked = dict.fromkeys(choice, 0)

    def __call__(self, tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        found = []
        for task in tasks:
            key = id(task.trace)
            found.append(self.choice[key][self.asked[key] % len(self.choice[key])])
            self.asked[key] += 1
        return found


def tight(rng: np.random.Generator, trace: Trace) -> Scheduled:
    """Most gaps swapped, released at once as often as not, with delays as often as not."""
    found, swaps = gaps(trace), []
    for b, after, before in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist()):
        if rng.random() < 0.7:
            out = after if rng.random() < 0.7 else int(rng.integers(after, before))
            release = out + 1 if rng.random() < 0.7 else int(rng.integers(out + 1, before + 1))
            prefetch = int(rng.integers(release, before + 1))
            swaps.append(Swap(b, after, before, release, prefetch, out))
    plan = Plan(tuple(swaps[k] for k in rng.permutation(len(swaps))), trace.n)
    delays = tuple((int(x), int(y)) for x, y in rng.choice([0, 0, 5, 40, 200], (len(swaps), 2)))
    return Scheduled(plan, plan.apply(trace).peak_live_bytes, delays)


def simulated_right(
    jobs: Sequence[Job],
    ran: Outcome,
    machine: Machine,
    capacity: int,
    slowdown: float = 0.0,
    uncertainty: Uncertainty | None = None,
) -> None:
    """Let every oracle look at the log of a simulated run."""
    traces = {job.name: job.trace for job in jobs}
    ns = {name: machine.durations(trace) for name, trace in traces.items()}
    host_costs = {name: machine.host_costs(trace) for name, trace in traces.items()}
    copies = None
    if uncertainty is not None:
        for place, job in enumerate(jobs):
            n, lasting = job.trace.n, ns[job.name] * uncertainty.lasting(job.trace.n, place)
            passing = [uncertainty.passing(n, place, k) for k in range(job.iterations)]
            ns[job.name] = np.rint(lasting * np.array(passing)).astype(np.int64)
        copies = {job.name: _copies(ran, job, place, machine, uncertainty) for place, job in enumerate(jobs)}
    check.jobs(ran.log, traces, machine, capacity, ns, slowdown=slowdown, host_costs=host_costs, copies=copies)


def _copies(ran: Outcome, job: Job, place: int, machine: Machine, uncertainty: Uncertainty) -> I64:
    """How long each copy of a job takes, in the order in which they start."""
    found = []
    for e in ran.log:
        if e.job == job.name and e.kind in ("in", "out"):
            ns = (machine.into if e.kind == "in" else machine.out).copy_ns(np.array([e.size]))
            found += uncertainty.copies(ns, machine, place, len(found) + 1).tolist()
    return np.array(found, np.int64)


def judged(jobs: list[Job], ran: Outcome, capacity: int) -> None:
    """Let those that need no times look at the log of a real run."""
    traces = {job.name: job.trace for job in jobs}
    order(ran.log, traces)
    memory(ran.log, traces, capacity)
    values(ran.log, traces)


def recorded(trace: Trace, first: int) -> Trace:
    """The trace as if it were cut from a file, with ids of its own."""
    b, ops = trace.buffers, trace.ops
    return replace(trace, buffers=replace(b, of=b.of[::-1] + first), ops=replace(ops, of=ops.of + 2 * first))
