"""Event logs of jobs: memory, links and kernels broken by hand; simulated logs, of which no event can be spared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.jobs import Job, Policy, simulate_jobs
from gpumem.simulator.machine import Link, Machine
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.tasks import Scheduled, Task
from gpumem.trace import Buffers, Ops, Trace
from tests.check.logs import AGAIN, LOG, TRACES, B, Cases, Log, broken, judge, log_of, refused
from tests.conftest import objects, tiny_machine
from tests.strategies import plans, traces

Planner = Callable[[Sequence[Task], Machine, int], list[Scheduled]]


def test_a_right_log() -> None:
    judge(log_of(LOG, TRACES))


MEMORY: Cases = [
    ("capacity", r"adopt.: the budgets are 24 bytes, the capacity is 23", {"33 a adopt size=17": "33 a adopt size=18"}),
    ("budget", r"5 ns.*hold.: the job holds 16 bytes, its budget is 15", {"0 a launch size=16": "0 a launch size=15"}),
    ("budget", r"passive.: the job holds 8 bytes, its budget is 7",
     {"33 a adopt size=17": "33 a adopt size=7", "33 a hold buffer=0": "", "33 a free buffer=0": ""}),
    ("held", r"free.: part 1 of buffer 1 is not held", {"12 a free buffer=1 part=1": "... | ..."}),
    ("held", r"free.: part 2 of buffer 1 is not held", {"12 a free buffer=1 part=1": "12 a free buffer=1 part=2"}),
    ("held", r"free.: part 1 of buffer 0 is not held", {"12 a free buffer=1 part=1": "12 a free buffer=0 part=1"}),
    ("held", r"hold.: part 0 is held already", {"5 a hold buffer=0": "... | ..."}),
    ("held", r"hold.: part 1 is held already",
     {"12 a free buffer=1 part=1": "", "12 a hold buffer=1 part=3": "12 a hold buffer=1 part=1"}),
    ("event", r"buffer 0 has 8 bytes, not 7", {"5 a hold buffer=0": "5 a hold buffer=0 size=7"}),
    ("event", r"buffer 0 has 8 bytes, not 9", {"5 a in buffer=0": "5 a in buffer=0 size=9"}),
    ("event", r"buffer 2 is unknown", {"5 a hold buffer=0": "5 a hold buffer=2 size=1"}),
    ("held", r"leave.: the job still holds part 0 of buffer 0", {"34 b free buffer=0": ""}),
]  # fmt: skip

LINKS: Cases = [
    ("link", r"5 ns, job 'a', in.: job 'b' is still copying buffer 0 in", {"4 b start op=0": "... | 4 b in buffer=0"}),
    ("duration", r"in_end.: the copy of 8 bytes took 3 ns, not 4", {"9 a in_end buffer=0": "8 a in_end buffer=0"}),
    ("duration", r"out_end.: the copy of 8 bytes took 6 ns, not 7",
     {"26 a out buffer=0": "", "33 a out_end buffer=0": "27 a out buffer=0 | ..."}),
    ("duration", r"in_end.: the copy of 8 bytes took 5 ns, not 4",
     {"33 a in buffer=0": "", "33 a out_end buffer=0": "32 a in buffer=0 | ..."}),
    ("link", r"9 ns.*in_end.: no such copy of part 0 of buffer 0", {"5 a in buffer=0": ""}),
    ("link", r"9 ns.*in_end.: no such copy of part 2 of buffer 0",
     {"9 a in_end buffer=0": "9 a in_end buffer=0 part=2"}),
    ("link", r"9 ns.*out_end.: no such copy of part 0", {"9 a in_end buffer=0": "9 a out_end buffer=0"}),
    ("link", r"event 37 .33 ns, job 'a', in.: the copy never ends", {"37 a in_end buffer=0": ""}),
    ("link", r"event 36 .*passive.: the copy-in of part 0 of buffer 0 never begins",
     {"33 a in buffer=0": "", "37 a in_end buffer=0": ""}),
]  # fmt: skip


@pytest.mark.parametrize("rule, why, edits", [*MEMORY, *LINKS])
def test_a_broken_log_is_refused_for_the_right_reason(rule: str, why: str, edits: dict[str, str]) -> None:
    refused(rule, why, LOG, TRACES, edits)


def test_a_smaller_budget_does_not_free_anything() -> None:
    traces = {"p": B, "q": B}
    log = """
    0 p arrive
    0 p launch size=6
    0 p hold buffer=0
    0 p hold buffer=1
    0 p start op=0
    0 q arrive
    30 p end op=0
    30 p iteration
    30 p adopt size=3
    30 p free buffer=1
    30 q launch size=6
    30 q hold buffer=0
    30 q hold buffer=1
    30 q start op=0
    31 p free buffer=0
    31 p leave
    60 q end op=0
    60 q iteration
    60 q free buffer=0
    60 q free buffer=1
    60 q leave
    """
    judge(log_of(log, traces), traces, capacity=10)
    late = broken(log, traces, {"30 p free buffer=1": "", "31 p free buffer=0": "... | 31 p free buffer=1"})
    with objects("capacity", r"30 ns, job 'q', hold.: the jobs hold 12 bytes, the capacity is 11"):
        judge(late, traces, capacity=11)


def test_one_copy_engine_or_two() -> None:
    duration = {k: t.ops.duration for k, t in TRACES.items()}
    half, slow = tiny_machine(duplex=False), tiny_machine().with_(into=Link(3, 0.25))
    busy = "5 ns, job 'a', in.: job 'a' is still copying buffer 1 out"
    for machine, rule, why in ((half, "link", busy), (slow, "duration", "4 ns, not 5")):
        with objects(rule, why):
            check.jobs(log_of(LOG, TRACES), TRACES, machine, 23, duration)


P = Trace(Buffers.make([], [], []), Ops.make([[]], [[]], duration=[30]))
Q = Trace(Buffers.make([], [], []), Ops.make([[], []], [[], []], duration=[5, 0]))


@pytest.mark.parametrize(
    "slowdown, first, last, right, why",
    [
        # s = 1: p alone to 10 ns, both at half speed to 20 ns, p alone again for its other 15 ns
        (1.0, 20, 35, True, ""),
        (1.0, 21, 35, True, ""),  # a nanosecond for rounding
        (1.0, 25, 38, False, "op 0 did work of 7.5 ns, it takes 5"),
        (1.0, 15, 33, False, "op 0 did work of 2.5 ns, it takes 5"),
        (1.0, 20, 30, False, "op 0 did work of 25 ns, it takes 30"),
        (1.0, 20, 40, False, "op 0 did work of 35 ns, it takes 30"),
        # s = 1/2: two thirds of the speed, so q takes 7.5 ns, and p 12 + 7.5 / 3
        (0.5, 18, 33, True, ""),
        (0.5, 17, 32, True, ""),
        (0.5, 18, 37, False, "op 0 did work of 34.3333 ns, it takes 30"),
        # nothing is shared: exact
        (0.0, 15, 30, True, ""),
        (0.0, 15, 31, False, "op 0 did work of 31 ns, it takes 30"),
        (0.0, 14, 30, False, "op 0 did work of 4 ns, it takes 5"),
    ],
)  # fmt: skip
def test_kernels_slow_each_other_down(slowdown: float, first: int, last: int, right: bool, why: str) -> None:
    log = f"""
    0 p arrive
    0 p launch
    0 p start op=0
    10 q arrive
    10 q launch
    10 q start op=0
    {first} q end op=0
    {first} q start op=1
    {first} q end op=1
    {first} q iteration
    {first} q leave
    {last} p end op=0
    {last} p iteration
    {last} p leave
    """
    traces = {"p": P, "q": Q}
    if right:
        judge(log_of(log, traces), traces, slowdown=slowdown)
    else:
        with objects("duration", why):
            judge(log_of(log, traces), traces, slowdown=slowdown)


def test_a_job_that_left_needs_no_budget() -> None:
    edits = {"0 b launch size=6": "... | 0 c arrive | 0 c launch size=6", "60 c arrive": "", "60 c launch size=6": ""}
    with objects("capacity", "budgets are 12 bytes, the capacity is 11"):
        judge(broken(AGAIN, {"b": B, "c": B}, edits), {"b": B, "c": B}, capacity=11)


def in_turn(turns: dict[int, list[Scheduled]]) -> Planner:
    """A memory scheduler that gives each trace its next plan, or its smallest where these do not fit together."""
    asked: Counter[int] = Counter()

    def plan(tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        few = [(key, turns[key]) for key in (id(task.trace) for task in tasks)]
        found = [mine[asked[key] % len(mine)] for key, mine in few]
        asked.update(key for key, _ in few)
        fits = sum(s.peak for s in found) <= capacity
        return found if fits else [min(mine, key=lambda s: s.peak) for _, mine in few]

    return plan


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, Trace], Machine, int, float, Log]:
    """Jobs that come and go, each with a few random plans that take turns where they fit; the log of their run."""
    count = draw(st.integers(1, 3))
    own = [draw(traces(max_ops=6, max_buffers=5)) for _ in range(count)]
    jobs = [
        Job(name, trace, draw(st.sampled_from([0, 0, 0, 9, 70])), draw(st.integers(1, 3)))
        for name, trace in zip("abc", own)
    ]
    turns = {id(t): [Scheduled(Plan(), t.peak_live_bytes), *draw(st.lists(scheduled(t), max_size=2))] for t in own}
    least, most = (sum(choose(s.peak for s in few) for few in turns.values()) for choose in (min, max))
    capacity = max(1, draw(st.sampled_from([least, (least + most) // 2, most])))
    machine, slowdown = tiny_machine(duplex=draw(st.booleans())), draw(st.sampled_from([0.0, 0.0, 1.0, 0.3]))
    plan, drain = in_turn(turns), draw(st.booleans())
    ran = simulate_jobs(jobs, machine, capacity, Policy(plan, drain=drain), slowdown=slowdown)
    return {job.name: job.trace for job in jobs}, machine, capacity, slowdown, list(ran.log)


@st.composite
def scheduled(draw: st.DrawFn, trace: Trace) -> Scheduled:
    """Any swaps with any delays."""
    plan = draw(plans(trace))
    delay = st.just(0) | st.integers(0, 60)
    delays = draw(st.lists(st.tuples(delay, delay), min_size=len(plan.decisions), max_size=len(plan.decisions)))
    return Scheduled(plan, plan.apply(trace).peak_live_bytes, tuple(delays))


@given(runs(), st.data())
def test_the_simulator_is_right_and_no_event_can_be_spared(
    run: tuple[dict[str, Trace], Machine, int, float, Log], data: st.DataObject
) -> None:
    own, machine, capacity, slowdown, log = run

    def judge(log: Log) -> None:
        check.jobs(log, own, machine, capacity, {k: t.ops.duration for k, t in own.items()}, slowdown=slowdown)

    judge(log)
    spare = ("wait", "replan", "passive", "adopt")
    k = data.draw(st.sampled_from([k for k, e in enumerate(log) if e.kind not in spare]))
    for times in (0, 2):
        with pytest.raises(CheckError):
            judge([*log[:k], *[log[k]] * times, *log[k + 1 :]])
    for k in [k for k, e in enumerate(log) if e.kind == "in" and is_read(own[e.job], log, k)]:
        copy = log[k]
        end = next(i for i in range(k, len(log)) if log[i] == replace(copy, ns=log[i].ns, kind="in_end"))
        gone = {k, end, *(i for i in range(k) if log[i].kind == "passive" and log[i].part == copy.part)}
        with objects("value", f"reads version .* of buffer {copy.buffer} instead of"):
            judge([e for i, e in enumerate(log) if i not in gone])


@pytest.mark.parametrize(
    "capacity, a, b, expected",
    [
        (130, "b" + "s" * 9, "s", ["a launch 100", "a adopt 60", "b launch 60"]),  # b comes when a has shrunk
        (160, "ss" + "b" * 9, "b" + "s" * 9, ["a launch 60", "b launch 100", "b adopt 60", "a adopt 100"]),  # a waits
    ],
)
def test_bytes_change_hands(capacity: int, a: str, b: str, expected: list[str]) -> None:
    # W takes 60 bytes all the time (big), or is swapped while Y takes 40 (small)
    wy = Buffers.make([60, 40], [0, 1], [4, 3], persistent=[True, False])
    ops = Ops.make([[0], [], [1], [0]], [[], [1], [], []], duration=[10, 10, 10, 10])
    own = {"a": Trace(wy, ops), "b": Trace(wy, ops)}
    chosen = {"b": Scheduled(Plan(), 100), "s": Scheduled(Plan((Swap(0, 0, 3, 1, 3),)), 60)}
    plan = in_turn({id(own[job]): [chosen[k] for k in turns] for job, turns in (("a", a), ("b", b))})
    jobs = [Job("a", own["a"], 0, 4), Job("b", own["b"], 5, 4)]
    log = simulate_jobs(jobs, tiny_machine(), capacity, Policy(plan)).log
    check.jobs(log, own, tiny_machine(), capacity, {k: t.ops.duration for k, t in own.items()})
    assert [f"{e.job} {e.kind} {e.size}" for e in log if e.kind in ("launch", "adopt")] == expected


def is_read(trace: Trace, log: Log, k: int) -> bool:
    """Whether the first op to touch what comes in at event `k`, a buffer that always has a value, reads it.

    Not so for parts held at the instant of a new plan: their values may have been made, or been left, there.
    """
    b, mine = trace.buffers[log[k].buffer], [e for e in log[:k] if e.job == log[k].job]
    held = next(e.ns for e in reversed(mine) if e.kind == "hold" and e.part == log[k].part)
    planned = next(e.ns for e in reversed(mine) if e.kind in ("launch", "adopt"))
    if not (b.persistent and b.end - b.start == trace.n and held > planned):
        return False
    for e in log[k + 1 :]:
        if e.job == log[k].job and e.kind in ("free", "adopt") and e.part in (log[k].part, -1):
            return False
        if e.job == log[k].job and e.kind == "start":
            if b.id in trace.ops.reads[e.op]:
                return True
            if b.id in trace.ops.writes[e.op]:
                return False
    return False
