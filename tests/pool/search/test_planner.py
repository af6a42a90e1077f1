"""The placement search against the oracle, the greedy planners, brute force on orders, and its own promises."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base import work
from gpumem.io import bundled, read
from gpumem.pool import best_fit, first_fit, greedy, search
from gpumem.pool.search import _descents, _problem, planner
from gpumem.pool.search._parts import LENGTH_AREA
from gpumem.pool.search._problem import PlacementProblem
from gpumem.simulator.machine import Machine
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.plan import Plan
from gpumem.testing.perfect import perfect
from gpumem.trace import Trace
from gpumem.trace.lifetimes import meet
from tests.conftest import shared
from tests.pool.search.instances import crowd, uneven
from tests.strategies import plans, traces

ALIGNMENTS = st.sampled_from([1, 256, 512])
LITTLE = 0.01


@given(st.data(), traces(), ALIGNMENTS, st.integers(0, 3))
def test_every_placement_is_valid_and_never_worse_than_greedy(
    data: st.DataObject, trace: Trace, alignment: int, seed: int
) -> None:
    plan: Plan = data.draw(plans(trace))
    trace = plan.apply(trace)  # short pieces, host buffers
    placed = search(trace, alignment=alignment, seed=seed, effort=LITTLE)
    check.placement(trace, placed)
    assert placed.alignment == alignment
    assert trace.peak_live_bytes <= placed.height
    assert placed.height <= min(p(trace, alignment=alignment).height for p in (best_fit, first_fit))


@pytest.mark.jit
@pytest.mark.parametrize("alignment", [1, 256])
@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5])
def test_crowds_are_placed_validly_and_better_than_greedily(seed: int, alignment: int) -> None:
    trace = crowd(seed, 60, 40)
    greedily = min(p(trace, alignment=alignment).height for p in (best_fit, first_fit))
    placed = search(trace, alignment=alignment, effort=LITTLE)
    check.placement(trace, placed)
    assert placed.height < greedily


@pytest.mark.jit
def test_tiny_instances_go_below_every_greedy_order() -> None:
    tiny = [crowd(seed, 20, 12) for seed in range(20)]
    hard = [trace for trace in tiny if greedy(trace, alignment=1).height > trace.peak_live_bytes]
    found = [search(trace, alignment=1, effort=0.1) for trace in hard]
    for trace, placed in zip(hard, found):
        check.placement(trace, placed)
    assert sum(p.height < greedy(trace, alignment=1).height for trace, p in zip(hard, found)) >= 3


@pytest.mark.jit
def test_the_same_seed_gives_the_same_placement() -> None:
    trace = crowd(0, 60, 40)
    first = search(trace, alignment=1, seed=5, effort=LITTLE)
    assert first.offset.tolist() == search(trace, alignment=1, seed=5, effort=LITTLE).offset.tolist()
    found = {tuple(search(trace, alignment=1, seed=seed, effort=LITTLE).offset.tolist()) for seed in range(4)}
    assert len(found) > 1  # the seed does something


def test_the_offsets_are_the_same_with_and_without_the_compiler() -> None:
    trace = crowd(6, 20, 12)
    placed = search(trace, alignment=1, effort=LITTLE)
    assert placed.height < greedy(trace, alignment=1).height
    offsets = "0 225 47 296 296 348 76 244 437 408 107 172 153 499 319 172 457 362 408 187"
    assert placed.offset.tolist() == [int(at) for at in offsets.split()]


@pytest.mark.jit
@pytest.mark.parametrize("seed", [4, 11])
def test_the_largest_at_their_own_load_leave_room_for_the_rest(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = uneven(seed, 600, 800)
    placed = search(trace, alignment=1, effort=LITTLE)
    check.placement(trace, placed)
    assert placed.height == trace.peak_live_bytes
    monkeypatch.setattr(_descents, "LARGEST_ORDERS", ())
    assert search(trace, alignment=1, effort=LITTLE).height > trace.peak_live_bytes


def test_the_largest_lie_below_their_own_load() -> None:
    trace = uneven(0, 60, 80)
    state = planner.Descents.of(PlacementProblem.of(trace, 1), 0, 1.0, 0)
    state.best = replace(state.best, height=2 * trace.peak_live_bytes)  # so that what is found is kept
    assert state.stacked(20, LENGTH_AREA, trace.peak_live_bytes)
    large = state.problem.free[:20]
    assert (state.best.offset + trace.buffers.size)[large].max() == state.problem.load(large) < trace.peak_live_bytes
    assert state.lower_bound == trace.peak_live_bytes


@pytest.mark.jit
def test_the_search_stops_at_the_target() -> None:
    trace, told = crowd(2, 60, 40), list[str]()
    greedily = greedy(trace, alignment=1).height
    far = search(trace, alignment=1, effort=0.1, progress=told.append).height
    steps = len(told)
    assert trace.peak_live_bytes <= far < greedily
    told.clear()
    assert search(trace, alignment=1, effort=0.1, target=greedily - 1, progress=told.append).height < greedily
    assert 0 < len(told) < steps
    told.clear()
    assert search(trace, alignment=1, target=greedily, progress=told.append).height == greedily
    assert not told


@pytest.mark.jit
def test_no_effort_is_greedy_and_no_time_hardly_more() -> None:
    trace = crowd(3, 60, 40)
    greedily = greedy(trace, alignment=1).height
    assert search(trace, alignment=1, effort=0).height == greedily
    assert search(trace, alignment=1, seconds=1e-9).height <= greedily
    assert search(trace, alignment=1, effort=LITTLE).height < greedily


@given(traces(), ALIGNMENTS, st.data())
def test_what_is_fixed_stays_and_the_rest_goes_around_it(trace: Trace, alignment: int, data: st.DataObject) -> None:
    first = search(trace, alignment=alignment, effort=0)
    ids = [j for j in range(len(trace.buffers)) if first.offset[j] >= 0]
    fixed = {j: int(first.offset[j]) for j in data.draw(st.lists(st.sampled_from(ids), unique=True))} if ids else {}
    placed = search(trace, alignment=alignment, effort=LITTLE, fixed=fixed)
    check.placement(trace, placed)
    assert {j: placed.offset[j] for j in fixed} == fixed
    assert placed.bound <= placed.height


@pytest.mark.parametrize(
    "fixed, what",
    [
        ({9: 0}, "no buffer 9"),
        ({0: 3}, "offset 3 of buffer 0 is not a multiple of 4"),
        ({0: -4}, "offset -4"),
        ({0: 0, 1: 4}, "buffers 0 and 1 overlap at byte 4"),
    ],
)
def test_what_cannot_be_fixed_is_named(fixed: dict[int, int], what: str) -> None:
    trace = Trace.from_lifetimes([8, 8, 8], [0, 1, 2], [2, 3, 4])
    with pytest.raises(ValueError, match=what):
        search(trace, alignment=4, fixed=fixed)


@given(traces(max_ops=8), st.data())
def test_of_fixed_buffers_the_first_two_that_overlap_are_named(trace: Trace, data: st.DataObject) -> None:
    b, n = trace.buffers, trace.n
    fixed = {j: data.draw(st.integers(0, 30)) for j in range(len(b)) if not b.host[j]}
    ids = sorted(fixed, key=lambda j: (fixed[j], j))
    wrong = [
        f"fixed: buffers {i} and {j} overlap at byte {fixed[j]}"
        for i, j in combinations(ids, 2)
        if meet(b.start[i], b.end[i], b.start[j], b.end[j], n) and b.size[j] and fixed[j] < fixed[i] + b.size[i]
    ]
    try:
        PlacementProblem.of(trace, 1, fixed)
    except ValueError as error:
        assert str(error) == wrong[0]
    else:
        assert not wrong


@pytest.mark.parametrize("step", [0, 8])
def test_many_fixed_buffers_are_not_looked_at_pair_by_pair(step: int) -> None:
    n = 300
    trace = Trace.from_lifetimes([8] * n, range(n), range(1, n + 1))
    lines = Counter[str]()

    def counted(frame: FrameType, event: str, arg: object) -> Any:
        lines[event] += frame.f_code is _problem._fixed.__code__
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        PlacementProblem.of(trace, 1, {j: step * j for j in range(n)})
    finally:
        sys.settrace(before)
    assert n < lines["line"] < 20 * n


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.parametrize("path", shared("dsa/minimalloc/[A-C,E].*.csv"), ids=lambda p: p.name[0])
def test_perfect_packings_are_found(path: Path) -> None:
    trace = read(path)
    placed = search(trace, alignment=1)
    check.placement(trace, placed)
    assert placed.height == trace.peak_live_bytes == placed.bound


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.parametrize("path", shared("dsa/minimalloc/[A-E].*.csv"), ids=lambda p: p.name[0])
def test_the_published_capacity_needs_no_luck(path: Path) -> None:
    trace = read(path)
    for seed in range(3):
        placed = search(trace, alignment=1, target=2**20, seed=seed, effort=0.1)
        check.placement(trace, placed)
        assert placed.height <= 2**20


def test_tries_are_the_same_with_and_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite runs both ways: both find what is written here, after some rounds."""
    monkeypatch.setattr(_descents, "FIRST", 1)
    rng = np.random.default_rng(72)
    start = rng.integers(0, 20, 24)
    trace = Trace.from_lifetimes(rng.integers(1, 40, 24), start, start + rng.integers(1, 12, 24), n=20)
    state = planner.Descents.of(PlacementProblem.of(trace, 1), 0, 0.1, 0)
    assert state.best.height == 174
    assert sum(1 for _ in state.tries(state.lower_bound, 1e7, np.random.default_rng([0, 1]))) == 2
    assert (state.best.height, state.lower_bound) == (150, 150)
    offsets = "147 31 136 27 56 127 52 0 22 0 103 27 72 72 61 45 139 89 45 22 86 31 80 48"
    assert state.best.offset.tolist() == [int(at) for at in offsets.split()]


