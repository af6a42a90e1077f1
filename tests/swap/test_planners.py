"""Does every swap planner of `gpumem.swap.planners` pass the same oracles, and stay above the certified bound?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st

from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, read
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.swap import PLANNERS
from gpumem.swap.bound import least_stall, zero_stall_limit
from gpumem.swap.facts.limits import floor
from gpumem.trace import RECOMPUTE
from tests.conftest import shared
from tests.strategies import machine_of, steps, traces
from tests.swap.judging import judged, quick

GTX = Machine.named("gtx1080ti")


@pytest.mark.parametrize("name", sorted(PLANNERS))
@given(data=st.data())
def test_every_plan_passes_the_oracles_and_respects_the_bound(name: str, data: st.DataObject) -> None:
    trace = data.draw(st.one_of(traces(), steps()))
    target = machine_of(data, pinned=data.draw(st.sampled_from([0, 20, 10_000])))
    ns, copy_ns = data.draw(st.sampled_from([(0, 0), (0, 0), (0, 7), (3, 0), (15, 15)]))
    target = target.with_(host_ns=ns, copy_host_ns=copy_ns)
    assume(trace.peak_load > 1)
    limit = data.draw(st.integers(1, trace.peak_load))
    try:
        plan = quick(name)(trace, target, limit)
    except Infeasible as stop:
        assert stop.needs == floor(trace)[1] > limit
        return
    except NotReached as stop:
        assert stop.reached > limit
        return
    makespan, swapped = judged(trace, target, plan, limit), plan.apply(trace)
    if (swapped.ops.role == RECOMPUTE).any():
        return  # the bound is for swaps
    least = least_stall(trace, target, limit).stall_ns
    assert makespan + 0.5 >= baseline(trace, target, swapped).makespan + least


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_every_planner_works_with_a_host_that_takes_its_time(name: str) -> None:
    trace, slow = bundled("mlp3"), GTX.with_(host_ns=40e3, copy_host_ns=20e3)
    for percent in (97, 90):
        limit = trace.peak_load * percent // 100
        try:
            plan = quick(name)(trace, slow, limit)
        except NotReached:
            continue
        judged(trace, slow, plan, limit)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", sorted(PLANNERS))
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_every_planner_on_real_traces(path: Path, name: str) -> None:
    trace = read(path)
    options = {"search": {"effort": 0.02}, "bayes": {"evaluations": 8}}.get(name, {})
    bound, base = zero_stall_limit(trace, GTX, rounds=1), simulate(trace, GTX).makespan
    for percent in (90, 75, 60, 45):
        limit = trace.peak_load * percent // 100
        try:
            plan = PLANNERS[name](trace, GTX, limit, **options)
        except (Infeasible, NotReached):
            continue
        makespan = judged(trace, GTX, plan, limit)
        recomputes = (plan.apply(trace).ops.role == RECOMPUTE).any()
        assert recomputes or makespan > base or limit >= bound.limit


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.parametrize(
    "path, name",
    [
        pytest.param(path, name, id=f"{path.name.split('.')[0]}-{name}", marks=pytest.mark.slow if late else ())
        for k, path in enumerate(shared("traces/*.json.gz"))
        for name, late in (("capuchin", k % 2), ("tensile", k % 2 == 0 or "tacotron2" in path.name))  # in turn
    ],
)
def test_values_made_again_on_real_traces(path: Path, name: str) -> None:
    trace = read(path)
    planner = partial(PLANNERS[name], **({"queue": True} if name == "capuchin" else {}))
    tight = GTX.with_(pinned=trace.peak_load // 20)  # not much can be swapped
    for percent in (60, 40):
        limit = trace.peak_load * percent // 100
        try:
            plan = planner(trace, tight, limit)
        except Infeasible:
            continue
        except NotReached as stop:  # as low as it gets, where it gets there again
            limit = stop.reached
            try:
                plan = planner(trace, tight, limit)
            except NotReached:
                continue
        judged(trace, tight, plan, limit)
