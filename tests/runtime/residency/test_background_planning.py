"""A plan is made by a thread beside the program: it is followed from a boundary on, and nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from time import perf_counter, sleep
from typing import Any

import pytest

from gpumem import Machine, Plan
from gpumem.base import work
from gpumem.pipeline import PlannerComparison
from gpumem.pipeline.compare_planners import asking
from gpumem.runtime import InMemory
from gpumem.runtime.residency.background_planning import Planning
from gpumem.trace import Buffers, Ops, Trace
from tests.runtime.programs import begin, short, step


def test_the_plan_is_made_beside_the_program_and_followed_from_a_boundary_on(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = import_module("gpumem.pipeline.compare_planners")  # the package shows the function of that name
    go, compare = threading.Event(), planning.compare_planners
    monkeypatch.setattr(planning, "compare_planners", lambda *a, **k: (go.wait(30), compare(*a, **k))[1])
    device = short(InMemory(), 500)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    assert "planned" not in [e.kind for e in device.log]  # it goes on meanwhile
    go.set()
    job = device._loop.job
    assert job is not None
    job.stop()
    first = next(e.op for e in device.log if e.kind == "found")
    for _ in range(3):
        step(device, weights)
    (switched,) = [e.op for e in device.log if e.kind == "planned"]
    assert (switched - first) % 8 == 0
    device.close()
    assert [row.state for row in device.report().iterations][-2] == "planned"


def test_a_plan_that_comes_soon_is_followed_until_a_better_one_is_there() -> None:
    """A search may take long: meanwhile there is the plan of who took no time."""
    soon, offered, go, plans, notes = *(threading.Event() for _ in range(3)), list[Plan](), list[str]()

    def ask(trace: Trace, seconds: float | None, offer: Callable[[Plan], object]) -> tuple[bool, list[str]]:
        soon.wait(30)
        heuristic = asking(Machine.named("rtx4090"), 500, ["heuristic"])
        heuristic(trace, seconds, plans.append)
        offer(Plan.of(trace, plans[0].decisions))
        offered.set()
        go.wait(30)
        offer(plans[0])
        return True, ["planner two 0.00%"]

    device = short(InMemory(), 500)
    device._loop.environment.on_iteration = lambda trace: Planning(trace, 500, ask)
    weights, switched = begin(device), []
    for k in range(12):
        step(device, weights)
        if k == 3:
            switched.append(sum(e.kind == "planned" for e in device.log))
            soon.set()
            assert offered.wait(30)
        if k == 7:
            assert device._loop.job is not None and not device._loop.job.done
            notes += device.report().notes
            go.set()
            device._loop.job.stop()
            switched.append(sum(e.kind == "planned" for e in device.log))
    switched.append(sum(e.kind == "planned" for e in device.log))
    assert switched == [0, 1, 2] and device._loop.job is None
    assert not notes and device.report().notes == ("planner two 0.00%",)
    device.close()
    assert {row.state for row in device.report().iterations[-6:]} == {"planned"}


def test_a_search_that_nobody_waits_for_any_more_ends_at_its_next_step() -> None:
    """A program that ends waits for no plan, and one whose iteration has become another for no old one."""
    begun = threading.Event()

    def ask(trace: Trace, seconds: float | None, offer: Callable[[Plan], object]) -> tuple[bool, list[str]]:
        begun.set()
        while not work.over():
            sleep(0.001)
        return False, []

    start = perf_counter()
    device = short(InMemory(), 500, seconds=60)
    device._loop.environment.on_iteration = lambda trace: Planning(trace, 500, ask, 60)
    weights = begin(device)
    for _ in range(4):
        step(device, weights)
    assert begun.wait(10)
    job = device._loop.job
    device.close()
    assert job is not None and device._loop.job is None
    job.stop(10)
    assert job.done and perf_counter() - start < 20


def test_close_does_not_wait_for_a_planner_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = import_module("gpumem.pipeline.compare_planners")  # the package shows the function of that name
    go, within = threading.Event(), []

    def slow(trace: Trace, *arguments: Any, seconds: float | None, **options: Any) -> PlannerComparison:
        within.append(seconds)
        go.wait(10 if seconds is None else seconds)
        return PlannerComparison(None, (), 0)

    monkeypatch.setattr(planning, "compare_planners", slow)
    for seconds in (0.3, 0.01):  # closed while it plans, and while it plans without an end
        device = short(InMemory(), 500, seconds=seconds)
        weights = begin(device)
        for _ in range(4):
            step(device, weights)
        job, start = device._loop.job, perf_counter()
        assert job is not None
        if seconds < 0.1:
            while None not in within:
                sleep(0.001)
        device.close()
        assert perf_counter() - start < 5
        if seconds > 0.1:
            job.stop()
            assert within == [0.3]
    go.set()


def test_a_planner_that_fails_leaves_the_program_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = import_module("gpumem.pipeline.compare_planners")  # the package shows the function of that name

    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(planning, "compare_planners", broken)
    device = short(InMemory(), 500, wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    assert device.report().notes == ("no plan, as planning failed: ZeroDivisionError: a defect",)


def test_one_plan_at_a_time() -> None:
    """A program that goes from one iteration to the next has one planner at work: the one before ends first."""
    at_work, most = [0], [0]

    def ask(trace: Trace, seconds: float | None, offer: Callable[[Plan], object]) -> tuple[bool, list[str]]:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        while not work.over():
            sleep(0.001)
        sleep(0.05)  # its last step
        at_work[0] -= 1
        return True, []

    device, jobs = short(InMemory(), 500), set[int]()
    kept = list[Planning]()
    device._loop.environment.on_iteration = lambda trace: Planning(trace, 500, ask, 60)  # type: ignore[method-assign]
    weights = begin(device)
    for size in (100, 90, 80, 70):
        for _ in range(5):
            step(device, weights, size=size)
            if (job := device._loop.job) is not None and id(job) not in jobs:
                jobs.add(id(job))
                kept.append(job)
    device.close()
    assert len(kept) >= 3
    for job in kept:
        job.stop(30)
    assert all(job.done for job in kept) and most == [1]


def scripted(*answers: tuple[bool, str]) -> tuple[Planning, list[float | None]]:
    """A planning whose planners offer the plan of that answer's length, and say whether they are through."""
    asked: list[float | None] = []
    trace = steady()

    def ask(trace: Trace, seconds: float | None, offer: Callable[[Plan], object]) -> tuple[bool, list[str]]:
        over, note = answers[len(asked)]
        asked.append(seconds)
        if over:
            offer(Plan.of(trace))
        return over, [note]

    return Planning(trace, 1000, ask, 2.5), asked