@pytest.mark.jit
@pytest.mark.parametrize("pieces", [30, 90, 150])
@pytest.mark.parametrize("seed", range(1, 4))
def test_rectangles_are_put_together_again(pieces: int, seed: int) -> None:
    trace = perfect(pieces, seed=seed)
    placed = search(trace, alignment=1)
    check.placement(trace, placed)
    assert placed.height == trace.peak_live_bytes == 2**20


@pytest.mark.jit
def test_one_kind_of_search_leaves_work_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, asked = crowd(2, 60, 40), list[tuple[str, bool]]()

    def spied(kind: str) -> Callable[[Any, int], Any]:
        run = getattr(planner, kind).run
        return lambda walk, effort: asked.append((kind, effort > 0)) or run(walk, effort)

    for kind in ("BeamWalk", "EjectionWalk", "OrderWalk"):
        monkeypatch.setattr(getattr(planner, kind), "run", spied(kind))
    placed = search(trace, alignment=1, effort=0.001)
    assert placed.height > trace.peak_live_bytes
    assert asked == [("BeamWalk", True), ("EjectionWalk", True), ("OrderWalk", True)]


@pytest.mark.jit
def test_a_target_has_time_and_no_target_an_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, seconds = crowd(2, 60, 40), list[float]()
    monkeypatch.setattr(planner, "CAPACITY", 0.3)
    monkeypatch.setattr(planner.Descents, "tries", lambda self, *_: seconds.append(work.left()) or iter(()))
    monkeypatch.setattr(planner, "_rest", lambda *_: None)
    load = trace.peak_live_bytes
    for options in ({}, {"target": load}, {"target": load, "effort": LITTLE}, {"target": load - 1}):
        search(trace, alignment=1, **options)  # type: ignore[arg-type]
    assert [left < 1 for left in seconds] == [False, True, False, False]


