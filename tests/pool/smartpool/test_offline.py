"""SmartPool against the placement oracle, brute force on holes, and the figures of the surveyed traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.io import bundled, load
from gpumem.pool import PLANNERS, _interval_index as _index
from gpumem.pool.smartpool import offline as smartpool
from gpumem.pool.smartpool.offline import best_fit, colour, first_fit
from gpumem.trace import I64, Trace
from tests.conftest import SHARED, shared
from tests.strategies import traces

INSTANCES = [
    pytest.param(path, id=f"{path.parent.name}/{path.name.split('.')[0]}", marks=marks)
    for pattern, marks in (
        ("traces/*.json.gz", ()),
        ("traces/csv/*.csv.gz", pytest.mark.slow),  # the first iterations of these, without ops
        ("dsa/*/*.csv", ()),
    )
    for path in shared(pattern)
]
ALIGNMENTS = st.sampled_from([1, 2, 8, 256])


@given(traces(), st.sampled_from(sorted(PLANNERS)), ALIGNMENTS)
def test_every_placement_is_valid(trace: Trace, planner: str, alignment: int) -> None:
    placed = PLANNERS[planner](trace, alignment=alignment)
    check.placement(trace, placed)
    assert placed.alignment == alignment
    assert placed.height >= trace.peak_load


def naive(trace: Trace, alignment: int, smallest: bool) -> list[int]:
    """The algorithm as one says it: conflicts of each buffer, their holes, the choice among those."""
    n, b = trace.n, trace.buffers
    steps = [{t % n for t in range(x.start, x.end)} for x in b]
    offset = [0] * len(b)
    placed: list[int] = []
    for x in sorted(range(len(b)), key=lambda i: (-b[i].size, b[i].start, i)):
        if not b[x].size:
            continue
        taken = sorted((offset[y], offset[y] + b[y].size) for y in placed if steps[x] & steps[y])
        floor, holes = 0, []
        for low, high in taken:
            holes.append((low - floor, floor))
            floor = max(floor, -(-high // alignment) * alignment)
        fitting = [hole for hole in holes if hole[0] >= b[x].size]
        if fitting:
            offset[x] = min(fitting)[1] if smallest else fitting[0][1]
        else:
            offset[x] = floor
        placed.append(x)
    return offset


@given(traces(), ALIGNMENTS)
def test_best_fit_takes_the_smallest_hole_and_first_fit_the_lowest(trace: Trace, alignment: int) -> None:
    assert best_fit(trace, alignment=alignment).offset.tolist() == naive(trace, alignment, True)
    assert first_fit(trace, alignment=alignment).offset.tolist() == naive(trace, alignment, False)


# What finds the holes in large instances, against a look at every pair


def crowd(seed: int, count: int, n: int, sizes: int, longest: int, wrapping: bool) -> Trace:
    """Arcs of mixed lengths, some alive all the time, of `sizes` different sizes."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, n, count)
    length = rng.integers(1, min(longest, n) + 1, count)
    all_time = rng.random(count) < 0.05
    start[all_time], length[all_time] = rng.choice([0, n - 1], int(all_time.sum())), n
    end = start + length if wrapping else np.where(all_time, start + n, np.minimum(start + length, n))
    return Trace.from_lifetimes(rng.choice(rng.integers(0, 2000, sizes), count), start, end, n=n)


CROWDS = st.builds(
    crowd,
    st.integers(0, 2**32),
    st.integers(1, 150),
    st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 200, 2**40]),
    st.sampled_from([1, 3, 100]),
    st.sampled_from([1, 3, 20, 200, 2**40]),
    st.booleans(),
)


