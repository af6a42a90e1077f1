"""Best fit and first fit against the placement oracle, a naive search for holes, and the surveyed figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.io import bundled, load
from gpumem.pool import PLANNERS
from gpumem.pool.smartpool.offline import best_fit, colour, first_fit
from gpumem.trace import Trace
from tests.conftest import SHARED
from tests.pool.crowds import ALIGNMENTS, CROWDS, INSTANCES, by_size, pairs
from tests.strategies import traces


@given(traces(), st.sampled_from(sorted(PLANNERS)), ALIGNMENTS)
def test_every_placement_is_valid(trace: Trace, planner: str, alignment: int) -> None:
    placed = PLANNERS[planner](trace, alignment=alignment)
    check.placement(trace, placed)
    assert placed.alignment == alignment
    assert placed.height >= trace.peak_live_bytes


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


@given(CROWDS, ALIGNMENTS, st.booleans())
def test_a_look_at_every_pair_agrees(trace: Trace, alignment: int, smallest: bool) -> None:
    want = np.zeros(len(trace.buffers), np.int64)
    pairs(trace, by_size(trace), 0, alignment, smallest, want)
    assert (best_fit if smallest else first_fit)(trace, alignment=alignment).offset.tolist() == want.tolist()


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
