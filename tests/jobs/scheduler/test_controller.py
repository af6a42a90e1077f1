"""The global controller: who is planned when, with which durations, and who gets which budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.jobs import Event, Job, Outcome, Policy, simulate_jobs
from gpumem.jobs.scheduler.controller import GlobalController
from gpumem.jobs.scheduler.executor import Errand, Executor, Plans
from gpumem.pool import best_fit
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.swap.tasks import Scheduled, Task
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.conftest import tiny_machine
from tests.jobs.logs import MANAGED, NOTHING, TIGHT, Given, block, fork, told


class Noted:
    """Plans nothing, and notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, list[int], float]]] = []

    def __call__(self, tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        self.calls.append([(t.trace.name, t.duration.tolist(), t.ratio) for t in tasks])
        return [Scheduled(Plan(), t.trace.peak_live_bytes) for t in tasks]


def noted(jobs: Sequence[Job], capacity: int = 100, **options: Any) -> tuple[Outcome, list[Any]]:
    planner = Noted()
    return simulate_jobs(jobs, tiny_machine(), capacity, Policy(planner, **options)), planner.calls


def test_newcomers_of_one_instant_are_planned_together() -> None:
    jobs = [Job("a", block(8, 5), ratio=0.5), Job("b", block(9, 7), arrival=3), Job("c", block(10, 1), arrival=3)]
    ran, calls = noted(jobs)
    a, b, c = ("8", [5], 0.5), ("9", [7], 1.0), ("10", [1], 1.0)
    # a arrives, then b and c do; c leaves at 4, a at 5
    assert calls == [[a], [a, b, c], [a, b], [b]]
    assert [job.launch for job in ran.jobs] == [0, 3, 3]


def test_measured_times_move_the_estimates_and_plan_anew_when_they_are_far_off() -> None:
    """Estimated 20, takes 10: 20 -> 15 -> 12.5 with beta 0.5, off by more than 0.3 of the plan's until there."""
    ran, calls = noted(
        [Job("a", block(8, 4, 6), iterations=6)], estimate=lambda job, utilisation: np.array([8, 12]), beta=0.5
    )
    assert [call[0][1] for call in calls] == [[8, 12], [6, 9], [5, 8]]  # 5 and 7.5, rounded to even
    assert ran.replans == (10, 20)
    _, calls = noted(
        [Job("a", block(8, 4, 6), iterations=6)], estimate=lambda job, utilisation: np.array([8, 12]), threshold=9
    )
    assert len(calls) == 2  # the second after the first measured iteration, however good the estimates are


def test_estimates_know_how_many_others_there_are() -> None:
    seen = set()

    def estimate(job: Job, others: float) -> np.ndarray:
        seen.add((job.name, others))
        return np.array([5])

    noted(
        [Job("a", block(8, 50)), Job("b", block(8, 5), arrival=9), Job("c", block(8, 5), arrival=99)], estimate=estimate
    )
    assert seen == {("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0), ("c", 0.0)}


class Sizes:
    """Gives each job one of its plans after another: more or less of its buffers swapped, so that its peak is known."""

    def __init__(self, plans: dict[str, list[Plan]]) -> None:
        self.plans = plans

    def __call__(self, tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        rows = [self.plans[t.trace.name] for t in tasks]
        return [Scheduled(row.pop(0) if len(row) > 1 else row[0], 0) for row in rows]


LARGE, SMALL = Plan(), TIGHT


def test_a_larger_budget_waits_for_room() -> None:
    """b may grow only when a has shrunk: it tries at each of its boundaries, and keeps the old plan till then."""
    planner = Sizes({"a": [LARGE, LARGE, SMALL], "b": [SMALL, LARGE]})
    jobs = [Job("a", fork("a"), iterations=4), Job("b", fork("b"), iterations=4, arrival=5)]
    ran = simulate_jobs(jobs, tiny_machine(), 26, Policy(planner))
    budgets = [(e.ns, e.job, e.size) for e in ran.log if e.kind in ("launch", "adopt")]
    # 40: a's first iteration, planned anew: a SMALL, b LARGE; 56: b may not yet; 80: a does; 107: b's next boundary
    assert budgets == [(0, "a", 17), (5, "b", 9), (80, "a", 9), (107, "b", 17)]
    assert ran.budgets[:4] == ((0, 17), (5, 26), (80, 18), (107, 26))


def test_a_plan_that_does_not_fit_the_others_is_dropped() -> None:
    planner = Sizes({"a": [SMALL, LARGE], "b": [SMALL, LARGE]})
    jobs = [Job("a", fork("a"), iterations=3), Job("b", fork("b"), iterations=3)]
    ran = simulate_jobs(jobs, tiny_machine(), 33, Policy(planner))
    assert [(e.job, e.size) for e in ran.log if e.kind == "replan"][:2] == [("a", 34), ("b", 34)]
    assert all(e.kind != "adopt" or e.ns > 100 for e in ran.log)


def test_a_job_that_leaves_before_its_turn_makes_way_for_the_next() -> None:
    """b is planned for, but a holds its bytes until its boundary; b goes at 20, so c need not wait for it."""
    planner = Sizes({"a": [LARGE, SMALL], "b": [SMALL], "c": [SMALL]})
    jobs = [
        Job("a", fork("a"), iterations=3),
        Job("b", fork("b"), arrival=5, leave=20),
        Job("c", fork("c"), arrival=30),
    ]
    ran = simulate_jobs(jobs, tiny_machine(), 18, Policy(planner))
    assert [(e.ns, e.job, e.kind) for e in ran.log if e.kind in ("launch", "leave", "wait")][:5] == [
        (0, "a", "launch"),
        (5, "b", "wait"),
        (20, "b", "leave"),
        (30, "c", "wait"),
        (40, "c", "launch"),
    ]


def test_a_job_leaves_at_the_first_boundary_from_its_time_on() -> None:
    for leave, iterations in ((0, 0), (1, 1), (10, 1), (11, 2), (20, 2), (99, 5)):
        ran, _ = noted([Job("a", block(8, 4, 6), iterations=5, leave=leave)])
        assert len(ran["a"].end) == iterations, leave


class Still:
    """A environment in which no job does anything by itself."""

    now = 0

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def log(self, event: Event) -> None:
        self.kinds.append(event.kind)

    def launch(self, executor: Executor) -> None:
        pass

    def soon(self, errand: Callable[[], Errand[None]]) -> None:
        self.run(errand())

    def run(self, errand: Errand[None]) -> None:
        """Have plans made at once."""
        with suppress(StopIteration):
            work = next(errand)
            while True:
                work = errand.send(self.planned(work))

    def planned(self, work: Callable[[], Plans]) -> Plans:
        return work()


def test_while_a_plan_changes_the_larger_budget_is_granted() -> None:
    """Values still move by the old plan when a larger budget is promised, and by the new one when a smaller is."""
    planner = Sizes({"a": [SMALL, LARGE, SMALL]})
    job, environment = Job("a", fork("a"), iterations=9), Still()
    controller = GlobalController(
        tiny_machine(), 20, environment, Policy(planner, threshold=0, estimate=lambda job, utilisation: [9, 9, 9])
    )
    controller.arrive(job, 0)
    environment.soon(controller.admit)
    executor: Any = SimpleNamespace(job=job)
    seen = [controller.budgets[-1]]
    for _ in range(2):
        controller.measured(executor, [1, 1, 1])
        executor.todo = controller.new_plan(executor)
        seen.append(controller.budgets[-1])
        controller.adopted(executor)
        seen.append(controller.budgets[-1])
    assert [budget for _, budget in seen] == [9, 17, 17, 17, 9]


def test_who_was_admitted_launches_when_there_is_room_though_all_are_planned_anew_first() -> None:
    """In threads the new plans come later than the departure: they must not make its room forgotten."""

    class Later(Still):
        def soon(self, errand: Callable[[], Errand[None]]) -> None:
            errands.append(errand())

    errands: list[Errand[None]] = []
    environment = Later()
    policy = Policy(Sizes({"a": [LARGE, SMALL], "b": [SMALL, SMALL]}), estimate=lambda job, utilisation: [9, 9, 9])
    controller = GlobalController(tiny_machine(), 20, environment, policy)
    controller.arrive(Job("a", fork("a")), 0)
    environment.run(controller.admit())
    controller.arrive(Job("b", fork("b")), 1)
    environment.run(controller.admit())
    assert [m.job.name for m in controller.admitted] == ["b"]  # beside the small plan of a, which has not adopted it
    first = controller.members["a"].executor
    assert first is not None
    controller.left(first)
    for errand in errands:
        environment.run(errand)
    environment.run(controller.admit())
    assert [m.job.name for m in controller.running] == ["b"]


def test_what_was_planned_for_others_than_those_who_are_here_now_is_dropped() -> None:
    """The only job in the queue leaves while it is planned."""

    class Busy(Still):
        def planned(self, work: Callable[[], Plans]) -> Plans:
            controller.withdraw("a")
            return work()

    estimate = [9, 9, 9]
    for capacity in (5, 20):  # it would not fit, it would
        planner, environment = Sizes({"a": [SMALL]}), Busy()
        controller = GlobalController(
            tiny_machine(), capacity, environment, Policy(planner, threshold=0, estimate=lambda *_: estimate)
        )
        controller.arrive(Job("a", fork("a")), 0)
        environment.soon(controller.admit)
        assert (controller.asked, controller.queue, controller.admitted, controller.running) == (True, [], [], [])
        assert "refused" not in environment.kinds


def test_placements_that_are_higher_than_the_load_are_planned_for() -> None:
    """Loads of 17 fit, but lie 2 bytes higher: plans are made for as much less."""
    asked = []

    def planner(tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        asked.append(capacity)
        return [Scheduled(SMALL, 9) if capacity < 17 else Scheduled(LARGE, 17) for _ in tasks]

    def higher(trace: Trace) -> Placement:
        low = best_fit(trace, alignment=1)
        return Placement(low.offset, low.height + 2, 1)

    for capacity, tried, budgets in ((19, [19], [19]), (18, [18, 17, 16], [11]), (10, [10, 9, 8], [])):
        asked.clear()
        policy = Policy(planner, estimate=lambda *_: np.array([9, 9, 9]))
        controller = GlobalController(tiny_machine(), capacity, environment := Still(), policy, place=higher)
        controller.arrive(Job("a", fork("a")), 0)
        environment.soon(controller.admit)
        assert asked == tried and [m.budget for m in controller.running] == budgets


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


def one_less_each_time(self: GlobalController) -> Errand[int]:
    """Admission in its plain form: the whole queue, then without its last, and so on until it fits."""
    inside, queue = self._waiting()
    for count in range(len(queue), 0, -1):
        members = [*inside, *queue[:count]]
        todo = yield from self._instructions(members)
        total = sum(t.budget for t in todo)
        if total <= self.capacity and (inside, queue) == self._waiting():
            if self.running:
                self._log("replan", queue[0], total)
            self.admitted += queue[:count]
            del self.queue[:count]
            self._give(members, todo)
            return 0
    return total


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 40), st.integers(1, 3)), min_size=1, max_size=12))
def test_admission_lets_in_whom_the_plain_form_does(rows: list[tuple[int, int, int]]) -> None:
    jobs = [Job(str(k), block(size, 5), at, iterations=count) for k, (size, at, count) in enumerate(rows)]
    with pytest.MonkeyPatch.context() as patch:
        ran, _ = noted(jobs, capacity=50)
        patch.setattr(GlobalController, "_admit_some", one_less_each_time)
        plain, _ = noted(jobs, capacity=50)
    assert ran.log == plain.log


def test_admission_asks_for_few_plans() -> None:
    """40 jobs, of which 5 fit at once: 327 times for 5,167 plans, were it one job less each time."""
    ran, calls = noted([Job(str(k), block(10, 5)) for k in range(40)], capacity=50)
    assert all(len(job.end) == 1 for job in ran.jobs)
    assert len(calls) < 150 and sum(map(len, calls)) < 1200


def test_whoever_fits_first_in_the_queue_is_let_in_though_more_fit_where_fewer_do_not() -> None:
    def odd(tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        return [Scheduled(LARGE if len(tasks) == 2 else SMALL, 0) for _ in tasks]

    ran = simulate_jobs([Job(name, fork(name)) for name in "abcd"], tiny_machine(), 30, Policy(odd))
    assert [len(job.end) for job in ran.jobs] == [1] * 4 and ran["a"].launch == 0
