"""Swapping and recomputing on top of Waterwave: plans for the trace of jobs together, judged as all plans are."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.papers.waterwave import sharing_and_swapping as both
from benchmarks.papers.waterwave.throughput import side_by_side
from gpumem import Machine, best_fit, bundled, check, simulate
from gpumem.execute import Emulator, run
from gpumem.jobs.waterwave import CoSchedule, Pipeline, atoms, balanced, co_schedule, partition, pipeline, temporal
from gpumem.kernels import reference
from gpumem.simulator.sharing import share
from gpumem.swap import PLANNERS, Plan
from gpumem.trace import Trace
from tests.jobs.waterwave.models import alone, model

pytestmark = pytest.mark.jit  # planners that search are too slow without the compiler
MACHINE = Machine.named("v100")
NAMES = ("adam", "net")
OPTIONS = {"search": {"effort": 0.002}, "autoswap": {"threshold": 1}}


@cache
def beside() -> CoSchedule:
    """Two small models, no round reaching into the next."""
    return co_schedule(pipeline([partition(model(name).trace, MACHINE, 2000) for name in NAMES], wrap=False), MACHINE)


@cache
def planned(planner: str) -> tuple[Plan, int]:
    """A plan, and its limit."""
    trace = beside().trace
    limit = trace.peak_live_bytes * 3 // 4
    return PLANNERS[planner](trace, MACHINE, limit, **OPTIONS.get(planner, {})), limit


@pytest.mark.parametrize("planner", ["heuristic", "autoswap", "search", "tensile", "on-demand"])
def test_plans_for_jobs_together_pass_what_all_plans_pass(planner: str):
    trace, (plan, limit) = beside().trace, planned(planner)
    swapped = plan.apply(trace)
    check.data_flow(trace, swapped)
    check.budget(swapped, limit)
    shared = share(swapped, MACHINE, 0.5)
    line = simulate(shared, MACHINE, capacity=limit)
    check.timeline(shared, line, MACHINE.durations(shared), capacity=limit)


@pytest.mark.parametrize("planner", ["heuristic", "search", "tensile"])
def test_swapped_together_they_end_with_the_bytes_of_each_alone(planner: str):
    swapped = planned(planner)[0].apply(beside().trace)
    assert swapped.n > beside().trace.n
    launch = beside().launch([model(name).launch(reference) for name in NAMES])
    for seed in range(3):
        state = {of + beside().buffers[j]: v for j, name in enumerate(NAMES) for of, v in model(name).state().items()}
        run(swapped, best_fit(swapped), Emulator(seed), launch, 3, state=state)
        for j, name in enumerate(NAMES):
            for of, want in alone(name, 3).items():
                assert state[of + beside().buffers[j]].tobytes() == want.tobytes()


def test_the_search_knows_sync_ops():
    """Its plans with stalls took the ops that compute for all ops of the trace."""
    job = bundled("vgg16")
    trace = co_schedule(side_by_side([job] * 2, MACHINE), MACHINE).trace
    limit = int(0.9 * job.peak_live_bytes)
    swapped = PLANNERS["search"](trace, MACHINE, limit, effort=0.001).apply(trace)
    check.budget(swapped, limit)
    check.data_flow(trace, swapped)


def lines(jobs: list[Trace]) -> list[Pipeline]:
    return [temporal(jobs, MACHINE), balanced([atoms(job, MACHINE) for job in jobs], MACHINE)]


def test_what_is_shared_is_measured_by_the_clock():
    job = bundled("mlp3")
    rows = both.sharing([job, job], MACHINE, 0.5, [1.0, 0.45], 0.1)
    assert rows[0]["in turn"] == 1 and rows[0]["balanced"] == pytest.approx(2 / 1.5, rel=1e-3)
    for row in rows:
        for key in both.SHARING:
            assert row[key] is None or 0 < row[key] <= 2 / 1.5 + 1e-6
    assert rows[1]["balanced"] is None
    turns = lines([job, job])[0]
    assert both.round_within(turns, MACHINE, 0.5, job.peak_live_bytes // 100) is None
    assert both.round_within(turns, MACHINE, 0.5, 2 * job.peak_live_bytes) == 2 * simulate(job, MACHINE).makespan
