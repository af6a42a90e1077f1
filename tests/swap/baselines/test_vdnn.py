"""vDNN: which feature maps go, when the search for a prefetch stops, limits and options, the oracles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, load
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.baselines.vdnn import LAYERS, FeatureMaps, feature_maps, vdnn
from gpumem.swap.facts.limits import floor
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.facts.recompute import backward_start
from gpumem.swap.plan import Plan
from gpumem.swap.plan.gaps import Gaps
from tests.conftest import shared, tiny_machine
from tests.swap.baselines.layered import net, nets

GTX = Machine.named("gtx1080ti")


def test_every_input_of_a_layer_goes_and_comes_one_layer_ahead() -> None:
    trace = net(["input", "conv", "relu", "conv", "fc"])
    assert backward_start(trace) == 5
    plan = vdnn(trace, tiny_machine(), floor(trace)[1] + 16, layers="all")
    # maps 0..3 are read by ops 1..4, their backward is ops 8..5; the prefetch comes one backward before;
    # the op after reads map 3
    assert [(swap.buffer, swap.after, swap.before, swap.prefetch) for swap in plan.swaps] == [
        (0, 1, 8, 7),
        (1, 2, 7, 6),
        (2, 3, 6, 5),
    ]
    assert all(swap.release == swap.after + 1 and swap.out == swap.after for swap in plan.swaps)


def test_only_inputs_of_convolutions() -> None:
    maps = feature_maps(trace := net(["input", "conv", "relu", "conv", "fc"]))
    chosen = maps.offloaded("conv", Pinned(trace, maps.gaps, 10**6))
    assert maps.gaps.buffer[chosen].tolist() == [0, 2]
    # backward of relu (op 7) looks for the convolution 1 right before it; backward of fc (op 5) for convolution 3
    assert maps.prefetch(chosen).tolist() == [6, 5]


def test_the_search_ends_at_the_next_convolution() -> None:
    # only map 0 (of layer 1) is offloaded; layer 3 is a convolution that keeps its map
    maps = feature_maps(net(["input", "relu", "relu", "conv", "relu", "fc"]))
    chosen = np.flatnonzero(maps.gaps.buffer == 0)
    # backward of layers 5 and 4 (ops 6, 7) stops at convolution 3; that of convolution 3 itself (op 8) looks further
    assert maps.prefetch(chosen).tolist() == [8]


def test_a_map_fetched_on_demand_is_not_looked_for_again() -> None:
    # backward of the layers at 5, 6, 8, 9; that of layer 3 comes first, so layer 4 looks past it
    four = np.arange(4)
    maps = Gaps(four, four + 1, np.array([9, 8, 5, 6]), four, four, four + 1, four > 9)
    found = FeatureMaps(maps, four > 9, np.zeros(0, np.int64))
    assert found.prefetch(four).tolist() == [6, 5, 5, 6]


def test_a_map_that_is_only_changed_in_place_is_no_input(machine: Machine) -> None:
    trace = bundled("vgg16")
    maps = feature_maps(trace)
    readers = [i for i in range(backward_start(trace)) if maps.gaps.buffer[0] in trace.ops.reads[i]]
    assert readers
    assert set(np.array(trace.buffers.kind)[maps.gaps.buffer]) == {"activation"}


def test_no_activations_nothing_to_offload(machine: Machine) -> None:
    trace = net(["conv", "conv", "conv"])
    plain = replace(trace, buffers=replace(trace.buffers, kind=("",) * len(trace.buffers)))
    with pytest.raises(NotReached) as stop:
        vdnn(plain, machine, trace.peak_live_bytes - 1)
    assert stop.value.reached == trace.peak_live_bytes


def test_the_limit_is_ignored_but_told(machine: Machine) -> None:
    trace = net(["input", "conv", "relu", "conv", "fc"])
    assert vdnn(trace, machine, trace.peak_live_bytes) == Plan((), trace.n)
    with pytest.raises(Infeasible):
        vdnn(trace, machine, floor(trace)[1] - 1)
    with pytest.raises(NotReached) as stop:
        vdnn(trace, machine, floor(trace)[1], layers="conv")
    assert stop.value.reached > floor(trace)[1]
    assert vdnn(trace, machine, stop.value.reached, layers="conv").apply(trace).peak_live_bytes == stop.value.reached


def test_pinned_memory_is_a_budget() -> None:
    maps = feature_maps(trace := net(["input", "conv", "relu", "conv", "fc"]))
    assert maps.offloaded("all", Pinned(trace, maps.gaps, 17)).tolist() == [0, 1]


@pytest.mark.parametrize("options, why", [({"layers": "x"}, "layers: 'x'"), ({"limit": 0}, "limit: 0")])
def test_bad_options_are_refused(options: dict[str, object], why: str, machine: Machine) -> None:
    with pytest.raises(ValueError, match=why):
        vdnn(bundled("mlp3"), machine, **{"limit": 10, **options})  # type: ignore[arg-type]


def test_room_goes_no_higher_than_the_limit() -> None:
    live = LiveBytes(np.array([0, 5, 3, 3, 3, 9, 3, 3]), 8)
    assert (live.hold(1, 4, 5), live.fetch(1, 4, 5), live.fetch(3, 4, 1)) == (2, 3, 4)
    assert live.load.tolist() == [5, 8, 9, 8]


@given(st.data())
def test_random_nets_pass_the_oracles(data: st.DataObject) -> None:
    trace = data.draw(nets())
    machine = tiny_machine(duplex=data.draw(st.booleans())).with_(pinned=data.draw(st.sampled_from([9, 10**6])))
    least = floor(trace)[1]
    limit = data.draw(st.integers(max(least, 1), max(trace.peak_live_bytes, least, 1)))
    layers, strict = data.draw(st.sampled_from(LAYERS)), data.draw(st.booleans())
    try:
        swapped = vdnn(trace, machine, limit, layers=layers, strict=strict).apply(trace)
    except NotReached as stop:
        assert stop.reached > limit
        limit = stop.reached
        swapped = vdnn(trace, machine, limit, layers=layers, strict=strict).apply(trace)
    check.budget(swapped, limit, host=machine.pinned)
    check.data_flow(trace, swapped)
    line = simulate(swapped, machine, capacity=limit, iterations=60)
    check.timeline(swapped, line, machine.durations(swapped), capacity=limit, duplex=machine.duplex)


@pytest.mark.shared
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("layers, percent", [("all", 26), ("conv", 60)])
@pytest.mark.parametrize("path", shared("traces/resnet50_cifar_b100.json.gz"), ids=lambda p: p.name)
def test_resnet50_passes_every_oracle(path: Path, layers: str, percent: int, strict: bool) -> None:
    trace = load(path).trace
    limit = trace.peak_live_bytes * percent // 100
    swapped = vdnn(trace, GTX, limit, layers=layers, strict=strict).apply(trace)
    check.budget(swapped, limit, host=GTX.pinned)
    check.data_flow(trace, swapped)
    line = simulate(swapped, GTX, capacity=limit)
    check.timeline(swapped, line, GTX.durations(swapped), capacity=limit)
    assert line.overhead(simulate(trace, GTX)) < (1 if layers == "all" else 0.1)