def pairs(trace: Trace, order: I64, first: int, alignment: int, smallest: bool, offset: I64) -> None:
    """Fill `offset` for `order[first:]` by a look at all that is placed."""
    b, n = trace.buffers, trace.n
    for turn in range(first, len(order)):
        x, placed = order[turn], order[:turn]
        placed = placed[np.argsort(offset[placed], kind="stable")]
        meets = (b.start[placed] - b.start[x]) % n < b.end[x] - b.start[x]
        meets |= (b.start[x] - b.start[placed]) % n < b.end[placed] - b.start[placed]
        floor, holes = 0, []
        for y in placed[meets].tolist():
            holes.append((int(offset[y]) - floor, floor))
            floor = max(floor, -(-int(offset[y] + b.size[y]) // alignment) * alignment)
        fitting = [hole for hole in holes if hole[0] >= b.size[x]] or [(0, floor)]
        offset[x] = min(fitting)[1] if smallest else fitting[0][1]


def by_size(trace: Trace) -> I64:
    b = trace.buffers
    order = np.lexsort((np.arange(len(b)), b.start, -b.size))
    return order[b.size[order] > 0]


def agree(trace: Trace, alignment: int, smallest: bool, width: int, share: float, shuffled: bool) -> None:
    """Place all but a share of the buffers in both ways."""
    b, order = trace.buffers, by_size(trace)
    if shuffled:
        np.random.default_rng(len(order)).shuffle(order)
    want, first = np.zeros(len(b), np.int64), int(share * len(order))
    pairs(trace, order, 0, alignment, smallest, want)
    done, offset = order[:first], np.full(len(b), -1, np.int64)
    offset[done] = want[done]
    order = np.concatenate([done[np.argsort(want[done], kind="stable")], order[first:]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smartpool, "FEW", 0)
        patch.setattr(_index, "WIDTH", width)
        smartpool._fit(b.size, b.start, b.end, trace.n, order, first, alignment, smallest, offset)
    assert offset[order].tolist() == want[order].tolist()


WIDTHS = [0, 1, 2, 4, 8]  # from a block for each step to one for everything


@given(CROWDS, ALIGNMENTS, st.booleans(), st.sampled_from(WIDTHS), st.floats(0, 1), st.booleans())
def test_what_avoids_the_pairs_agrees_with_them(
    trace: Trace, alignment: int, smallest: bool, width: int, share: float, shuffled: bool
) -> None:
    agree(trace, alignment, smallest, width, share, shuffled)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("longest", [3, 20, 100])
def test_it_agrees_wherever_lifetimes_end(width: int, longest: int) -> None:
    for seed in range(4):
        trace = crowd(seed, 120, 100 + 3 * seed, 50, longest, seed % 2 == 0)
        agree(trace, 1, seed % 4 < 2, width, 0.3 * (seed % 3), False)


@given(CROWDS, ALIGNMENTS, st.booleans())
def test_a_look_at_every_pair_agrees(trace: Trace, alignment: int, smallest: bool) -> None:
    want = np.zeros(len(trace.buffers), np.int64)
    pairs(trace, by_size(trace), 0, alignment, smallest, want)
    assert (best_fit if smallest else first_fit)(trace, alignment=alignment).offset.tolist() == want.tolist()


@pytest.mark.parametrize("width", [0, 2])
def test_ranges_that_touch_are_one(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    run, rows = _index._place, np.empty((10_000, 4), np.int64)  # enough never to move
    seen: list[tuple[I64, I64]] = []

    def spy(arcs: Any, smallest: bool, index: Any, _: I64) -> None:
        run(arcs, smallest, index, rows)
        seen.append((index.base, index.files))

    monkeypatch.setattr(_index, "_place", spy)
    monkeypatch.setattr(_index, "WIDTH", width)
    monkeypatch.setattr(smartpool, "FEW", 0)
    for seed in range(10):
        best_fit(crowd(seed, 60, 50, 5, 10, True), alignment=1)
        base, files = seen.pop()
        held = [rows[first : first + count] for first, count, _ in files[base[0] :]]
        assert all((file[:, _index.LOW] < file[:, _index.TOP]).all() for file in held)
        assert all((file[:-1, _index.TOP] < file[1:, _index.LOW]).all() for file in held)
        assert max(map(len, held)) > 2


@pytest.mark.jit
@pytest.mark.parametrize("count", [smartpool.FEW, smartpool.FEW + 1, 10_000])
@pytest.mark.parametrize("smallest", [True, False])
def test_both_ways_agree_on_many_buffers(monkeypatch: pytest.MonkeyPatch, count: int, smallest: bool) -> None:
    trace = crowd(count, count, 4000, 1000, 200, True)
    found = (best_fit if smallest else first_fit)(trace, alignment=8)
    check.placement(trace, found)
    monkeypatch.setattr(smartpool, "FEW", 10**9 if count > smartpool.FEW else 0)
    assert (best_fit if smallest else first_fit)(trace, alignment=8).offset.tolist() == found.offset.tolist()


@pytest.mark.jit
@pytest.mark.parametrize("width", [0, 8])
def test_nested_lifetimes_are_stacked(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(_index, "WIDTH", width)
    half = smartpool.FEW + 1  # as forward and backward: the first to come is the last to go
    start = np.arange(half)
    trace = Trace.from_lifetimes(np.full(half, 512), start, 2 * half - start, n=2 * half)
    assert best_fit(trace).offset.tolist() == (512 * start).tolist()


@pytest.mark.jit
@pytest.mark.shared
@pytest.mark.parametrize("path", INSTANCES)
def test_both_ways_agree_on_every_shared_instance(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    trace = load(path).trace
    for planner in (best_fit, first_fit):
        monkeypatch.setattr(smartpool, "FEW", 10**9)
        want = planner(trace, alignment=8).offset
        monkeypatch.setattr(smartpool, "FEW", 0)
        assert np.array_equal(planner(trace, alignment=8).offset, want)


def test_the_hole_below_the_lowest_block_is_used() -> None:
    # 4 lies at 0 during [0, 2), 3 above it; during [2, 4) only the 3 is there, so the 2 fits below
    trace = Trace.from_lifetimes([4, 3, 2], [0, 0, 2], [2, 4, 4])
    assert best_fit(trace, alignment=1).offset.tolist() == [0, 4, 0]
    assert best_fit(trace, alignment=1).height == 7


def test_best_fit_and_first_fit_differ() -> None:
    # at steps [8, 10) the 3 at 4 and the 1 at 9 are left: holes [0, 4) and [7, 9) for the last buffer
    size, start, end = [4, 3, 2, 1, 1], [0, 0, 0, 0, 8], [8, 10, 8, 10, 10]
    assert colour(size, start, end)[0].tolist() == [0, 4, 7, 9, 7]
    assert colour(size, start, end, smallest=False)[0].tolist() == [0, 4, 7, 9, 0]


def test_ties_in_size_go_to_the_earlier_start() -> None:
    assert colour([5, 5, 5], [3, 0, 1], [6, 6, 6])[0].tolist() == [10, 0, 5]


def test_an_arc_conflicts_on_both_sides_of_the_boundary() -> None:
    offset, height = colour([4, 4, 4], [8, 0, 4], [12, 3, 6], n=10)
    assert (offset.tolist(), height) == ([4, 0, 0], 8)


def test_zero_bytes_take_no_room() -> None:
    assert colour([0, 4, 0], [0, 0, 0], [5, 5, 5])[1] == 4


@pytest.mark.parametrize("alignment", [0, -256, 2**41])
def test_an_impossible_alignment_is_refused(alignment: int) -> None:
    with pytest.raises(ValueError, match=f"alignment: {alignment}"):
        best_fit(bundled("mlp3"), alignment=alignment)


@pytest.mark.parametrize("name", ["vgg16", "resnet18", "mlp3"])
def test_the_papers_ratio_holds_on_the_bundled_traces(name: str) -> None:
    trace = bundled(name)
    assert min(best_fit(trace).ratio(trace), first_fit(trace).ratio(trace)) <= 1.016


@pytest.mark.shared
@pytest.mark.parametrize("path", INSTANCES)
def test_every_shared_instance_is_placed_validly(path: Path) -> None:
    trace = load(path).trace
    quick = {name: {"effort": 0.02} if name in ("search", "exact") else {} for name in PLANNERS}
    for name, planner in PLANNERS.items():
        placed = planner(trace, alignment=256 if len(trace.ops) else 1, **quick[name])
        check.placement(trace, placed)
        if "_cifar_" in path.name:
            assert best_fit(trace).ratio(trace) <= 1.016


def _surveyed() -> list[tuple[str, float, float]]:
    rows = []
    for line in (SHARED / "traces" / "STATS.md").read_text().splitlines()[2:] if SHARED.exists() else []:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        rows.append((cells[0], float(cells[-3]), float(cells[-2])))
    return rows


@pytest.mark.shared
@pytest.mark.parametrize("name, best, first", _surveyed())
def test_ratios_of_the_first_iterations_are_the_surveyed_ones(name: str, best: float, first: float) -> None:
    trace = load(SHARED / "traces" / "csv" / f"{name}.csv.gz").trace
    ratios = [planner(trace, alignment=1).ratio(trace) for planner in (best_fit, first_fit)]
    assert np.round(ratios, 4).tolist() == [best, first]
