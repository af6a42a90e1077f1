"""Boxes: whatever places them places the buffers, and what tiles a rectangle becomes one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.pool import best_fit
from gpumem.pool.search._problem import PlacementProblem
from gpumem.pool.search.glue import Boxes, glue
from gpumem.trace import Trace
from tests.pool.search.instances import crowd


def boxes_of(size: list[int], first: list[int], last: list[int], sections: int) -> Boxes:
    return glue(np.array(size), np.array(first), np.array(last), sections)


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([1, 4, 256]))
def test_a_placement_of_the_boxes_is_one_of_the_buffers(seed: int, sizes: int, alignment: int) -> None:
    rng = np.random.default_rng(seed)
    b = crowd(seed, 30, 8).buffers
    trace = Trace.from_lifetimes(rng.integers(1, sizes + 1, len(b)) * 100, b.start, b.end, n=8)
    problem = PlacementProblem.of(trace, alignment)
    boxes = problem.boxes()
    offset = boxes.offset(best_fit(boxes.trace, alignment=1).offset)
    placed = problem.complete(problem.free, offset, smallest=True)
    assert placed.offset[problem.free].tolist() == (offset * alignment + problem.base).tolist() or problem.spare
    check.placement(trace, placed)
    load = np.array([problem.peak_units(problem.free), boxes.trace.peak_live_bytes])
    assert load[0] == load[1]  # nothing is wasted inside a box


def test_what_takes_turns_and_what_lies_on_it_is_one_box() -> None:
    boxes = boxes_of([2, 2, 2, 5], [0, 1, 2, 0], [1, 2, 3, 3], 9)
    assert len(boxes.trace.buffers) == 1
    assert boxes.trace.buffers.size.tolist() == [7]
    assert sorted(boxes.offset(np.array([10])).tolist()) in ([10, 10, 10, 12], [10, 15, 15, 15])


def test_where_two_could_follow_nobody_is_chosen() -> None:
    assert len(boxes_of([2, 2, 2], [0, 1, 1], [1, 2, 3], 9).trace.buffers) == 3


def test_a_box_goes_round_the_circle_once_at_most() -> None:
    boxes = boxes_of([2, 2, 2], [0, 3, 5], [3, 5, 7], 6)  # the last one ends behind the beginning of the first
    assert len(boxes.trace.buffers) == 2
    assert all(boxes.trace.buffers.end - boxes.trace.buffers.start <= 6)
