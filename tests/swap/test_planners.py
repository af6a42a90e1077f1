"""Does every swap planner of `gpumem.swap.planners` pass the same oracles, and stay above the certified bound?"""

from __future__ import annotations

import re
from functools import partial
from inspect import Parameter, signature
from itertools import product
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, read
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.swap import PLANNERS, Plan, Planner, PlannerRecord, Swap, planner_of
from gpumem.swap.bound import least_stall, zero_stall_limit
from gpumem.swap.facts.limits import floor
from gpumem.trace import RECOMPUTE, Trace
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
    assume(trace.peak_live_bytes > 1)
    held(name, trace, target, data.draw(st.integers(1, trace.peak_live_bytes)))


def held(name: str, trace: Trace, target: Machine, limit: int) -> None:
    """Have a planner plan: right by the oracles and the bound, or one of the two errors that a planner may raise."""
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


DIGIT, SOME = st.integers(1, 9), st.integers(0, 9)
LARGE = st.builds(lambda digit, order: digit * 10**order, DIGIT, st.integers(0, 3))  # bytes
LONG = st.builds(lambda digit, order: digit * 10**order, SOME, st.integers(0, 4))  # ns; one of ten ops takes none


def whole_steps(data: st.DataObject, max_layers: int) -> tuple[Trace, Machine]:
    """A training step of buffers and ops of all magnitudes, and a machine for it."""
    streams, states = data.draw(st.sampled_from([1, 1, 2])), data.draw(st.integers(0, 2))
    trace = data.draw(steps(max_layers=max_layers, streams=streams, sizes=LARGE, durations=LONG, states=states))
    return trace, machine_of(data, pinned=data.draw(st.sampled_from([0, 3_000, 10**6, 10**6])))


@pytest.mark.parametrize("name", sorted(PLANNERS))
@settings(max_examples=4)
@given(data=st.data())
def test_whole_steps_are_planned_for_at_three_limits(name: str, data: st.DataObject) -> None:
    trace, target = whole_steps(data, 6)
    for percent in (85, 60, 40):
        held(name, trace, target, max(trace.peak_live_bytes * percent // 100, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLANNERS))
@given(data=st.data())
def test_more_and_longer_steps_are_planned_for_at_three_limits(name: str, data: st.DataObject) -> None:
    trace, target = whole_steps(data, 20)
    for percent in (85, 60, 40):
        held(name, trace, target, max(trace.peak_live_bytes * percent // 100, 1))


WRONG: dict[str, list[Any]] = {
    "accounting": ["foo"],
    "algorithms": [{10**6: []}],
    "bound": [-5],
    "effort": [-1.0, 0.0, nan, inf],
    "robust": [-0.1, 3.5, nan],
    "evaluations": [0, -1],
    "feedback": [-1],
    "free": ["foo"],
    "gap": [-0.1, 1.0, nan],
    "heuristic": ["foo"],
    "iterations": [0],
    "kind": ["foo"],
    "layers": ["foo"],
    "peaks": ["foo"],
    "ratio": [7.0, -1.0, nan],
    "rule": ["foo"],
    "score": ["foo"],
    "seconds": [0.0, -1.0, nan, inf],
    "seed": [-1],
    "segments": [0],
    "targets": [(), (2.0,), (nan,)],
    "threshold": [-1],
    "victim": ["foo"],
}


def options_of(planner: Planner) -> set[str]:
    """What can be wrong among a planner's options; True and False are what they are."""
    declared = planner.declared().items()
    return {"seconds", *(name for name, one in declared if one.kind != "bool")} - {"executor", "start"}


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_a_record_declares_the_keywords_of_its_function(name: str) -> None:
    record = PLANNERS[name]
    assert isinstance(record, PlannerRecord)
    keywords = [p for p in signature(type(record).function).parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
    told = {p.name for p in keywords} & {"seconds", "progress"}
    assert told == ({"seconds", "progress"} if record.reports else {"seconds"})
    assert {p.name: (p.annotation, p.default) for p in keywords if p.name not in told} == record.declared()
    assert planner_of(type(record).function) == type(record)()


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_options_are_checked_whether_the_load_fits_or_not(name: str) -> None:
    trace = bundled("mlp3")
    for option in sorted(options_of(PLANNERS[name])):
        for limit, value in product((2 * trace.peak_live_bytes, trace.peak_live_bytes * 95 // 100), WRONG[option]):
            told = "10+" if option == "algorithms" else re.escape(str(value))
            refused = partial(pytest.raises, ValueError, match=f"^{option}: .*{told}")
            with refused():
                PLANNERS[name](trace, GTX, limit, **{option: value})
            with refused():
                type(PLANNERS[name]).function(trace, GTX, limit, **{option: value})  # type: ignore[attr-defined]
            if option in PLANNERS[name].declared() and option != "algorithms":
                with refused():
                    type(PLANNERS[name])(**{option: value})  # type: ignore[call-arg]


def started() -> list[str]:
    return sorted(name for name, planner in PLANNERS.items() if planner.has("start"))


@pytest.mark.parametrize("name", started())
def test_a_plan_to_begin_with_is_one_of_this_trace_and_limit(name: str) -> None:
    trace = bundled("mlp3")
    limit = trace.peak_live_bytes * 95 // 100
    plan = PLANNERS["heuristic"](trace, GTX, limit)
    with pytest.raises(ValueError, match=r"^start: its peak of \d+ live bytes is above the limit of"):
        PLANNERS[name](trace, GTX, limit, start=Plan.of(trace))
    with pytest.raises(ValueError, match=r"^start: what it keeps on the host, \d+ bytes, is above the budget of 1"):
        PLANNERS[name](trace, GTX.with_(pinned=1), limit, start=plan)
    for bound in (limit, 2 * trace.peak_live_bytes):
        for other in (Plan.of(bundled("vgg16")), Plan(plan.decisions, trace.n + 1), Plan((Swap(10**6, 0, 2, 1, 2),))):
            with pytest.raises(ValueError, match=f"^start: no plan for trace '{trace.name}': "):
                PLANNERS[name](trace, GTX, bound, start=other)


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_every_planner_works_with_a_host_that_takes_its_time(name: str) -> None:
    trace, slow = bundled("mlp3"), GTX.with_(host_ns=40e3, copy_host_ns=20e3)
    for percent in (97, 90):
        limit = trace.peak_live_bytes * percent // 100
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
        limit = trace.peak_live_bytes * percent // 100
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
    tight = GTX.with_(pinned=trace.peak_live_bytes // 20)  # not much can be swapped
    for percent in (60, 40):
        limit = trace.peak_live_bytes * percent // 100
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
