"""Does SmartPool, all its modules together, serve random programs and recorded traces as its plans say?"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.io import bundled, load
from gpumem.pool.allocators.caching import Caching
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import replay, stepwise
from gpumem.pool.smartpool import SmartPool
from gpumem.pool.smartpool.offline import best_fit, first_fit
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.conftest import shared
from tests.pool.smartpool.judge import Judge, small
from tests.pool.smartpool.programs import iterations, offsets, perturb, play, requests, unroll
from tests.strategies import traces


@given(iterations(), st.integers(0, 12), st.integers(1, 2), st.integers(0, 2**32), st.booleans())
def test_whatever_happens_blocks_are_apart_and_a_regular_program_is_looked_up_again(
    iteration: tuple[list[tuple[str, int]], list[int]], odd: int, streams: int, seed: int, early: bool
) -> None:
    rng = random.Random(seed)
    judge = Judge(small(min_length=1 if early else len(iteration[0])))
    play(judge, unroll(iteration, 4, "before"), lambda k: rng.randrange(streams))
    play(judge, perturb(rng.randrange, unroll(iteration, 4, "odd"), odd), lambda k: rng.randrange(streams))
    play(judge, [("f", name, 0) for name in list(judge.at)])
    length = len(iteration[0])
    regular = unroll(iteration, 24, "after")
    play(judge, regular[:-length])
    counts = judge.pool.statistics
    if counts.plans == 0:
        assert not early  # a word that repeats a shorter one than `min_length` is none
        return
    before = counts.misses, counts.deviations.total()
    play(judge, regular[-length:])
    assert (counts.misses, counts.deviations.total()) == before


@given(iterations(), iterations(), st.integers(1, 2))
def test_any_change_of_shape_is_planned_anew(
    one: tuple[list[tuple[str, int]], list[int]], other: tuple[list[tuple[str, int]], list[int]], streams: int
) -> None:
    judge = Judge(small(min_length=1))
    play(judge, unroll(one, 5, "one"), lambda k: k % streams)
    rest = unroll(other, 24, "other")
    play(judge, rest[: -len(other[0])])
    before = judge.pool.statistics.misses
    play(judge, rest[-len(other[0]) :])
    left = [name for name in judge.at if isinstance(name, tuple) and name[0] == "one"]
    if not left:  # a block that stays in the region for ever is in the way for ever
        assert judge.pool.statistics.misses == before


@given(iterations(), st.integers(20, 90), st.integers(0, 8), st.integers(0, 2**32))
def test_a_full_device_is_no_harm(
    iteration: tuple[list[tuple[str, int]], list[int]], capacity: int, odd: int, seed: int
) -> None:
    judge = Judge(small(min_length=2, capacity=capacity))
    program = perturb(random.Random(seed).randrange, unroll(iteration, 10, "odd"), odd)
    refused = set()
    for kind, name, size in program:
        if kind == "m":
            try:
                judge.malloc(name, size)
            except MemoryError:
                refused.add(name)
                judge.agree()
        elif name not in refused:
            judge.free(name)
    for name in list(judge.at):
        judge.free(name)
    assert judge.malloc("all", capacity) == 0  # an idle region makes room


def served_from_the_first_request_on(trace: Trace, placed: Placement, times: int) -> None:
    device = Native(granularity=1)
    pool = SmartPool.of(trace, placed, device)
    head, rounds = requests(trace, times)
    at: dict[object, int] = {}
    found = offsets(pool, at, head)
    for program in rounds:
        found |= offsets(pool, at, program)
        assert {b: placed.offset[b] for b in found} == found
    assert pool.statistics.misses == 0
    assert not pool.statistics.deviations
    assert device.statistics.reserved.peak == placed.height


@given(traces(max_ops=8, max_buffers=8), st.sampled_from([1, 4, 256]))
def test_any_placed_trace_is_served_as_it_is_placed(trace: Trace, alignment: int) -> None:
    placed = best_fit(trace, alignment=alignment)
    script, head = stepwise(trace)
    if len(script) > head:
        served_from_the_first_request_on(trace, placed, 3)


@given(traces(max_ops=8, max_buffers=8), st.sampled_from([1, 4, 256]))
def test_a_replayed_pool_yields_the_plan_it_was_given(trace: Trace, alignment: int) -> None:
    placed = first_fit(trace, alignment=alignment)
    script, head = stepwise(trace)
    if len(script) > head:
        pool = SmartPool.of(trace, placed, Native(granularity=256))
        assert replay(trace, pool).offset.tolist() == placed.offset.tolist()
        assert not pool.statistics.deviations


@given(traces(max_ops=8, max_buffers=8))
def test_a_replayed_pool_that_detects_yields_a_placement(trace: Trace) -> None:
    pool = SmartPool(Caching(), min_length=1)
    check.placement(trace, replay(trace, pool, iterations=8))
    assert not pool.statistics.deviations


@given(traces(max_ops=8, max_buffers=6))
def test_any_trace_is_found_and_served_alike_in_each_iteration(trace: Trace) -> None:
    script, head = stepwise(trace)
    if len(script) == head:
        return
    judge = Judge(small(min_length=1))
    first, rounds = requests(trace, 12)
    play(judge, first)
    for program in rounds[:-2]:
        play(judge, program)
    before = judge.pool.statistics.misses, judge.pool.statistics.deviations.total()
    at = judge.at
    assert offsets(judge.pool, at, rounds[-2]) == offsets(judge.pool, at, rounds[-1])
    assert (judge.pool.statistics.misses, judge.pool.statistics.deviations.total()) == before
    assert judge.pool.placement is not None
    assert judge.pool.statistics.reserved.peak >= judge.pool.placement.height


@pytest.mark.parametrize("name", ["vgg16", "resnet18", "mlp3"])
def test_bundled_traces_are_found_in_the_third_iteration(name: str) -> None:
    trace = bundled(name)
    served_from_the_first_request_on(trace, best_fit(trace), 4)
    pool = SmartPool(Native(granularity=256))
    head, rounds = requests(trace, 6)
    at: dict[object, int] = {}
    offsets(pool, at, head)
    found = [offsets(pool, at, program) for program in rounds]
    assert found[2] == found[3] == found[4] == found[5]
    assert pool.statistics.hits == 4 * len(found[0])
    assert not pool.statistics.deviations
    assert pool.placement is not None
    persistent = sum(-(-size // 256) * 256 for _, _, size in head)
    # the region is taken where only what lives for ever is live
    assert pool.statistics.reserved.current == persistent + -(-pool.placement.height // 256) * 256
    assert pool.statistics.reserved.peak <= 1.01 * trace.peak_live_bytes


def test_another_batch_size_midway() -> None:
    trace = bundled("vgg16")
    pool = SmartPool(Native(granularity=256))
    head, rounds = requests(trace, 9)
    persistent = {size for _, _, size in head}
    at: dict[object, int] = {}
    offsets(pool, at, head)
    for k, program in enumerate(rounds):  # from the fifth on, what is no parameter, nor as large as one, is half as big
        half = [(kind, b, size // 2 if kind == "m" and size not in persistent else size) for kind, b, size in program]
        before = pool.statistics.misses
        offsets(pool, at, program if k < 4 else half)
        if k in (2, 3, 7, 8):
            assert pool.statistics.misses == before
    assert pool.statistics.plans == 2


@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_recorded_traces_are_served_as_placed(path: Path) -> None:
    trace = load(path).trace
    if len(trace.buffers) < 3000:  # the larger ones take minutes to detect, and tell no more
        served_from_the_first_request_on(trace, best_fit(trace), 2)
