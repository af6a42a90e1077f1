"""What an executor does from iteration to iteration: copies, draining, new plans. Worked out by hand."""

from __future__ import annotations

import numpy as np

from gpumem.jobs import Job, Policy, simulate_jobs
from gpumem.swap.plan import Plan, Swap
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.jobs.logs import AWAY, NOTHING, Given, told, weight


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
