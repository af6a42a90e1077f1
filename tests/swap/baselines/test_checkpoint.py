"""Checkpointing: segments by hand, options, and random and real traces by the oracles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, load
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.baselines.checkpoint import checkpoint
from gpumem.swap.facts.limits import floor
from gpumem.swap.plan import Plan, Recompute
from gpumem.testing import steps
from gpumem.trace import Trace
from tests.conftest import shared, tiny_machine
from tests.nets import GTX
from tests.strategies import traces
from tests.swap.nets import layers


def test_four_segments_of_sixteen_layers(machine: Machine) -> None:
    trace = layers(17)  # the last map is used at once: 16 values can be dropped
    plan = checkpoint(trace, machine, 81, rule="sqrt", segments=4)
    assert plan.apply(trace).peak_live_bytes <= 81 < trace.peak_live_bytes == 137
    at = [decision.at for decision in plan.decisions if isinstance(decision, Recompute)]
    assert len(set(at)) == 4  # each segment at one place
    assert checkpoint(trace, machine, 81, rule="sqrt") == plan  # the square root of the values
    check.data_flow(trace, plan.apply(trace))


def test_the_number_of_segments_that_gives_the_lowest_peak(machine: Machine) -> None:
    trace = layers(16)
    with pytest.raises(NotReached) as stop:
        checkpoint(trace, machine, floor(trace)[1])
    reached = stop.value.reached
    assert checkpoint(trace, machine, reached).apply(trace).peak_live_bytes == reached < 73
    with pytest.raises(Infeasible):
        checkpoint(trace, machine, floor(trace)[1] - 1)
    assert checkpoint(trace, machine, trace.peak_live_bytes) == Plan((), trace.n)


@pytest.mark.jit
def test_what_is_held_is_held_for_longer_than_it_lives() -> None:
    """At the lowest limit of this net a buffer's last recomputation lies before its last access: that holds nothing."""
    trace = bundled("resnet18")
    try:
        plan = checkpoint(trace, GTX, floor(trace)[1])
    except NotReached as stop:
        plan = checkpoint(trace, GTX, stop.reached)
    check.data_flow(trace, plan.apply(trace))


@pytest.mark.parametrize(
    "options, why",
    [
        ({"limit": 0}, "limit: 0"),
        ({"rule": "sqrt", "segments": 0}, "segments: 0"),
        ({"rule": "sqrt", "segments": 10**9}, "segments: 1000000000 of them, but the iteration has"),
        ({"segments": 4}, "segments: 4 of them with rule 'evict'"),
        ({"rule": "sqr"}, "rule: 'sqr' is unknown.*did you mean 'sqrt'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], why: str, machine: Machine) -> None:
    with pytest.raises(ValueError, match=why):
        checkpoint(layers(4), machine, **{"limit": 10, **options})


@given(st.data())
def test_checkpoints_of_random_traces_pass_the_oracles(data: st.DataObject) -> None:
    trace = data.draw(traces(max_ops=12))
    two = {"rule": "sqrt", "segments": min(2, max(trace.n, 1))}  # more segments than ops are refused
    options = data.draw(st.sampled_from([{}, {"hold": False}, {"rule": "sqrt"}, two]))
    machine = tiny_machine()
    least = floor(trace)[1]
    limit = data.draw(st.integers(max(least, 1), max(trace.peak_live_bytes, least, 1)))
    try:
        after = checkpoint(trace, machine, limit, **options).apply(trace)
    except NotReached as stop:
        assert limit < stop.reached
        limit = stop.reached
        after = checkpoint(trace, machine, limit, **options).apply(trace)
    verify(trace, after, machine, limit)


def verify(trace: Trace, after: Trace, machine: Machine, limit: int) -> float:
    check.budget(after, limit, host=0)
    check.data_flow(trace, after)
    line = simulate(after, machine, capacity=limit, iterations=60)
    check.timeline(after, line, machine.durations(after), capacity=limit)
    return line.overhead(simulate(trace, machine))


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.thorough
@pytest.mark.parametrize("path", shared("traces/resnet50_cifar_b100.json.gz"), ids=lambda p: p.name)
def test_half_of_resnet50_for_a_quarter_of_the_time(path: Path) -> None:
    trace = load(path).trace
    limit = trace.peak_live_bytes * 58 // 100
    assert verify(trace, checkpoint(trace, GTX, limit).apply(trace), GTX, limit) < 0.27


@given(st.data())
def test_cuts_for_random_steps_pass_the_oracles(data: st.DataObject) -> None:
    trace = data.draw(steps())
    machine = replace(tiny_machine(), pinned=data.draw(st.sampled_from([0, 16, 10_000])))
    limit = data.draw(st.integers(max(trace.peak_live_bytes // 2, 1), max(trace.peak_live_bytes, 1)))
    try:
        options = data.draw(st.sampled_from([{}, {"hold": False}, {"rule": "sqrt"}]))
        plan = checkpoint(trace, machine, limit, **options)
    except (Infeasible, NotReached):
        return
    after = plan.apply(trace)
    check.budget(after, limit, host=machine.pinned)
    check.data_flow(trace, after)
    check.timeline(
        after, simulate(after, machine, capacity=limit, iterations=60), machine.durations(after), capacity=limit
    )


BARS = [  # trace, limit as a share of the peak, time at most
    ("vgg19_227_b144", 0.60, 0.15),
    ("unet_256_b16", 0.55, 0.40),
    ("resnet50_224_b64", 0.35, 0.35),
    ("vgg16_cifar_b100", 0.63, 0.20),
    ("bert_base_s128_b32", 0.50, 0.35),
    ("densenet121_224_b2", 0.46, 0.35),
]


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.thorough
@pytest.mark.parametrize(
    "path, share, most",
    [pytest.param(p, *bar, id=name) for name, *bar in BARS for p in shared(f"traces/{name}.json.gz")],
)
def test_real_nets_at_the_loads_that_were_asked_for(path: Path, share: float, most: float) -> None:
    trace = load(path).trace
    limit = int(trace.peak_live_bytes * share)
    after = checkpoint(trace, GTX, limit).apply(trace)
    check.budget(after, limit, host=GTX.pinned)
    check.data_flow(trace, after)
    line = simulate(after, GTX, capacity=limit)
    check.timeline(after, line, GTX.durations(after), capacity=limit)
    assert line.overhead(simulate(trace, GTX)) <= most
