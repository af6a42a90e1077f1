"""vDNN's dynamic policy: its passes in their order, the algorithms that it chooses, the oracles."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, read
from gpumem.simulator import workspaces
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import Plan, Variant, vdnn, vdnn_dyn
from gpumem.swap.baselines.vdnn_dyn import Menu
from gpumem.swap.facts.limits import floor
from gpumem.trace import Trace
from tests.conftest import shared, tiny_machine
from tests.swap.baselines.layered import net, nets

TINY = tiny_machine()
GTX = Machine.named("gtx1080ti")


def ways(op: int, *rows: tuple[int, int]) -> list[Variant]:
    """Ways to run an op: nanoseconds and bytes of each."""
    return [Variant(op, f"way {k}", duration, workspace) for k, (duration, workspace) in enumerate(rows)]


def chain() -> Trace:
    """Five layers, convolutions at ops 1 and 3; map 0 and map 2 are what convolutions read."""
    return net(["input", "conv", "relu", "conv", "fc"])


def reached(trace: Trace, machine: Machine, *, layers: str) -> int:
    """The live bytes that a static policy gets to."""
    try:
        vdnn(trace, machine, floor(trace)[1], layers=layers)
    except NotReached as stop:
        return stop.reached
    return floor(trace)[1]


def test_whoever_fits_first_offloads() -> None:
    trace = chain()
    conv, everything = reached(trace, TINY, layers="conv"), reached(trace, TINY, layers="all")
    assert everything < conv < trace.peak_live_bytes
    assert vdnn_dyn(trace, TINY, trace.peak_live_bytes) == Plan.of(trace)
    assert vdnn_dyn(trace, TINY, trace.peak_live_bytes - 1) == vdnn(
        trace, TINY, trace.peak_live_bytes - 1, layers="conv"
    )
    assert vdnn_dyn(trace, TINY, conv - 1) == vdnn(trace, TINY, conv - 1)
    with pytest.raises(NotReached) as stop:
        vdnn_dyn(trace, TINY, everything - 1)
    assert stop.value.reached == everything


def algorithms(plan: Plan) -> dict[int, int]:
    """The workspace that each op was given."""
    return {d.op: d.workspace for d in plan.decisions if isinstance(d, Variant)}


def test_the_fastest_algorithms_first_then_only_what_does_not_fit_is_downgraded() -> None:
    trace = chain()
    menu = {1: ways(1, (20, 0), (10, 12)), 3: ways(3, (20, 0), (15, 4), (10, 9))}
    load = trace.live_bytes()
    assert (int(load[1]), int(load[3]), trace.peak_live_bytes) == (16, 32, 42)
    static = {limit: vdnn(trace, TINY, limit, layers="conv") for limit in (41, 34)}
    for limit, taken in ((41, {1: 12, 3: 9}), (34, {1: 12, 3: 9})):
        plan = vdnn_dyn(trace, TINY, limit, algorithms=menu)
        assert plan.swaps == static[limit].swaps and algorithms(plan) == taken
    least = static[34].apply(trace).peak_live_bytes
    wide = {1: ways(1, (20, 0), (10, 100)), 3: ways(3, (20, 0), (15, 4), (10, 100))}
    plan = vdnn_dyn(trace, TINY, least, algorithms=wide)
    assert plan.swaps == static[34].swaps and algorithms(plan) == {1: 0, 3: 4}


def test_an_algorithm_without_workspace_may_be_all_it_takes() -> None:
    trace = chain()
    large = Plan.of(trace, ways(1, (10, 100))).apply(trace)
    menu = {1: ways(1, (10, 100), (20, 0))}
    plan = vdnn_dyn(large, TINY, 60, algorithms=menu)
    assert algorithms(plan) == {1: 0} and plan.apply(large).peak_live_bytes <= 60
    with pytest.raises(Infeasible):
        vdnn_dyn(large, TINY, 60)
    with pytest.raises(Infeasible) as stop:
        vdnn_dyn(large, TINY, 1, algorithms=menu)
    assert stop.value.needs == floor(trace)[1]


@st.composite
def menus(draw: st.DrawFn, trace: Trace) -> Menu:
    """Up to three ops with up to three algorithms each."""
    ops = draw(st.lists(st.integers(0, trace.n - 1), max_size=3, unique=True))
    row = st.tuples(st.integers(0, 50), st.integers(0, 40))
    return {op: ways(op, *draw(st.lists(row, min_size=1, max_size=3))) for op in ops}


@given(st.data())
def test_no_choice_of_algorithms_that_fits_with_the_same_offloads_is_faster(data: st.DataObject) -> None:
    trace = data.draw(nets())
    menu = data.draw(menus(trace))
    machine = TINY.with_(pinned=data.draw(st.sampled_from([9, 10**6])))
    assume(trace.peak_live_bytes > 0)
    limit = data.draw(st.integers(1, trace.peak_live_bytes))
    try:
        plan = vdnn_dyn(trace, machine, limit, algorithms=menu)
    except (Infeasible, NotReached) as stop:
        assert (stop.needs if isinstance(stop, Infeasible) else stop.reached) > limit
        return
    assume(plan.decisions)
    took = {v.op: v.duration for v in plan.decisions if isinstance(v, Variant)}
    for other in product(*menu.values()):
        if Plan.of(trace, [*plan.swaps, *other]).apply(trace).peak_live_bytes <= limit:
            assert all(took[v.op] <= v.duration for v in other)
    swapped = plan.apply(trace)
    check.budget(swapped, limit, host=machine.pinned)
    check.data_flow(Plan.of(trace, [d for d in plan.decisions if isinstance(d, Variant)]).apply(trace), swapped)
    line = simulate(swapped, machine, capacity=limit)
    check.timeline(swapped, line, machine.durations(swapped), capacity=limit, duplex=machine.duplex)


@pytest.mark.parametrize("name", ["vgg16", "resnet18"])
def test_on_bundled_nets_it_is_the_policy_that_suffices(name: str) -> None:
    trace = bundled(name)
    for percent, layers in ((90, "conv"), (65, "all")):
        limit = trace.peak_live_bytes * percent // 100
        assert vdnn_dyn(trace, GTX, limit) == vdnn(trace, GTX, limit, layers=layers)


@pytest.mark.parametrize("name", ["vgg16", "resnet18"])
def test_with_workspaces_it_gets_where_the_static_policies_do_not(name: str) -> None:
    trace = workspaces.add(bundled(name))
    static = min(reached(trace, GTX, layers=layers) for layers in ("conv", "all"))
    plan = vdnn_dyn(trace, GTX, static - 1)
    downgraded = [d for d in plan.decisions if isinstance(d, Variant)]
    durations = GTX.durations(trace)
    for way in downgraded:
        called = trace.ops.name[way.op]
        ran = trace.buffers.name[trace.ops.writes[way.op][-1]]
        offered = {f"{called}.{o.name}": o for o in workspaces.offers(trace, way.op)}
        before, after = offered[f"{called}.{ran}"], offered[way.name]
        assert way.workspace == after.workspace < before.workspace
        assert way.duration == round(durations[way.op] * after.time / before.time)
    swapped = plan.apply(trace)
    assert downgraded and swapped.peak_live_bytes < static
    check.data_flow(Plan.of(trace, downgraded).apply(trace), swapped)


def test_what_the_table_does_not_know_is_left_as_it_is() -> None:
    trace = chain()
    own = Plan.of(trace, ways(1, (20, 4))).apply(trace)  # a workspace, but no shapes, and in no table
    limit = own.peak_live_bytes - 1
    known = replace(own, buffers=replace(own.buffers, shape=((1,),) * len(own.buffers)))
    assert vdnn_dyn(own, TINY, limit) == vdnn_dyn(own, TINY, limit, algorithms={}) == vdnn_dyn(known, TINY, limit)


@pytest.mark.shared
@pytest.mark.parametrize("percent", [60, 27])
@pytest.mark.parametrize("path", shared("traces/resnet50_cifar_b100.json.gz"), ids=lambda p: p.name)
def test_resnet50_with_workspaces_passes_every_oracle(path: Path, percent: int) -> None:
    trace = workspaces.add(read(path))
    limit = trace.peak_live_bytes * percent // 100
    plan = vdnn_dyn(trace, GTX, limit)
    swapped = plan.apply(trace)
    check.budget(swapped, limit, host=GTX.pinned)
    check.data_flow(Plan.of(trace, [d for d in plan.decisions if isinstance(d, Variant)]).apply(trace), swapped)
    check.timeline(swapped, simulate(swapped, GTX, capacity=limit), GTX.durations(swapped), capacity=limit)
