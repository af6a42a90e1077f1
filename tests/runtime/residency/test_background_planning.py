"""A plan is made by a thread beside the program: it is followed from a boundary on, and nothing waits for it."""

from __future__ import annotations

import threading
from time import perf_counter, sleep
from typing import Any

import pytest

from gpumem.pipeline import Among
from gpumem.runtime import InMemory
from gpumem.trace import Trace
from tests.runtime.programs import begin, short, step


def test_the_plan_is_made_beside_the_program_and_followed_from_a_boundary_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpumem.pipeline import compare_planners as planning

    go, among = threading.Event(), planning.among
    monkeypatch.setattr(planning, "among", lambda *a, **k: (go.wait(30), among(*a, **k))[1])
    device = short(InMemory(), 500)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    assert "planned" not in [e.kind for e in device.log]  # it goes on meanwhile
    go.set()
    job = device._learner.job
    assert job is not None
    job.stop()
    first = next(e.op for e in device.log if e.kind == "found")
    for _ in range(3):
        step(device, weights)
    (switched,) = [e.op for e in device.log if e.kind == "planned"]
    assert (switched - first) % 8 == 0
    device.close()
    assert [row.state for row in device.report().iterations][-2] == "planned"


def test_close_does_not_wait_for_a_planner_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpumem.pipeline import compare_planners as planning

    go, within = threading.Event(), []

    def slow(trace: Trace, *arguments: Any, seconds: float | None, **options: Any) -> Among:
        within.append(seconds)
        go.wait(10 if seconds is None else seconds)
        return Among(None, (), 0)

    monkeypatch.setattr(planning, "among", slow)
    for seconds in (0.3, 0.01):  # closed while it plans, and while it plans without an end
        device = short(InMemory(), 500, seconds=seconds)
        weights = begin(device)
        for _ in range(4):
            step(device, weights)
        job, start = device._learner.job, perf_counter()
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
    from gpumem.pipeline import compare_planners as planning

    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(planning, "among", broken)
    device = short(InMemory(), 500, wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    assert device.report().notes == ("no plan, as planning failed: ZeroDivisionError: a defect",)
