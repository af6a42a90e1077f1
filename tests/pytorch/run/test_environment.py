"""Iterations of a run: where they begin and end, which are alike, and when they are planned for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from gpumem import Machine, Trace
from gpumem.base import work
from gpumem.pipeline.compare_planners import asking
from gpumem.runtime.residency.background_planning import Planning
from gpumem.swap import Plan, Swap
from gpumem.torch import managed
from tests.pytorch.small_runs import HOW, KIB, QUICK, pair


def test_ops_that_differ_by_name_alone_are_no_iteration() -> None:
    functions = (torch.sin, torch.cos, torch.tanh, torch.exp, torch.relu, torch.abs)

    def values() -> list[float]:
        torch.manual_seed(0)
        x = torch.randn(8, 8)
        return [f(x).sum().item() for _ in range(40) for f in functions]

    bare = values()
    with managed("64KiB", **HOW) as run:
        assert values() == bare
    rows = run.report().iterations
    assert len(rows) < 60 and rows[-1].state == "idle"
    assert {row.ops for row in rows[1:-1]} == {18}


def test_a_book_that_ends_leaves_another_one_told_of_deaths() -> None:
    """A run that records anew has the next iterations before the last one is closed."""
    run = managed("64KiB", **HOW)
    first, second = run.steps.iterations(), run.steps.iterations()
    first.close()
    assert run.memory.on_reaped is not None
    second.close()
    assert run.memory.on_reaped is None


def test_a_run_that_strays_is_planned_for_anew() -> None:
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(batch: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(batch, 32)).square().mean().backward()
        optimizer.step()

    with managed(100 * KIB, **QUICK) as run:
        for batch in (128,) * 5 + (144,) * 8:
            step(batch)
    rows = run.report().iterations
    states = [row.state for row in rows]
    assert states == ["recorded"] * 2 + ["planned"] * 3 + ["on demand"] * 3 + ["recorded"] * 2 + ["planned"] * 3
    assert all("of other sizes" in row.deviation for row in rows[5:8])
    assert max(row.peak for row in rows) <= 100 * KIB


def test_planning_that_fails_leaves_the_run_on_demand() -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("a planner's defect")

    trace, _ = pair()
    job = Planning(trace, 1000, broken)
    job.run()
    assert job.best is None and "ZeroDivisionError: a planner's defect" in job.notes[0]


def test_swaps_of_a_given_plan_are_followed_without_recording() -> None:
    trace, _ = pair()
    y = trace.ops.writes.tolist()[0][0]
    plan = Plan.of(trace, [Swap(y, 1, 3, 2, 3)])
    x = torch.rand(64, 64)
    with managed("1MiB", (trace, plan), device="cpu", boundary="told") as run:
        for _ in range(3):
            y = torch.relu(x)
            z = y * 2
            z.add_(1)
            y + z
    rows = run.report().iterations
    assert [row.state for row in rows] == ["planned"] * 3 and [row.moved_in for row in rows] == [x.nbytes] * 3
    assert rows[-1].peak == plan.apply(trace).peak_live_bytes


def six_layers() -> Callable[[], None]:
    """A training step of six small layers."""
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        net(torch.randn(128, 32)).square().mean().backward()
        optimizer.step()

    return step


def test_a_plan_made_beside_the_run_is_followed_from_the_end_of_an_iteration_on() -> None:
    step = six_layers()
    with managed(100 * KIB, **{**QUICK, "wait": False}) as run:
        step()
        step()
        assert run.loop.job is not None
        run.loop.job.stop()
        step()
        step()
    assert [row.state for row in run.report().iterations][2:] == ["on demand", "planned"]
    assert max(row.peak for row in run.report().iterations) <= 100 * KIB


def test_a_plan_that_comes_soon_is_followed_until_a_better_one_is_there() -> None:
    step = six_layers()
    soon, go, ended = threading.Event(), threading.Event(), threading.Event()

    def ask(trace: Trace, seconds: float | None, offer: Callable[[Plan], object]) -> tuple[bool, list[str]]:
        plans = list[Plan]()
        asking(Machine.named("rtx4090"), 100 * KIB, QUICK["planner"])(trace, seconds, plans.append)
        offer(Plan.of(trace, plans[-1].decisions))
        soon.set()
        while not (go.wait(0.001) or work.over()):
            pass
        offer(plans[-1])
        ended.set()
        return True, ["planner two 0.00%"]

    run = managed(100 * KIB, device="cpu")
    run.planning = lambda trace, limit: Planning(trace, limit, ask)
    with run:
        step()
        step()
        assert soon.wait(30)
        for _ in range(3):
            step()
        first, job = run.loop.hints, run.loop.job
        assert not run.loop.notes and job is not None and not job.done
        go.set()
        job.stop()
        for _ in range(3):
            step()
        assert run.loop.job is None and run.loop.hints is not first
        assert [*run.loop.notes] == ["planner two 0.00%"]
        for event in (soon, go, ended):
            event.clear()
        run.loop.record()
        while run.loop.job is None:
            step()
        assert soon.wait(30)
        run.loop.record()  # as where the step has become another one: nobody wants the old one's plan any more
        assert ended.wait(30)
    states = [row.state for row in run.report().iterations]
    assert states[:8] == ["recorded", "recorded", "on demand", *["planned"] * 5]


def test_all_of_the_peak_is_a_limit_at_which_a_step_is_idle() -> None:
    net = torch.nn.Linear(32, 32)
    with managed("100%", **QUICK) as run:
        for _ in range(4):
            net(torch.randn(8, 32)).sum().backward()
            net.zero_grad()
            run.boundary()
    assert run.report().iterations[-1].state == "idle" and run.report().limit == run.report().trace.peak_live_bytes
