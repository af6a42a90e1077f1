"""Placements and budgets: the oracles let the right ones pass and object to each kind of wrong one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import objects
from tests.strategies import traces


def bare() -> Trace:
    return Trace.from_lifetimes([4, 4, 0], [8, 0, 0], [12, 9, 10], n=10)  # the first wraps and meets the second


@pytest.mark.parametrize(
    "offset, height, alignment, rule, why",
    [
        ([0, 3, 0], 8, 1, "overlap", "buffers 0 and 1: overlap in time and address, at byte 3"),
        ([0, 4, 0], 7, 1, "height", "buffer 1: ends at byte 8, above the height of 7"),
        ([0, 5, 0], 9, 4, "alignment", "buffer 1: offset 5 is not a multiple of 4"),
        ([-4, 4, 0], 8, 1, "alignment", "buffer 0: offset -4 is not"),
        ([0, 4], 8, 1, "offsets", "the trace has 3 buffers, the placement 2"),
    ],
)
def test_a_wrong_placement(offset: list[int], height: int, alignment: int, rule: str, why: str) -> None:
    check.placement(bare(), Placement(np.array([0, 4, 2]), 8))
    with objects(rule, why) as found:
        check.placement(bare(), Placement(np.array(offset), height, alignment))
    assert found.value.buffers == tuple(map(int, re.findall(r"\d+", why.split(":")[0]))) or rule == "offsets"


def test_a_host_buffer_has_no_offset() -> None:
    trace = Trace(Buffers.make([4], [0], [1], host=[True]), Ops.make([[]], [[]]))
    with objects("offsets", "on the host"):
        check.placement(trace, Placement(np.array([0]), 4))


@given(traces(max_ops=6), st.data())
def test_the_placement_oracle_agrees_with_a_grid_of_bytes(trace: Trace, data: st.DataObject) -> None:
    offset = [data.draw(st.integers(0, 12)) for _ in trace.buffers]
    cells: set[tuple[int, int]] = set()
    clash = False
    for b, at in zip(trace.buffers, offset):
        mine = {(t % trace.n, x) for t in range(b.start, b.end) for x in range(at, at + b.size)}
        clash |= bool(cells & mine)
        cells |= mine
    try:
        check.placement(trace, Placement.at(trace, offset))
    except CheckError as error:
        assert error.rule == "overlap"
        assert clash
    else:
        assert not clash


def test_the_budget_counts_arcs_on_both_sides() -> None:
    check.budget(bare(), 8)
    with objects("budget", "step 0: holds 8 bytes on the device, the limit is 7"):
        check.budget(bare(), 7)
    host = Trace(Buffers.make([9], [0], [1], host=[True]), Ops.make([[]], [[]]))
    check.budget(host, 1, host=9)
    with objects("budget", "step 0: holds 9 bytes on the host, the limit is 8"):
        check.budget(host, 1, host=8)
