"""Random jobs on one simulated GPU: the oracle looks at every log, and a job alone keeps the clock of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.check import naive_clock
from gpumem.jobs import Instructions, Job, Outcome, Policy, instructions, simulate_jobs
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.swap.tasks import Scheduled
from gpumem.trace import COPY_IN, COPY_OUT, RECOMPUTE, Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.nets import dense
from tests.shared_jobs import Drawn, simulated_right, tight
from tests.strategies import any_plans, plans, steps, traces


def recomputations(trace: Trace) -> list[Plan]:
    """Every plan of one recomputation that makes the same value."""
    found = gaps(trace)
    legal = []
    for b, after, before in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist()):
        with suppress(ValueError):
            plan = Plan((Recompute(b, after, before, before),), trace.n)
            check.data_flow(trace, plan.apply(trace))
            legal.append(plan)
    return legal


def drawn(data: st.DataObject, trace: Trace) -> Scheduled:
    """Any plan with any delays."""
    again = recomputations(trace)
    few = st.sampled_from(again) | plans(trace) if again else plans(trace)
    plan = data.draw(few)
    delay = st.just(0) | st.integers(0, 80)
    delays = tuple((data.draw(delay), data.draw(delay)) for _ in plan.decisions)
    return Scheduled(plan, plan.apply(trace).peak_live_bytes, delays)


@given(st.data())
def test_any_plans_of_any_jobs(data: st.DataObject) -> None:
    jobs = []
    for k in range(data.draw(st.integers(1, 3))):
        arrival = data.draw(st.sampled_from([0, 0, 7, 60, 300]))
        leave = data.draw(st.none() | st.integers(arrival, arrival + 400))
        trace = data.draw(traces())
        jobs.append(Job(f"job{k}", trace, arrival, data.draw(st.integers(1, 5)), leave))
    machine = tiny_machine(duplex=data.draw(st.booleans()))
    planner = Drawn({id(j.trace): [drawn(data, j.trace) for _ in range(data.draw(st.integers(1, 3)))] for j in jobs})
    needs = [s.peak for few in planner.choice.values() for s in few]
    capacity = max(1, data.draw(st.integers(max(needs) // 2, sum(needs))))
    slowdown = data.draw(st.sampled_from([0.0, 1.0, 0.3]))
    drain = data.draw(st.booleans())
    ran = simulate_jobs(jobs, machine, capacity, Policy(planner, drain=drain, threshold=0.05), slowdown=slowdown)
    simulated_right(jobs, ran, machine, capacity, slowdown)
    for job, got in zip(jobs, ran.jobs):
        if got.launch >= 0:
            assert len(got.end) == job.iterations or (job.leave is not None and got.end[-1] >= job.leave)
        assert all(p <= b for p, b in zip(got.peak, got.budget))


@given(st.data())
def test_any_plans_that_make_values_again(data: st.DataObject) -> None:
    jobs = []
    for k in range(data.draw(st.integers(1, 2))):
        arrival = data.draw(st.sampled_from([0, 60]))
        jobs.append(Job(f"job{k}", data.draw(steps(max_layers=6)), arrival, data.draw(st.integers(1, 4))))
    machine, few = tiny_machine(), {}
    for job in jobs:
        some = [data.draw(any_plans(job.trace)) for _ in range(data.draw(st.integers(1, 2)))]
        few[id(job.trace)] = [Scheduled(plan, plan.apply(job.trace).peak_live_bytes) for plan in some]
    capacity = max(1, sum(max(s.peak for s in row) for row in few.values()))
    ran = simulate_jobs(jobs, machine, capacity, Policy(Drawn(few), threshold=0.02))
    simulated_right(jobs, ran, machine, capacity)
    assert [len(got.end) for got in ran.jobs] == [job.iterations for job in jobs]


def crowd(seed: int) -> tuple[list[Job], Machine, int, dict[str, Any], Drawn]:
    """Jobs that come, swap a lot, change their plans and go, on a device for one or for all of them."""
    rng = np.random.default_rng(seed)
    jobs = []
    for k in range(int(rng.integers(1, 4))):
        arrival = int(rng.choice([0, 0, 50, 400]))
        leave = arrival + int(rng.integers(0, 1000)) if rng.random() < 0.3 else None
        jobs.append(Job(f"job{k}", dense(rng), arrival, int(rng.integers(1, 6)), leave))
    planner = Drawn({id(job.trace): [tight(rng, job.trace) for _ in range(int(rng.integers(1, 4)))] for job in jobs})
    least = max(min(s.peak for s in few) for few in planner.choice.values())
    most = sum(max(s.peak for s in few) for few in planner.choice.values())
    capacity = max(int(rng.integers(least, most + 1)), 1)
    slowdown = float(rng.choice([0.0, 1.0, 0.3]))
    policy = Policy(planner, drain=bool(rng.random() < 0.3), threshold=float(rng.choice([0.02, 0.3])))
    return jobs, tiny_machine(duplex=bool(rng.random() < 0.6)), capacity, slowdown, policy


@given(st.integers(0, 2**32 - 1))
def test_a_crowd(seed: int) -> None:
    jobs, machine, capacity, slowdown, policy = crowd(seed)
    ran = simulate_jobs(jobs, machine, capacity, policy, slowdown=slowdown)
    simulated_right(jobs, ran, machine, capacity, slowdown)
    assert max((total for _, total in ran.budgets), default=0) <= capacity
    for job, got in zip(jobs, ran.jobs):
        mine = [e for e in ran.log if e.job == job.name]
        assert sum(got.passive) == sum(e.kind == "passive" for e in mine)
        assert [got.out, got.into] == [sum(e.size for e in mine if e.kind == way) for way in ("out", "in")]
        if got.launch >= 0:
            assert got.waits["admission"] == got.launch - job.arrival
            begun = [e.ns for e in mine if e.kind in ("start", "recompute")]
            ended = [e.ns for e in mine if e.kind in ("end", "recomputed")]
            stood = sum(got.waits.values()) - got.waits["admission"]
            assert got.leave - got.launch == sum(ended) - sum(begun) + stood
            assert [e.ns for e in mine if e.kind == "iteration"] == list(got.end)
            assert (np.array(got.peak) <= got.budget).all()
    planner, again = policy.planner, crowd(seed)[4].planner
    for trace, few in zip((job.trace for job in jobs), again.choice.values()):
        planner.choice[id(trace)], planner.asked[id(trace)] = few, 0
    assert simulate_jobs(jobs, machine, capacity, policy, slowdown=slowdown).log == ran.log


def as_the_host_waits(trace: Trace, machine: Machine) -> Trace:
    """The trace with what synchronous kernels add: copies wait for the kernel before them, the boundary for copies out.

    Tokens of no bytes say so. Copies become plain ops, as a copy has one buffer to read and one to write.
    """
    n, role = trace.n, trace.ops.role
    reads, writes = trace.ops.reads.tolist(), trace.ops.writes.tolist()
    kernels = [i for i in range(n) if role[i] not in (COPY_OUT, COPY_IN)]
    first, last = kernels[0], kernels[-1]
    start, end = [], []

    def token(i: int, readers: Sequence[int]) -> None:
        token = len(trace.buffers) + len(start)
        writes[i].append(token)
        for x in readers:
            reads[x % n].append(token)
        start.append(i)
        end.append(max(readers, default=i) + 1)

    for i, following in zip(kernels, [*kernels[1:], first + n]):
        token(i, range(i + 1, following))
    for i in np.flatnonzero(role == COPY_OUT).tolist():
        if i + 1 + (trace.buffers.end[reads[i][0]] - 1 - i) % n <= n:
            token(i, range(n, n + first + 1))
    assert last == kernels[-1]
    b, none = trace.buffers, np.zeros(len(start), np.bool_)
    stream = [0 if i in kernels else 1 + int(machine.duplex and role[i] == COPY_IN) for i in range(n)]
    return Trace(
        Buffers.make(
            np.concatenate([b.size, np.zeros(len(start), np.int64)]),
            np.concatenate([b.start, start]),
            np.concatenate([b.end, end]),
            persistent=np.concatenate([b.persistent, none]),
            host=np.concatenate([b.host, none]),
        ),
        Ops.make(reads, writes, stream=stream, streams=["gpu", "d2h", "h2d"], duration=machine.durations(trace)),
    )


def starts(ran: Outcome, todo: Instructions, iterations: int) -> np.ndarray:
    """When each op of the rewritten trace started, by the log."""
    found = np.full((iterations, len(todo.op)), -1)
    of_part = {(todo.role[i], p): i for i, p in enumerate(todo.part) if p >= 0}
    kernel = {(todo.role[i] == RECOMPUTE, op): i for i, op in enumerate(todo.op) if op >= 0}
    for e in ran.log:
        if e.kind in ("start", "recompute"):
            found[e.iteration, kernel[e.kind == "recompute", e.op]] = e.ns
        elif e.kind in ("out", "in"):
            found[e.iteration, of_part[COPY_IN if e.kind == "in" else COPY_OUT, e.part]] = e.ns
    return found


@given(st.integers(0, 2**32 - 1))
def test_a_lone_job_keeps_the_capacity_clock_where_its_copies_go_in_issue_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trace = dense(rng)
    plan = tight(rng, trace).plan
    machine = tiny_machine(duplex=bool(rng.random() < 0.5))
    job = Job("a", trace, iterations=4)
    todo = instructions(trace, plan, machine)
    ran = simulate_jobs([job], machine, max(todo.budget, 1), Policy(Drawn({id(trace): [Scheduled(plan, todo.budget)]})))
    (got,) = ran.jobs
    assert max(got.peak) == todo.budget >= ran.peak  # what is held for no time at all counts in the one only
    clock = as_the_host_waits(todo.trace, machine)
    want, _ = naive_clock(clock, machine.durations(clock), capacity=todo.budget, iterations=4)
    free, _ = naive_clock(clock, machine.durations(clock), iterations=4)
    have = starts(ran, todo, 4)
    copies = [i for i, role in enumerate(todo.role) if role in (COPY_OUT, COPY_IN)]
    engines = (
        [copies] if not machine.duplex else [[i for i in copies if todo.role[i] == r] for r in (COPY_OUT, COPY_IN)]
    )
    if all((np.diff(have[:, e].ravel()) >= 0).all() for e in engines):
        assert (have <= want).all()  # earlier where bytes that came back later in issue order serve who waits
        assert have.tolist() == want.tolist() or want.tolist() != free.tolist()
