"""Links, kernels at once and the hosts of jobs.

Kernels are launched in the host's time, which is no part of them, and no other job's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.check import naive_clock
from gpumem.io import bundled
from gpumem.jobs import Event, Job, Outcome, Policy, simulate_jobs, steady, unmanaged
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.times import Times
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.tasks import Scheduled, Task
from gpumem.swap.tensile.planner import schedule
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import objects, tiny_machine
from tests.jobs.logs import LOOSE, NOTHING, Given, fork, told
from tests.shared_jobs import Drawn, simulated_right, tight
from tests.strategies import tasks, traces

MS = 1_000_000
RTX = Machine.named("rtx2080ti")
HOSTS = st.sampled_from([0, 1, 7, 40, 1000])


@st.composite
def hosted_traces(draw: st.DrawFn, trace: st.SearchStrategy[Trace] | None = None) -> Trace:
    """Ops of up to three hosts; all, none or some of them block."""
    t = draw(traces() if trace is None else trace)
    some = st.lists(st.booleans(), min_size=t.n, max_size=t.n)
    host = draw(st.just([0] * t.n) | st.lists(st.integers(0, 2), min_size=t.n, max_size=t.n))
    ops = replace(t.ops, host=np.array(host, np.int64), hosts=("main", "backward", "third"))
    return replace(t, ops=ops).with_blocking(draw(st.booleans() | some))


def alone(trace: Trace, machine: Machine, iterations: int = 4) -> Outcome:
    return simulate_jobs(
        [Job("a", trace, iterations=iterations)], machine, max(trace.peak_live_bytes, 1), Policy(unmanaged)
    )


def starts(ran: Outcome) -> list[int]:
    """When kernels start."""
    return [e.ns for e in ran.log if e.kind == "start"]


def one_by_one(trace: Trace) -> Trace:
    """The trace on one stream: jobs run kernels one at a time."""
    return replace(trace, ops=replace(trace.ops, stream=np.zeros(trace.n, np.int64), streams=("compute",)))


def assert_as_in_the_clock(trace: Trace, machine: Machine) -> None:
    ran, serial = alone(trace, machine), one_by_one(trace)
    costs = machine.host_costs(serial)
    _, end = naive_clock(serial, machine.durations(serial), iterations=4, host_costs=costs)
    assert list(ran["a"].end) == end.max(axis=1).tolist()
    assert starts(ran) == (end - machine.durations(serial)).ravel().tolist()
    assert ran["a"].end[3] - ran["a"].end[2] == simulate(serial, machine, sync=True).makespan
    simulated_right([Job("a", trace, iterations=4)], ran, machine, max(trace.peak_live_bytes, 1))


@given(hosted_traces(), HOSTS)
def test_a_lone_job_takes_what_the_clock_says(trace: Trace, host_ns: int) -> None:
    assert_as_in_the_clock(trace, tiny_machine().with_(host_ns=host_ns))


@pytest.mark.parametrize("name", ["mlp3", "vgg16"])
@pytest.mark.parametrize("blocking", [True, False])
def test_recorded_jobs_take_what_the_clock_says(name: str, blocking: bool) -> None:
    trace = bundled(name).with_blocking(blocking)
    for host_ns in (0, 20_000, MS):
        ran, machine = alone(trace, RTX.with_(host_ns=host_ns)), RTX.with_(host_ns=host_ns)
        serial = one_by_one(trace)
        assert steady(ran)["a"].ns == simulate(serial, machine, sync=True).makespan
        want = 0 if host_ns == 0 else machine.durations(trace).sum() + trace.n * host_ns if blocking else None
        assert want is None or ran["a"].waits["host"] == (4 * trace.n * host_ns)


@pytest.mark.parametrize("blocking", [[True] * 3, [False] * 3, [True, False, False], [False, True, False]])
def test_a_rerun_is_handed_over_as_the_op_that_it_repeats(blocking: list[bool]) -> None:
    """`b` outlasts what the host needs; `a` is recomputed for `c`, and the host waits for it where it waits for `a`."""
    ops = Ops.make([[], [], [0]], [[0], [1], []], name=["a", "b", "c"], duration=[10, 20, 30], blocking=blocking)
    trace, machine = Trace(Buffers.make([8, 8], [0, 1], [3, 2]), ops), tiny_machine().with_(host_ns=5)
    plan = Plan.of(trace, [Recompute(0, 0, 2, 2)])
    again, jobs = plan.apply(trace), [Job("a", trace, iterations=3)]
    ran = simulate_jobs(jobs, machine, 16, Policy(Drawn({id(trace): [Scheduled(plan, again.peak_live_bytes, ())]})))
    line = simulate(again, machine)
    assert ran["a"].end[2] - ran["a"].end[1] == line.makespan
    first = [e.ns for e in ran.log if e.kind in ("start", "recompute")][:4]
    assert [ns - first[0] for ns in first] == line.start.tolist()
    simulated_right(jobs, ran, machine, 16)


@given(traces(), st.integers(0, 2**32 - 1))
def test_with_the_host_off_nothing_waits_for_it(trace: Trace, seed: int) -> None:
    """A copy's host time is the swap executor's, and no job's; ops that block and cost no host time delay nothing."""
    plan = tight(np.random.default_rng(seed), trace)
    logs = [
        simulate_jobs([Job("a", t, iterations=3)], machine, max(plan.peak, 1), Policy(Drawn({id(t): [plan]}))).log
        for t, machine in (
            (trace, tiny_machine()),
            (trace, tiny_machine().with_(copy_host_ns=50)),
            (trace.with_blocking(), tiny_machine()),
        )
    ]
    assert logs[0] == logs[1] == logs[2]


