"""Full event logs of small cases, worked out by hand.

A copy of 8 bytes takes 7 ns out and 4 ns in, one of 40 takes 23 and 12 (`tiny_machine`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gpumem.jobs import Job, Outcome, Policy, simulate_jobs
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.tasks import Scheduled, Task
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.shared_jobs import Drawn

NOTHING = Plan((), 0)


def told(ran: Outcome, *jobs: str) -> list[str]:
    """The log, a line an event."""
    lines = []
    for e in ran.log:
        if jobs and e.job not in jobs:
            continue
        what = f"{e.ns} {e.job} {e.kind}"
        if e.op >= 0:
            what += f" {e.op}"
        if e.part >= 0:
            what += f" {e.buffer}/{e.part}"
        if e.kind in ("launch", "adopt", "refused", "replan"):
            what += f" {e.size}"
        lines.append(what)
    return lines


def fork() -> Trace:
    """Op 0 makes 8 bytes that op 2 reads; op 1 makes 9 bytes in between."""
    ops = Ops.make([[], [], [0]], [[0], [1], []], duration=[10, 20, 10])
    return Trace(Buffers.make([8, 9], [0, 1], [3, 2]), ops)


TIGHT = Plan((Swap(0, 0, 2, 1, 2),), 3)  # op 1 waits for the copy-out: 9 bytes
LOOSE = Plan((Swap(0, 0, 2, 2, 2),), 3)  # the copy-out has until op 1 has ended: 17 bytes


class Given:
    """A memory scheduler that gives each trace what is written here, one after another, the last one for ever."""

    def __init__(self, plans: dict[Trace, list[tuple[Plan, int, int]]]) -> None:
        self.plans = {id(trace): list(rows) for trace, rows in plans.items()}

    def __call__(self, tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        found = []
        for task in tasks:
            rows = self.plans[id(task.trace)]
            plan, out, into = rows.pop(0) if len(rows) > 1 else rows[0]
            found.append(Scheduled(plan, 0, ((out, into),) * len(plan.decisions)))
        return found


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


def weight() -> Trace:
    """Op 0 changes 40 bytes that live for ever; op 1 does something else."""
    ops = Ops.make([[0], []], [[0], []], duration=[10, 10])
    return Trace(Buffers.make([40], [0], [2], persistent=[True]), ops)


AWAY = Plan((Swap(0, 0, 2, 1, 2),), 2)  # on the host from after op 0 to before op 0


def test_a_change_of_plan_moves_what_lies_over_the_boundary() -> None:
    trace = weight()
    planner = Given({trace: [(NOTHING, 0, 0), (AWAY, 0, 0), (NOTHING, 0, 0)]})
    ran = simulate_jobs(
        [Job("a", trace, iterations=4)],
        tiny_machine(),
        40,
        Policy(
            planner,
            beta=1.0,
            estimate=lambda job, utilisation: machine_ns(job) * 2,  # always off, hence planned anew each time
        ),
    )
    assert told(ran) == [
        "0 a arrive",
        "0 a launch 40",
        "0 a hold 0/0",
        "0 a start 0",
        "10 a end 0",
        "10 a start 1",
        "20 a end 1",
        "20 a iteration",
        "20 a replan 40",
        "20 a start 0",
        "30 a end 0",
        "30 a start 1",
        "40 a end 1",
        "40 a iteration",
        "40 a replan 40",
        "40 a out 0/0",  # the new plan wants it on the host
        "63 a out_end 0/0",
        "63 a adopt 40",
        "63 a free 0/0",
        "63 a hold 0/0",
        "63 a in 0/0",
        "75 a in_end 0/0",
        "75 a start 0",
        "85 a end 0",
        "85 a start 1",
        "85 a out 0/0",
        "95 a end 1",
        "108 a out_end 0/0",  # which the end of the iteration waits for
        "108 a free 0/0",
        "108 a iteration",
        "108 a replan 40",
        "108 a adopt 40",
        "108 a hold 0/0",
        "108 a passive 0/0",  # the one after that wants it on the device again
        "108 a in 0/0",
        "120 a in_end 0/0",
        "120 a start 0",
        "130 a end 0",
        "130 a start 1",
        "140 a end 1",
        "140 a iteration",
        "140 a free 0/0",
        "140 a leave",
    ]


def machine_ns(job: Job) -> np.ndarray:
    return tiny_machine().durations(job.trace)


def test_a_newcomer_waits_until_others_have_made_room() -> None:
    traces = {name: fork() for name in "ab"}
    planner = Given({traces["a"]: [(NOTHING, 0, 0), (TIGHT, 0, 0)], traces["b"]: [(TIGHT, 0, 0)]})
    jobs = [Job("a", traces["a"], iterations=2), Job("b", traces["b"], arrival=5)]
    ran = simulate_jobs(jobs, tiny_machine(), 18, Policy(planner))
    assert [line for line in told(ran) if line.split()[2] in MANAGED] == [
        "0 a arrive",
        "0 a launch 17",
        "5 b arrive",
        "5 b replan 18",
        "5 b wait",
        "40 a iteration",
        "40 a replan 18",  # after its first iteration, for the next boundary
        "40 a adopt 9",
        "40 b launch 9",
        "91 a iteration",
        "91 a leave",
        "91 a replan 9",
        "98 b iteration",
        "98 b leave",
    ]
    assert ran.budgets == ((0, 17), (40, 9), (40, 18), (91, 9), (98, 0))
    assert ran["b"].waits["admission"] == 35


MANAGED = ("arrive", "wait", "refused", "replan", "launch", "adopt", "leave", "iteration")


def test_a_newcomer_that_does_not_fit_waits_until_somebody_leaves() -> None:
    traces = {name: fork() for name in "abc"}
    planner = Given({trace: [(NOTHING, 0, 0)] for trace in traces.values()})
    jobs = [Job("a", traces["a"]), Job("b", traces["b"], arrival=3), Job("c", traces["c"], arrival=4, leave=30)]
    ran = simulate_jobs(jobs, tiny_machine(), 20, Policy(planner))
    assert [line for line in told(ran) if line.split()[2] in MANAGED] == [
        "0 a arrive",
        "0 a launch 17",
        "3 b arrive",
        "3 b wait",
        "4 c arrive",
        "4 c wait",
        "30 c leave",  # nobody made room for it
        "40 a iteration",
        "40 a leave",
        "40 b launch 17",
        "80 b iteration",
        "80 b leave",
    ]
    assert ran["c"].launch == -1 and ran["c"].leave == 30 and ran["c"].end == ()


def test_a_job_that_cannot_fit_is_refused_and_others_go_on() -> None:
    traces = {name: fork() for name in "abc"}
    planner = Given({traces["a"]: [(TIGHT, 0, 0)], traces["b"]: [(NOTHING, 0, 0)], traces["c"]: [(TIGHT, 0, 0)]})
    jobs = [Job("a", traces["a"]), Job("b", traces["b"]), Job("c", traces["c"], arrival=1)]
    ran = simulate_jobs(jobs, tiny_machine(), 16, Policy(planner))
    assert [line for line in told(ran) if line.split()[2] in MANAGED] == [
        "0 a arrive",
        "0 b arrive",
        "0 b refused 17",
        "0 a launch 9",
        "1 c arrive",
        "1 c wait",
        "51 a iteration",
        "51 a leave",
        "51 c launch 9",
        "102 c iteration",
        "102 c leave",
    ]
    assert (ran["b"].refused, ran["b"].launch, ran["b"].leave, ran["a"].refused) == (17, -1, -1, 0)


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


def test_draining_waits_for_what_runs_over_the_boundary() -> None:
    """The copy-in that op 0 needs is planned before the boundary, and ends behind it unless drained."""
    trace = weight()
    ahead = Plan((Swap(0, 0, 2, 1, 1),), 2)  # back before op 1 of the same iteration
    jobs = [Job("a", trace, iterations=2)]
    ends = {}
    for drain in (False, True):
        planner = Given({trace: [(ahead, 0, 0)]})
        ran = simulate_jobs(jobs, tiny_machine(), 40, Policy(planner, drain=drain))
        ends[drain] = ran["a"].end
        assert ran["a"].start[1] == ran["a"].end[0]
    assert ends == {False: (33, 78), True: (45, 90)}


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


def test_a_copy_out_that_is_planned_over_the_boundary_goes_on() -> None:
    """The iteration ends at 32 while the copy-out runs until 55; only leaving waits for it."""
    ops = Ops.make([[], [0]], [[], [0]], duration=[10, 10])
    trace = Trace(Buffers.make([40], [0], [2], persistent=[True]), ops)
    late = Plan((Swap(0, 1, 3, 3, 3),), 2)  # held through op 0 of the next iteration
    ran = simulate_jobs([Job("a", trace, iterations=2)], tiny_machine(), 40, Policy(Given({trace: [(late, 0, 0)]})))
    (a,) = ran.jobs
    assert (a.start, a.end, a.leave) == ((0, 32), (32, 77), 100)
    assert a.waits == {"host": 0, "copy": 12 + 25, "memory": 0, "boundary": 23, "admission": 0}


def test_a_change_of_plan_waits_for_what_is_under_way() -> None:
    trace = weight()
    ahead = Plan((Swap(0, 0, 2, 1, 1),), 2)  # comes back while the iteration ends
    planner = Given({trace: [(ahead, 0, 0), (AWAY, 0, 0)]})
    ran = simulate_jobs([Job("a", trace, iterations=3)], tiny_machine(), 40, Policy(planner))
    lines = [line for line in told(ran) if line.split()[2] in ("in", "in_end", "out", "out_end", "adopt")]
    assert [line.split("/")[0] for line in lines if 78 <= int(line.split()[0]) <= 125] == [
        "78 a out_end 0",
        "78 a in 0",
        "90 a in_end 0",
        "90 a out 0",
        "113 a out_end 0",
        "113 a adopt 40",
        "113 a in 0",
        "125 a in_end 0",
    ]


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
