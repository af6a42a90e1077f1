"""What finds the holes among many buffers, against a look at every pair."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import gpumem.pool._interval_index as interval_index
from gpumem import check
from gpumem.base import work
from gpumem.io import load
from gpumem.pool.smartpool import offline as smartpool
from gpumem.pool.smartpool.offline import best_fit, first_fit
from gpumem.trace import I64, Trace
from tests.pool.crowds import ALIGNMENTS, CROWDS, INSTANCES, by_size, crowd, pairs


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
        patch.setattr(interval_index, "WIDTH", width)
        smartpool.fit(trace, order, first=first, alignment=alignment, smallest=smallest, offset=offset)
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


@pytest.mark.parametrize("width", [0, 2])
def test_ranges_that_touch_are_one(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    run, rows = interval_index.fill, np.empty((10_000, 4), np.int64)  # enough never to move
    seen: list[tuple[I64, I64]] = []

    def spy(arcs: Any, index: Any, _: I64, **options: Any) -> I64:
        seen.append((index.base, index.files))
        return run(arcs, index, rows, **options)

    monkeypatch.setattr(interval_index, "fill", spy)
    monkeypatch.setattr(interval_index, "WIDTH", width)
    monkeypatch.setattr(smartpool, "FEW", 0)
    for seed in range(10):
        best_fit(crowd(seed, 60, 50, 5, 10, True), alignment=1)
        base, files = seen.pop()
        held = [rows[first : first + count] for first, count, _ in files[base[0] :]]
        assert all((file[:, interval_index.LOW] < file[:, interval_index.TOP]).all() for file in held)
        assert all((file[:-1, interval_index.TOP] < file[1:, interval_index.LOW]).all() for file in held)
        assert max(map(len, held)) > 2


@given(CROWDS, ALIGNMENTS, st.booleans(), st.integers(0, 8))
def test_once_the_time_is_up_the_rest_is_stacked(trace: Trace, alignment: int, smallest: bool, looks: int) -> None:
    planner, calls = best_fit if smallest else first_fit, count()
    want, order = planner(trace, alignment=alignment), by_size(trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smartpool, "FEW", 0)
        patch.setattr(interval_index, "STRIDE", 8)
        patch.setattr(work, "now", lambda: float(next(calls)))
        with work.within(looks + interval_index.GRACE):
            found = planner(trace, alignment=alignment)
    check.placement(trace, found)
    assert next(calls) <= 3 * looks + 8, "it goes on when the time is up"
    assert found.offset[order[:8]].tolist() == want.offset[order[:8]].tolist()


@pytest.mark.jit
def test_a_placement_that_takes_little_is_finished_however_late_it_begins() -> None:
    trace = crowd(0, smartpool.FEW + 1, 4000, 1000, 200, True)
    want = best_fit(trace)
    with work.within(1e-9):
        assert best_fit(trace).offset.tolist() == want.offset.tolist()


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
    monkeypatch.setattr(interval_index, "WIDTH", width)
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