@given(st.data())
def test_crowds_with_hosts(data: st.DataObject) -> None:
    jobs, few = [], {}
    for k in range(data.draw(st.integers(1, 3))):
        trace = data.draw(hosted_traces())
        jobs.append(Job(f"job{k}", trace, data.draw(st.sampled_from([0, 0, 7, 300])), data.draw(st.integers(1, 4))))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        few[id(trace)] = [tight(rng, trace) for _ in range(data.draw(st.integers(1, 3)))]
    machine = tiny_machine(duplex=data.draw(st.booleans())).with_(host_ns=data.draw(HOSTS))
    needs = [s.peak for row in few.values() for s in row]
    capacity = max(1, data.draw(st.integers(max(needs) // 2, sum(needs))))
    slowdown = data.draw(st.sampled_from([0.0, 1.0, 0.3]))
    ran = simulate_jobs(jobs, machine, capacity, Policy(Drawn(few), threshold=0.05), slowdown=slowdown)
    simulated_right(jobs, ran, machine, capacity, slowdown)
    for job, got in zip(jobs, ran.jobs):
        mine = [e for e in ran.log if e.job == job.name]
        begun, ended = ([e.ns for e in mine if e.kind in of] for of in (("start", "recompute"), ("end", "recomputed")))
        if got.launch >= 0:
            stood = sum(got.waits.values()) - got.waits["admission"]
            assert got.leave - got.launch == sum(ended) - sum(begun) + stood


@pytest.mark.parametrize("blocking", [True, False])
def test_jobs_that_wait_for_their_hosts_do_not_slow_each_other(blocking: bool) -> None:
    """Kernels of 100 us, one a millisecond; the second job half a millisecond later, so that no two kernels meet."""
    trace = Trace(Buffers.make([8], [0], [6]), Ops.make([[]] * 6, [[0]] * 6, duration=[MS // 10] * 6))
    trace, machine = trace.with_blocking(blocking), RTX.with_(host_ns=MS)
    jobs = [Job("a", trace, iterations=3), Job("b", trace, arrival=MS // 2, iterations=3)]
    ran = simulate_jobs(jobs, machine, 2 * trace.peak_live_bytes, Policy(unmanaged), slowdown=1)
    simulated_right(jobs, ran, machine, 2 * trace.peak_live_bytes, slowdown=1)
    lone = alone(trace, machine, 3)["a"]
    for job in jobs:
        assert [end - job.arrival for end in ran[job.name].end] == list(lone.end)
    assert lone.end[0] == 6 * MS + (6 if blocking else 1) * MS // 10
    busy = simulate_jobs(jobs, RTX, 2 * trace.peak_live_bytes, Policy(unmanaged), slowdown=1)
    assert busy["b"].end[0] - MS // 2 > alone(trace, RTX)["a"].end[0]  # without a host they do


def test_what_is_measured_has_no_host_time_in_it() -> None:
    """So nothing is planned anew for it but once, after the first iteration."""
    asked = []

    def planner(tasks: list[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        asked.append([t.duration.tolist() for t in tasks])
        return unmanaged(tasks, machine, capacity)

    trace = bundled("mlp3").with_blocking()
    machine = RTX.with_(host_ns=MS)
    simulate_jobs([Job("a", trace, iterations=4)], machine, trace.peak_live_bytes, Policy(planner))
    assert asked == [[machine.durations(trace).tolist()]] * 2


@given(tasks(), st.data())
def test_planners_see_ops_one_by_one_as_hosts_hand_them_over(task: Task, data: st.DataObject) -> None:
    trace = data.draw(hosted_traces(st.just(task.trace)))
    machine = tiny_machine().with_(host_ns=data.draw(HOSTS))
    times, n = Times.serial(trace, machine, task.duration), trace.n
    serial = one_by_one(replace(trace, ops=replace(trace.ops, duration=task.duration)))
    start, end = naive_clock(serial, task.duration, iterations=4, host_costs=machine.host_costs(serial))
    since = times.start[:n] - start[3]
    assert (since == since[0]).all() and (times.end[:n] - end[3] == since[0]).all()
    assert times.period == end[3, -1] - end[2, -1]


@given(tasks(), st.data())
def test_tensile_plans_with_the_host_and_no_kernel_waits_for_a_copy(task: Task, data: st.DataObject) -> None:
    """What the host takes hides copies: a plan that costs no time, kept to the nanosecond by the run-time system."""
    blocking = task.trace.with_blocking(data.draw(st.booleans()))
    trace = replace(blocking, ops=replace(blocking.ops, duration=task.duration))
    machine = tiny_machine().with_(host_ns=data.draw(HOSTS))
    (found,) = schedule([Task(trace, task.duration)], machine, 1, recompute=False)
    job = Job("a", trace, iterations=4)
    ran = simulate_jobs([job], machine, max(trace.peak_live_bytes, 1), Policy(lambda *_: [found]))
    simulated_right([job], ran, machine, max(trace.peak_live_bytes, 1))
    assert starts(ran) == starts(alone(trace, machine))
    assert max(ran["a"].peak) == found.peak and not sum(ran["a"].passive)


def test_a_host_hides_copies() -> None:
    trace = bundled("vgg16").with_blocking()
    saved = []
    for host_ns in (0, MS // 10, MS):
        machine = RTX.with_(host_ns=host_ns)
        (found,) = schedule([Task(trace, machine.durations(trace))], machine, 1, recompute=False)
        run = partial(simulate_jobs, [Job("a", trace, iterations=3)], machine, trace.peak_live_bytes)
        assert starts(run(Policy(lambda *_, found=found: [found]))) == starts(run(Policy(unmanaged)))
        saved.append(1 - found.peak / trace.peak_live_bytes)
    assert saved[0] < saved[1] < saved[2]


@pytest.mark.parametrize("duplex", [True, False])
def test_two_jobs_on_one_link(duplex: bool) -> None:
    traces = {name: fork() for name in "ab"}
    planner = Given({trace: [(LOOSE, 0, 0)] for trace in traces.values()})
    jobs = [Job("a", traces["a"]), Job("b", traces["b"], arrival=20)]
    ran = simulate_jobs(jobs, tiny_machine(duplex=duplex), 34, Policy(planner))
    assert [line for line in told(ran) if " out" in line or " in" in line] == (
        [
            "10 a out 0/0",
            "17 a out_end 0/0",
            "30 b out 0/0",
            "30 a in 0/2",
            "34 a in_end 0/2",
            "37 b out_end 0/0",
            "50 b in 0/2",
            "54 b in_end 0/2",
        ]
        if duplex
        else [
            "10 a out 0/0",
            "17 a out_end 0/0",
            "30 a in 0/2",  # both are ready at 30: the first job goes first
            "34 a in_end 0/2",
            "34 b out 0/0",
            "41 b out_end 0/0",
            "50 b in 0/2",
            "54 b in_end 0/2",
        ]
    )


def test_first_come_first_served() -> None:
    """Of the copy-ins that wait while the link is busy, the one that was ready first goes first, whatever its job."""
    traces = {name: fork() for name in "abc"}
    planner = Given({trace: [(LOOSE, 0, 0)] for trace in traces.values()})
    jobs = [Job("a", traces["a"], arrival=2), Job("b", traces["b"], arrival=1), Job("c", traces["c"])]
    ran = simulate_jobs(jobs, tiny_machine(), 51, Policy(planner))
    assert [line for line in told(ran) if line.endswith(" out 0/0")] == ["10 c out 0/0", "17 b out 0/0", "24 a out 0/0"]


@pytest.mark.parametrize("slowdown, ends", [(0, [10, 14]), (1, [16, 20]), (0.5, [13, 17]), (0.3, [12, 16])])
def test_kernels_at_once_slow_each_other_down(slowdown: float, ends: list[int]) -> None:
    """a: 4 ns alone, 6 together; b: 6 together, 4 alone. Together 1 ns of work takes 1 + slowdown.

    With 0.3: a needs 7.8 ns more and ends at 12; by then b has done 8 / 1.3 of its 10 and needs 3.8.
    """
    traces = [Trace(Buffers.make([1], [0], [1]), Ops.make([[]], [[0]], duration=[10])) for _ in "ab"]
    planner = Given({trace: [(NOTHING, 0, 0)] for trace in traces})
    jobs = [Job("a", traces[0]), Job("b", traces[1], arrival=4)]
    ran = simulate_jobs(jobs, tiny_machine(), 2, Policy(planner), slowdown=slowdown)
    assert [job.end[0] for job in ran.jobs] == ends


def test_at_one_instant_the_first_job_goes_first() -> None:
    traces = [fork(), fork()]
    planner = Given({trace: [(NOTHING, 0, 0)] for trace in traces})
    ran = simulate_jobs([Job("b", traces[0]), Job("a", traces[1])], tiny_machine(), 34, Policy(planner))
    assert [line for line in told(ran) if " start" in line][:4] == [
        "0 b start 0",
        "0 a start 0",
        "10 b start 1",
        "10 a start 1",
    ]


# the oracle

A = Trace(  # two hosts; op 1 blocks, and the last
    Buffers.make([8], [0], [4], persistent=[True]),
    Ops.make([[0]] * 4, [[]] * 4, duration=[5] * 4, host=[0, 0, 1, 0], hosts=["main", "backward"],
             blocking=[False, True, False, False]),
)  # fmt: skip
RIGHT = [  # 10 ns an op: when it starts, and why then
    10, 20, 25, 35,  # main: 0 + 10, 10 + 10; op 1 ends; main: 25 + 10
    50, 60, 65, 75,  # main: 40 + 10, 50 + 10; op 1 ends; main: 65 + 10
]  # fmt: skip


def log_of(starts: list[int], arrival: int = 0, job: str = "a") -> list[Event]:
    log = [Event(arrival, job, "arrive"), Event(arrival, job, "launch", size=8)]
    log += [Event(arrival, job, "hold", 0, -1, 0, 8, 0)]
    for k, ns in enumerate(starts):
        log += [Event(ns, job, "start", k // 4, k % 4), Event(ns + 5, job, "end", k // 4, k % 4)]
        log += [Event(ns + 5, job, "iteration", k // 4)] if k % 4 == 3 else []
    return [*log, Event(starts[-1] + 5, job, "free", 1, -1, 0, 8, 0), Event(starts[-1] + 5, job, "leave")]


def judge(log: list[Event], cost: int = 10) -> None:
    host_costs = {"a": np.full(4, cost)}
    check.jobs(log, {"a": A}, tiny_machine(), 8, {"a": A.ops.duration}, host_costs=host_costs)


def test_a_right_log_of_two_hosts() -> None:
    judge(log_of(RIGHT))
    judge(log_of([ns + 7 for ns in RIGHT], arrival=7))
    (job,) = simulate_jobs([Job("a", A, iterations=2)], tiny_machine().with_(host_ns=10), 8).jobs
    assert job.end == (40, 80) and job.waits["host"] == 10 + 5 + 5 + 10 + 5 + 5


@pytest.mark.parametrize(
    "shift, why",
    [
        ({0: -1}, "op 0 starts, but its host enqueues it at 10 ns"),
        ({3: -5, 4: -5, 5: -5, 6: -5, 7: -5}, "op 3 starts, but its host enqueues it at 35 ns"),  # forgot to wait
        ({4: -10, 5: -10, 6: -10, 7: -10}, "op 0 starts, but its host enqueues it at 50 ns"),  # nor at the boundary
        (
            dict.fromkeys(range(1, 8), 1),
            "op 1 starts, but its host has enqueued it at 20 ns, and nothing happens now",
        ),
        (dict.fromkeys(range(8), 10), "op 0 starts, but its host has enqueued it at 10 ns"),  # another job's host
    ],
)
def test_a_host_forgotten_or_shared_shows(shift: dict[int, int], why: str) -> None:
    starts = [ns + shift.get(k, 0) for k, ns in enumerate(RIGHT)]
    with objects("host launch", why):
        judge(log_of(starts))


def test_host_time_in_a_kernel_shows() -> None:
    log = log_of(RIGHT)
    k = next(k for k, e in enumerate(log) if (e.kind, e.op) == ("start", 3))
    log[k] = replace(log[k], ns=30)  # instead of 35
    with objects("duration", "op 3 did work of 10 ns, it takes 5"):
        judge(log, cost=5)
    with pytest.raises(ValueError, match=r"host_costs: 3 costs for the 4 ops of job 'a'"):
        check.jobs(log_of(RIGHT), {"a": A}, tiny_machine(), 8, {"a": A.ops.duration}, host_costs={"a": np.full(3, 1)})