def steady() -> Trace:
    return Trace(Buffers.make([8], [0], [2]), Ops.make([[], [0]], [[0], []]))


def test_a_plan_that_is_found_in_its_time() -> None:
    job, asked = scripted((True, "found"))
    assert job.news() is None and job.done
    job.start()
    job.stop()
    assert job.done and asked == [2.5] and job.notes == ["found"]
    news = job.news()
    assert news is not None and news[0] is job.trace and job.news() is None


def test_a_plan_for_which_the_time_was_too_short() -> None:
    job, asked = scripted((False, "too short"), (True, "found"))
    job.run()
    assert asked == [2.5, None] and job.notes == ["found"] and job.best is not None


def test_a_plan_for_buffers_that_live_shorter() -> None:
    job, asked = scripted((False, ""), (False, "none"), (True, "of shorter ones"))
    job.shorter = steady()
    job.run()
    assert asked == [2.5, None, 2.5] and job.notes == ["none", "of shorter ones"]
    assert job.best is not None and job.best[0] is job.shorter
    other, asked = scripted((True, "found"))
    other.shorter = steady()
    other.run()
    assert asked == [2.5] and other.best is not None and other.best[0] is other.trace


def test_a_plan_that_nobody_wants() -> None:
    job, asked = scripted((True, "found"))
    job.give_up()
    job.run()
    assert job.unwanted and asked == [] and job.best is None and job.notes == []


def test_a_plan_waits_for_the_one_before_it() -> None:
    go, order = threading.Event(), []

    def slow(trace: Trace, seconds: float | None, offer: Callable[[Plan], object]) -> tuple[bool, list[str]]:
        go.wait(30)
        order.append("first")
        return True, []

    def quick(trace: Trace, seconds: float | None, offer: Callable[[Plan], object]) -> tuple[bool, list[str]]:
        order.append("second")
        return True, []

    first, second, third = (Planning(steady(), 1000, ask) for ask in (slow, quick, quick))
    first.start()
    second.start(first)
    assert second.before is first and not first.done
    second.stop(0.05)
    assert not second.done and order == []
    go.set()
    second.stop(30)
    assert order == ["first", "second"] and second.before is None and first.done
    third.start(first)  # which is over
    assert third.before is None
    third.stop(30)
