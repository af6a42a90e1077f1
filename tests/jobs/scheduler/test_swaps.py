"""Copies that are issued, become due, wait for what they need, and are hurried: small cases, worked out by hand."""

from __future__ import annotations

from gpumem.jobs import Job, Policy, simulate_jobs
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.tasks import Scheduled
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.jobs.logs import LOOSE, TIGHT, Given, fork, told
from tests.shared_jobs import Drawn


def test_a_copy_that_is_needed_before_its_time() -> None:
    trace = fork()
    ran = simulate_jobs([Job("a", trace)], tiny_machine(), 9, Policy(Given({trace: [(TIGHT, 2, 1)]})))
    assert told(ran) == [
        "0 a arrive",
        "0 a launch 9",
        "0 a hold 0/0",
        "0 a start 0",
        "10 a end 0",
        "10 a out 0/0",  # due at 12, but op 1 needs the bytes
        "17 a out_end 0/0",
        "17 a free 0/0",
        "17 a hold 1/1",
        "17 a start 1",
        "37 a end 1",
        "37 a free 1/1",
        "37 a hold 0/2",
        "37 a passive 0/2",  # due at 38, but op 2 needs it
        "37 a in 0/2",
        "41 a in_end 0/2",
        "41 a start 2",
        "51 a end 2",
        "51 a free 0/2",
        "51 a iteration",
        "51 a leave",
    ]
    (a,) = ran.jobs
    assert (a.launch, a.start, a.end, a.leave, a.budget, a.peak, a.passive) == (0, (0,), (51,), 51, (9,), (9,), (1,))
    assert (a.out, a.into, a.refused, ran.peak, ran.replans) == (8, 8, 0, 9, ())
    assert a.waits == {"host": 0, "copy": 4, "memory": 7, "boundary": 0, "admission": 0}


def test_delays_that_nobody_disturbs() -> None:
    trace = fork()
    ran = simulate_jobs([Job("a", trace)], tiny_machine(), 17, Policy(Given({trace: [(LOOSE, 2, 0)]})))
    assert [line for line in told(ran) if " out" in line or " in" in line or " start" in line] == [
        "0 a start 0",
        "10 a start 1",
        "12 a out 0/0",
        "19 a out_end 0/0",
        "30 a in 0/2",
        "34 a in_end 0/2",
        "34 a start 2",
    ]
    assert ran["a"].passive == (0,)  # due when it is needed is in time


def test_what_a_needed_copy_depends_on_becomes_due_as_well() -> None:
    """Op 2 needs the copy-in at 30, and that the copy-out that was to wait until 110."""
    trace = fork()
    ran = simulate_jobs([Job("a", trace)], tiny_machine(), 17, Policy(Given({trace: [(LOOSE, 100, 0)]})))
    assert [line for line in told(ran) if " out" in line or " in" in line or line.endswith("start 2")] == [
        "30 a out 0/0",
        "37 a out_end 0/0",
        "37 a in 0/2",
        "41 a in_end 0/2",
        "41 a start 2",
    ]
    assert ran["a"].passive == (0,)


def test_the_bytes_that_a_needed_copy_waits_for_become_free_as_well() -> None:
    """Op 3 needs buffer 0 back, whose bytes buffer 1 holds: its copy-out was to wait until 543."""
    ops = Ops.make([[], [], [], [0], [1]], [[0], [1], [], [], []], duration=[10] * 5)
    trace = Trace(Buffers.make([40, 40], [0, 1], [4, 5]), ops)
    plan = Plan((Swap(0, 0, 3, 1, 3), Swap(1, 1, 4, 2, 4)), 5)
    planner = Drawn({id(trace): [Scheduled(plan, 0, ((0, 0), (500, 0)))]})
    ran = simulate_jobs([Job("a", trace)], tiny_machine(), 40, Policy(planner))
    assert [line for line in told(ran) if " out" in line or " in" in line or " start" in line] == [
        "0 a start 0",
        "10 a out 0/0",
        "33 a out_end 0/0",
        "33 a start 1",
        "43 a start 2",
        "53 a out 1/1",
        "76 a out_end 1/1",
        "76 a in 0/2",
        "88 a in_end 0/2",
        "88 a start 3",
        "98 a in 1/4",
        "110 a in_end 1/4",
        "110 a start 4",
    ]
    assert ran["a"].waits == {"host": 0, "copy": 35 + 12, "memory": 23, "boundary": 0, "admission": 0}


def test_only_as_many_copies_are_hurried_as_are_needed() -> None:
    """Op 2 needs 40 bytes: of the two copies out that wait for their time, the earlier one makes room."""
    ops = Ops.make([[], [], [], [0, 1]], [[0], [1], [2], []], duration=[1, 1, 50, 1])
    trace = Trace(Buffers.make([40, 40, 40], [0, 1, 2], [4, 4, 3]), ops)
    plan = Plan((Swap(0, 0, 3, 2, 3), Swap(1, 1, 3, 2, 3)), 4)
    for delays, first in (((100, 90), 1), ((90, 100), 0)):
        plans = [Scheduled(plan, 0, ((delays[0], 0), (delays[1], 0)))]
        ran = simulate_jobs([Job("a", trace)], tiny_machine(), 80, Policy(Drawn({id(trace): plans})))
        outs = [(e.ns, e.buffer) for e in ran.log if e.kind == "out"]
        assert outs == [(2, first), (75, 1 - first)]  # the other one when op 3 needs what it copies
