"""TENSILE's schedule and its run-time system together: random jobs come and go, and every oracle looks on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, strategies as st

from gpumem.io import bundled, read
from gpumem.jobs import PLANNERS, Job, Outcome, Planner, Policy, savings, separately, simulate_jobs, steady, unmanaged
from gpumem.simulator.machine import Machine
from gpumem.swap import heuristic
from gpumem.swap.tasks import Task
from gpumem.swap.tensile.planner import schedule
from tests.conftest import shared, tiny_machine
from tests.shared_jobs import simulated_right
from tests.strategies import tasks

RTX = Machine.named("rtx2080ti")


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Job], int]:
    """Up to four jobs that arrive at any time, and a capacity between what they can do with and what they want."""
    several = draw(st.lists(tasks(), min_size=1, max_size=4))
    jobs = []
    for k, task in enumerate(several):
        arrival, turns = draw(st.integers(0, 1500)), draw(st.integers(1, 6))
        leave = draw(st.one_of(st.none(), st.integers(arrival, arrival + 3000)))
        timed = replace(task.trace, ops=replace(task.trace.ops, duration=task.duration))
        jobs.append(Job(f"job{k}", timed, arrival, turns, leave, task.ratio))
    machine = tiny_machine()
    least = sum(
        s.peak for s in schedule([Task(j.trace, machine.durations(j.trace), j.ratio) for j in jobs], machine, 1)
    )
    return jobs, draw(st.integers(max(least, 1), max(sum(j.trace.peak_live_bytes for j in jobs), least, 1)))


def looked_at(jobs: list[Job], machine: Machine, capacity: int, slowdown: float, planner: Planner) -> Outcome:
    """Run, and let the oracle look at the log."""
    ran = simulate_jobs(jobs, machine, capacity, Policy(planner), slowdown=slowdown)
    simulated_right(jobs, ran, machine, capacity, slowdown)
    return ran


@given(crowds(), st.data())
def test_crowds_stay_within_the_capacity_and_newcomers_get_room_soon(
    crowd: tuple[list[Job], int], data: st.DataObject
) -> None:
    jobs, capacity = crowd
    machine = tiny_machine(duplex=data.draw(st.booleans()))
    options = {"link": data.draw(st.sampled_from(["global", "job"])), "least": data.draw(st.booleans())}
    ran = looked_at(jobs, machine, capacity, data.draw(st.sampled_from([0.0, 0.5, 1.0])), partial(schedule, **options))
    assert ran.peak <= capacity and max((total for _, total in ran.budgets), default=0) <= capacity
    for job in jobs:
        one = ran[job.name]
        admitted = max(
            (e.ns for e in ran.log if (e.kind, e.job) == ("replan", job.name) and e.ns <= one.launch), default=-1
        )
        beside = [o for o in ran.jobs if 0 <= o.launch <= admitted <= o.leave]  # they make room at their boundaries
        if one.launch >= 0 and beside:
            assert min(sum(admitted < end <= one.launch for end in other.end) for other in beside) <= 2


@pytest.mark.parametrize("name", ["vgg16", "resnet18", "mlp3"])
@pytest.mark.parametrize("copies", [1, 3])
def test_bundled_jobs_save_memory_for_nothing(name: str, copies: int) -> None:
    trace = bundled(name)
    jobs = [Job(f"{name}#{k}", trace, iterations=5) for k in range(copies)]
    capacity = copies * trace.peak_live_bytes
    before = simulate_jobs(jobs, RTX, capacity, Policy(unmanaged), slowdown=1)
    after = looked_at(jobs, RTX, capacity, 1, partial(schedule, least=True))
    whole, each = savings(after, before)
    assert whole.msr > (0.001 if name == "mlp3" else 0.3) and whole.eor < 1e-4
    assert whole.msr == pytest.approx(sum(s.msr for s in each.values()) / copies)
    assert not any(sum(job.passive) for job in after.jobs)


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.parametrize("path", shared("traces/*_b2.json.gz") + shared("traces/mlp*.json.gz"), ids=lambda p: p.name)
@pytest.mark.parametrize("duplex", [True, False])
def test_the_predicted_peak_is_measured_to_the_byte(path: object, duplex: bool) -> None:
    trace, machine = read(path), RTX.with_(duplex=duplex)  # type: ignore[arg-type]
    (found,) = schedule([Task(trace, machine.durations(trace))], machine, 1, recompute=False)
    ran = simulate_jobs([Job("a", trace, iterations=3)], machine, trace.peak_live_bytes, Policy(lambda *_: [found]))
    base = simulate_jobs([Job("a", trace, iterations=3)], machine, trace.peak_live_bytes, Policy(unmanaged))
    assert ran["a"].peak == (found.peak,) * 3
    assert steady(ran)["a"].ns == steady(base)["a"].ns and sum(ran["a"].passive) == 0


@given(st.lists(tasks(), min_size=1, max_size=3), st.data())
def test_a_planner_for_one_plans_for_several(several: list[Task], data: st.DataObject) -> None:
    whole, machine = sum(t.trace.peak_live_bytes for t in several), tiny_machine()
    capacity = data.draw(st.integers(1, max(whole, 1)))
    for task, found in zip(several, separately(heuristic)(several, machine, capacity), strict=True):
        assert found.plan.apply(task.trace).peak_live_bytes == found.peak
        assert found.peak <= max(capacity * task.trace.peak_live_bytes // max(whole, 1), 1) or not found.plan.decisions


def test_every_planner_has_a_name() -> None:
    task = Task(bundled("mlp3"), RTX.durations(bundled("mlp3")))
    assert {"tensile", "none", "capuchin", "vdnn-all", "vdnn-conv", "search"} <= set(PLANNERS)
    (found,) = PLANNERS["none"]([task], RTX, 1)
    assert found.peak == task.trace.peak_live_bytes and found.delays == ()
