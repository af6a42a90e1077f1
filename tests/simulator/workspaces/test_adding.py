"""Workspaces added to a trace: which are offered, by which rule one is chosen, what else of the trace changes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import io
from gpumem.simulator.workspaces import add, convolutions, offers
from gpumem.trace import Trace
from gpumem.trace.kinds import WORKSPACE
from tests.simulator.workspaces.convolutions import BY_NAME, SMALL, VGG, by_hand, columns, step


def test_offers_are_those_that_nothing_beats() -> None:
    table = by_hand(("slow", 4, 0), ("never", 5, 10), ("fast", 1, 100), ("middle", 2, 50))
    assert [(o.name, o.time, o.workspace) for o in offers(SMALL, 0, table)] == [
        ("fast", 1.0, 100),
        ("middle", 2.0, 50),
        ("slow", 4.0, 0),
    ]
    assert [(o.name, o.time, o.workspace) for o in offers(SMALL, 1, table)] == [
        ("fast + fast", 1.0, 100),  # one after the other: the larger workspace, both times
        ("middle + middle", 2.0, 50),
        ("slow + slow", 4.0, 0),
    ]


def test_added_are_buffers_that_live_for_their_op() -> None:
    found = add(VGG)
    old, count = len(VGG.buffers), len(found.buffers) - len(VGG.buffers)
    done = convolutions(VGG)
    assert 0 < count <= len(done) and found.n == VGG.n and found.name == VGG.name
    for b in list(found.buffers)[old:]:
        assert (b.kind, b.space, b.persistent, b.of) == (WORKSPACE, "device", False, -1)
        assert b.end == b.start + 1 and found.ops.writes[b.start].tolist()[-1] == b.id and b.start in done
        assert b.size == offers(VGG, b.start)[0].workspace and b.name == offers(VGG, b.start)[0].name
    before, after = columns(VGG), columns(found)
    writes = [[j for j in row if j < old] for row in found.ops.writes.tolist()]
    assert writes == before.pop("Ops.writes") and after.pop("Ops.writes") is not None
    for name, column in before.items():
        mine = after[name]
        assert (mine[:old] if name.startswith("Buffers") and isinstance(mine, (list, tuple)) else mine) == column, name
    assert (found.live_bytes() >= VGG.live_bytes()).all() and found.statistics.tolist() == VGG.statistics.tolist()


def test_the_rule_none_and_a_trace_without_convolutions_change_nothing() -> None:
    assert add(VGG, rule="none") is VGG
    mlp = io.bundled("mlp3")
    assert add(mlp) is mlp and convolutions(mlp) == {}


@pytest.mark.parametrize("rule", ["fastest", 2**26, 2**20, 0])
def test_adding_twice_is_adding_once(rule: str | int) -> None:
    once = add(VGG, rule=rule)
    for again in ("fastest", rule, 0, "none"):
        assert (again == 0 and rule == "fastest") or add(once, rule=again) is once


def test_a_recorded_workspace_stays() -> None:
    own = add(SMALL, by_hand(("mine", 1, 77)))
    assert own.buffers.size[-2:].tolist() == [77, 77]
    assert add(own, rule=0) is own


@given(st.integers(0, 2**27))
def test_a_budget_is_kept_and_costs_time(budget: int) -> None:
    found = add(VGG, rule=budget)
    added = found.buffers.size[len(VGG.buffers) :]
    assert added.max(initial=0) <= budget
    assert (found.ops.flops >= VGG.ops.flops).all() and (found.ops.moved >= VGG.ops.moved).all()
    least = add(VGG, rule=0)
    assert (found.ops.flops <= least.ops.flops).all() and found.peak_live_bytes <= add(VGG).peak_live_bytes
    assert found.peak_live_bytes >= VGG.peak_live_bytes


def test_a_slower_choice_takes_longer_by_the_ratio_of_the_times() -> None:
    ops = replace(SMALL.ops, duration=np.array([1000, -1]), flops=np.array([8.0, 16.0]), moved=np.array([4.0, 2.0]))
    trace = Trace(SMALL.buffers, ops)
    table = by_hand(("fast", 2, 100), ("slow", 5, 10))
    slower = add(trace, table, rule=99)
    assert slower.ops.duration.tolist() == [2500, -1]
    assert slower.ops.flops.tolist() == [20.0, 40.0] and slower.ops.moved.tolist() == [10.0, 5.0]
    assert columns(add(trace, table))["Ops.duration"] == [1000, -1]


@pytest.mark.parametrize(
    ("what", "value"),
    [("time", v) for v in (math.nan, -1.0, math.inf, "1", None)]
    + [("workspace", v) for v in (-5, 12.5, 2**70, None, True)],
)
def test_what_an_algorithm_says_is_looked_at(what: str, value: Any) -> None:
    trace = step((2, 4, 9, 9), (8, 4, 3, 3), (2, 8, 9, 9))
    odd = {"time": 1.0, "workspace": 1} | {what: value}
    with pytest.raises((ValueError, TypeError), match=rf"^op 0 .* \(buffers 0, 1 to 2\): odd: {what}: "):
        add(trace, by_hand(("odd", odd["time"], odd["workspace"])))


def test_what_is_no_table_or_no_op_of_the_trace_is_said_so() -> None:
    trace: Any = step((2, 4, 9, 9), (8, 4, 3, 3), (2, 8, 9, 9))
    with pytest.raises(TypeError, match=r"table: .* must be a list of Algorithm"):
        add(trace, [3])  # type: ignore[list-item]
    with pytest.raises(IndexError, match=r"op 2: there are 2$"):
        offers(trace, 2)
    assert offers(trace, -1) == offers(trace, 1)


@pytest.mark.parametrize("rule", ["fast", "", "64MiB", -1, 0.5, True])
def test_a_rule_that_is_none_is_refused(rule: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="rule"):
        add(VGG, rule=rule)


def test_a_table_without_an_algorithm_is_one_line_that_names_op_buffers_and_shape() -> None:
    only = [BY_NAME["winograd"]]
    strided = step((8, 3, 32, 32), (64, 3, 3, 3), (8, 64, 16, 16))
    with pytest.raises(ValueError) as error:
        add(strided, only)
    told = "op 0 'convolution.default' (buffers 0, 1 to 2): the table has no algorithm for forward of 8x3x32x32"
    assert str(error.value) == f"{told} by 64x3x3x3, stride 2x2"
    with pytest.raises(ValueError, match=r"op 0 .*no algorithm of the table does with 9 B, the least is 10 B"):
        add(SMALL, by_hand(("a", 1, 10)), rule=9)
