"""The checks of a placement in `kernels.reference` against the project's oracles and against sets of steps and bytes.

`kernels/test_device.py` and `test_gpu.py` compare the kernels with these references bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.kernels import reference, shapes as _shapes
from gpumem.pool import best_fit
from gpumem.trace import I64, Buffers, Ops, Trace
from gpumem.trace.placement import Placement

CODES = {"offsets": _shapes.ON_HOST, "alignment": _shapes.MISPLACED, "height": _shapes.TOO_HIGH}
CODES["overlap"] = _shapes.OVERLAP


@st.composite
def instances(draw: st.DrawFn) -> Trace:
    """Arcs, some of no bytes, some on the host."""
    n = draw(st.integers(1, 12))
    arcs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, n)), max_size=9))
    start, end = [s for s, _ in arcs], [s + length for s, length in arcs]
    size = [draw(st.integers(0, 6)) for _ in arcs]
    host = [draw(st.integers(0, 4)) == 0 for _ in arcs]
    return Trace(Buffers.make(size, start, end, host=host), Ops.make([], []), n)


@st.composite
def placements(draw: st.DrawFn) -> tuple[Trace, Placement]:
    """A placement that is one, with up to two offsets moved, or anything."""
    trace = draw(instances())
    placed = best_fit(trace, alignment=draw(st.sampled_from([1, 2])))
    at, count = placed.offset.copy(), len(trace.buffers)
    moves = draw(st.sampled_from([0, 0, 1, 2, count])) if count else 0
    for j in draw(st.permutations(range(count)))[:moves]:
        at[j] = draw(st.integers(-2, 12))
    return trace, replace(placed, offset=at, height=placed.height + draw(st.integers(-1, 12)) * bool(moves))


def columns(trace: Trace, offset: I64) -> tuple[Any, ...]:
    b = trace.buffers
    return offset, b.size, b.start, b.end


@given(instances())
def test_the_load_is_that_of_the_trace(trace: Trace) -> None:
    b, out = trace.buffers, np.full(trace.n, -7)
    reference.load_profile(None, np.where(b.host, 0, b.size), b.start, b.end, out)
    assert out.tolist() == trace.live_bytes().tolist()


@given(instances(), st.data())
def test_the_least_pair_that_shares_a_byte_during_a_step(trace: Trace, data: st.DataObject) -> None:
    at = np.array([data.draw(st.integers(-1, 15)) for _ in trace.buffers], np.int64)
    cells = [
        {(t % trace.n, byte) for t in range(b.start, b.end) for byte in range(int(o), int(o) + b.size) if o >= 0}
        for b, o in zip(trace.buffers, at)
    ]
    shared = [pair for pair in combinations(range(len(at)), 2) if cells[pair[0]] & cells[pair[1]]]
    pair = np.full(2, 5)
    reference.overlap(None, *columns(trace, at), trace.n, pair)
    assert tuple(pair.tolist()) == min(shared, default=(-1, -1))


@given(placements())
def test_a_placement_is_refused_for_the_reason_of_the_oracle(case: tuple[Trace, Placement]) -> None:
    trace, placed = case
    found = np.full(3, 5)
    limits = trace.n, placed.alignment, max(placed.height, 0)
    reference.placement(None, *columns(trace, placed.offset), trace.buffers.host, *limits, found)
    code, i, j = found.tolist()
    try:
        check.placement(trace, replace(placed, height=limits[2]))
    except CheckError as error:
        assert code == CODES[error.rule]
        if code != _shapes.OVERLAP:
            assert (i, j) == (*error.buffers, -1)
            return
        pair = np.zeros(2, np.int64)
        reference.overlap(None, *columns(trace, placed.offset), trace.n, pair)
        assert [i, j] == pair.tolist() <= list(error.buffers)  # the oracle goes by offset, this by index
    else:
        assert (code, i, j) == (_shapes.FINE, -1, -1)


def test_every_reason_is_found_and_the_least_buffer_named() -> None:
    zeros, one = np.zeros(3, np.int64), np.ones(3, np.int64)
    size, host, found = 4 * one, np.array([False, False, True]), np.zeros(3, np.int64)
    for offset, expected in (
        ([0, 4, -1], [_shapes.FINE, -1, -1]),
        ([0, 4, 0], [_shapes.ON_HOST, 2, -1]),
        ([0, 4, -2], [_shapes.ON_HOST, 2, -1]),
        ([0, 3, 8], [_shapes.MISPLACED, 1, -1]),
        ([-4, 3, 8], [_shapes.MISPLACED, 0, -1]),
        ([8, 3, -1], [_shapes.TOO_HIGH, 0, -1]),
        ([4, 4, -1], [_shapes.OVERLAP, 0, 1]),
    ):
        reference.placement(None, np.array(offset), size, zeros, one, host, 1, 4, 8, found)
        assert found.tolist() == expected


def test_offsets_near_the_end_of_64_bits_do_not_overflow() -> None:
    at, size = np.array([2**63 - 2, 2**63 - 1]), np.array([2**62, 2**62])
    start, pair, found = np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(3, np.int64)
    reference.overlap(None, at, size, start, start + 1, 1, pair)
    assert pair.tolist() == [0, 1]
    reference.placement(None, at, size, start, start + 1, start > 0, 1, 1, 2**62, found)
    assert found.tolist() == [_shapes.TOO_HIGH, 0, -1]


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("placement", {"alignment": 0}, "alignment is 0, expected at least 1"),
        ("placement", {"height": -1}, "height is -1, expected at least 0"),
        ("placement", {"steps": 0}, "steps is 0, expected at least 1"),
        ("overlap", {"size": np.zeros(3, np.int64)}, r"size has the shape \(3,\), expected \(2,\)"),
        ("load_profile", {"out": np.zeros(0, np.int64)}, r"out has the shape \(0,\), expected at least one step"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, changed: dict[str, Any], message: str) -> None:
    two = {key: np.zeros(2, np.int64) for key in ("offset", "size", "start", "end")}
    rest = {"steps": 1, "pair": np.zeros(2, np.int64)}
    if name == "placement":
        rest = {"host": np.zeros(2, bool), "steps": 1, "alignment": 1, "height": 1, "fault": np.zeros(3, np.int64)}
    elif name == "load_profile":
        del two["offset"]
        rest = {"out": np.zeros(1, np.int64)}
    with pytest.raises(ValueError, match=message):
        getattr(reference, name)(None, **two | rest | changed)
