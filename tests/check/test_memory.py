"""Placements and budgets: the oracles let the right ones pass and object to each kind of wrong one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.check import naive
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


@given(traces(max_ops=12), st.data())
def test_the_placement_oracle_agrees_with_every_pair(trace: Trace, data: st.DataObject) -> None:
    at = np.array([data.draw(st.integers(0, 40)) for _ in trace.buffers], np.int64)
    pairs = naive.overlapping(trace, at)
    try:
        check.placement(trace, Placement(at, 2**40))
    except CheckError as error:
        assert error.buffers in pairs and f"at byte {at[list(error.buffers)].max()}" in str(error)
    else:
        assert not pairs


class Counted(np.ndarray):  # type: ignore[type-arg]
    """A column that counts the elements of all that is computed from it."""

    elements = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *given: Any, **options: Any) -> Any:
        found = getattr(ufunc, method)(*(x.view(np.ndarray) if isinstance(x, Counted) else x for x in given), **options)
        Counted.elements += np.size(found)
        return found.view(Counted) if isinstance(found, np.ndarray) else found


def test_the_placement_oracle_looks_at_few_of_those_that_share_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 2000  # one address: each pair shares it, two million pairs
    trace = Trace.from_lifetimes([8] * n, range(n), range(1, n + 1))
    for column in ("start", "end", "size"):
        object.__setattr__(trace.buffers, column, getattr(trace.buffers, column).view(Counted))
    monkeypatch.setattr(Counted, "elements", 0)
    check.placement(trace, Placement.at(trace, [0] * n))
    assert n < Counted.elements < 20 * n


def test_an_offset_near_the_end_of_all_numbers_is_above_the_height() -> None:
    trace = Trace.from_lifetimes([8], [0], [1])
    with objects("height", "buffer 0: ends at byte 9223372036854775808, above the height of 8"):
        check.placement(trace, Placement(np.array([2**63 - 8]), 8))


def test_the_budget_counts_arcs_on_both_sides() -> None:
    check.budget(bare(), 8)
    with objects("budget", "step 0: holds 8 bytes on the device, the limit is 7"):
        check.budget(bare(), 7)
    host = Trace(Buffers.make([9], [0], [1], host=[True]), Ops.make([[]], [[]]))
    check.budget(host, 1, host=9)
    with objects("budget", "step 0: holds 9 bytes on the host, the limit is 8"):
        check.budget(host, 1, host=8)


@given(traces(max_ops=12), st.integers(0, 40), st.integers(0, 40))
def test_the_budget_is_held_against_the_sum_at_each_step(trace: Trace, limit: int, host: int) -> None:
    over = [naive.over_budget(trace, limit, host=False), naive.over_budget(trace, host, host=True)]
    try:
        check.budget(trace, limit, host=host)
    except CheckError as error:
        assert error.ops == (over[0] if over[0] >= 0 else over[1],)
    else:
        assert over == [-1, -1]


def test_the_budget_oracle_adds_up_each_buffer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 500  # one at each step: once, all were added up at each
    trace = Trace.from_lifetimes([1] * n, range(n), range(1, n + 1))
    for column in ("start", "end"):
        object.__setattr__(trace.buffers, column, getattr(trace.buffers, column).view(Counted))
    monkeypatch.setattr(Counted, "elements", 0)
    check.budget(trace, 1)
    assert Counted.elements < 20 * n