def test_a_target_that_is_shown_to_be_out_of_reach_ends_the_search() -> None:
    ring = Trace.from_lifetimes([4, 4, 4, 1], [0, 1, 2, 0], [2, 3, 4, 1], n=3)  # each meets each: 12 is the least
    asked, lowest = search(ring, alignment=1, target=9, seconds=60), search(ring, alignment=1)
    assert (ring.peak_live_bytes, asked.bound, asked.height) == (9, 10, 12)
    assert (lowest.bound, lowest.height) == (12, 12)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("path", shared("traces/csv/*.csv.gz"), ids=lambda p: p.name.split(".")[0])
def test_real_traces_are_placed_at_their_load(path: Path) -> None:
    trace = read(path)
    placed = search(trace, alignment=1)
    check.placement(trace, placed)
    assert placed.ratio(trace) <= 1.0001


def test_nothing_to_place() -> None:
    assert search(Trace.from_lifetimes([], [], [], n=3)).height == 0
    assert search(Trace.from_lifetimes([0, 0], [0, 1], [2, 3])).height == 0


def test_steps_may_be_nanoseconds() -> None:
    n = 2**61
    trace = Trace.from_lifetimes([4, 3, 2, 2], [0, 0, n // 2, n - 1], [n // 2, n, n, n + 9], n=n)
    check.placement(trace, search(trace, effort=LITTLE))


@pytest.mark.parametrize(
    "options, what",
    [
        ({"target": -1}, "target: -1"),
        ({"effort": -0.5}, "effort: -0.5"),
        ({"seconds": float("nan")}, "seconds: nan"),
        ({"seed": -3}, "seed: -3"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        search(bundled("mlp3"), **options)  # type: ignore[arg-type]


def swapped(trace: Trace, percent: int) -> Trace:
    machine = Machine.named("gtx1080ti")
    limit = trace.peak_live_bytes * percent // 100
    return autoswap(trace, machine, limit, score="swdoa", peaks="all").apply(trace)


@pytest.mark.jit
def test_a_rewritten_trace_comes_down() -> None:
    trace = swapped(bundled("vgg16"), 50)
    placed = search(trace, effort=LITTLE)
    check.placement(trace, placed)
    assert placed.height < best_fit(trace).height


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("path", shared("traces/*_cifar_b100.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_rewritten_real_traces_are_placed_near_their_load(path: Path) -> None:
    trace = swapped(read(path), 70)
    placed = search(trace)
    check.placement(trace, placed)
    assert placed.ratio(trace) <= 1.05
