"""Iterations are found, planned for, followed, left and found again; and the report has a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gpumem.runtime import Adaptive, InMemory, OnClock
from gpumem.swap.plan import Hold, Plan
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.lifetimes import tails, used, without_idle
from tests.runtime.programs import CLOCK, begin, short, step, told


def test_found_planned_followed_deviated_and_found_again() -> None:
    device = short(OnClock(CLOCK), 500, wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    step(device, weights, size=50)  # a last batch that is shorter
    for _ in range(4):
        step(device, weights)
    marks = [(e.kind, e.op) for e in device.log if e.kind in ("found", "planned", "deviated", "resumed")]
    kinds = [kind for kind, _ in marks]
    assert kinds[:2] == ["found", "planned"] and marks[0][1] == marks[1][1] <= 4 + 3 * 8
    assert "deviated" in kinds and "resumed" in kinds[kinds.index("deviated") :]
    device.close()
    rows = device.report().iterations
    steady = [b for a, b in pairwise(rows) if a.state == b.state == "planned"]
    assert len(steady) >= 4 and all(row.misses == 0 == row.evictions for row in steady)
    assert any(row.deviation for row in rows)


def crossed(device: Any, weights: list[int], order: Sequence[int]) -> None:
    """An iteration whose ops look the same in any order."""
    made = [device.malloc(100) for _ in order]
    for x, w in zip(made, 2 * weights):
        device.exec("forward", [w], [x], duration=50)
    for k in order:
        w = weights[k % len(weights)]
        device.exec("backward", [made[k], w], [w], duration=50)
    for x in made:
        device.free(x)


def test_ops_that_look_as_planned_on_other_blocks_are_planned_for_anew() -> None:
    device = short(OnClock(CLOCK), 600, wait=True)
    weights = begin(device, 3)
    for k in range(20):
        crossed(device, weights, (5, 4, 3, 2, 1, 0) if k < 6 else range(6))
    assert [e.kind for e in device.log if e.kind in ("planned", "deviated")] == ["planned", "planned"]
    rows = device.report().iterations
    assert rows[7].misses > 0 and all(row.misses == 0 == row.evictions for row in rows[-4:])


def test_misses_that_planning_anew_does_not_avoid() -> None:
    """A plan that is none: what it finds away is no reason to plan for the same iteration again and again."""
    device = short(OnClock(CLOCK), 500, wait=True)
    weights = begin(device)
    for _ in range(5):
        step(device, weights)
    follower = device._loop.phase.follower
    assert follower is not None
    follower.at[:] = [None] * len(follower.at)
    for _ in range(20):
        step(device, weights)
    rows = device.report().iterations
    assert rows[-2].state == "planned" and rows[-2].misses > 0
    assert [e.kind for e in device.log].count("planned") == 1 and device._loop.phase.iterations is None


def test_an_op_that_raises_is_none_of_those_that_tell_where_an_iteration_begins() -> None:
    def fails(stream: object, *arrays: Any) -> None:
        raise KeyError

    device = short(InMemory(), 500, wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    device.exec("odd", weights[:1])
    for _ in range(2):
        with pytest.raises(KeyError):
            device.exec("forward", weights[:1], weights[1:2], call=fails)
        step(device, weights)
    marks = [e.kind for e in device.log if e.kind in ("deviated", "resumed")]
    assert marks == ["deviated", "resumed"]


def test_an_op_that_is_called_like_the_end_of_a_call() -> None:
    device = short(OnClock(CLOCK), 500, wait=True)
    weights = begin(device)
    for _ in range(6):
        made = [device.malloc(100) for _ in weights]
        for w, x in zip(weights, made):
            device.exec("leave", [w], [x], duration=50)
        for w, x in zip(weights[::-1], made[::-1]):
            device.exec("backward", [x, w], [w], duration=50)
            device.free(x)
    assert [e.kind for e in device.log if e.kind in ("planned", "deviated")] == ["planned"]


def test_branches_that_alternate_are_one_iteration() -> None:
    device = short(OnClock(CLOCK), 500, wait=True)
    weights = begin(device)
    for k in range(20):
        step(device, weights, size=100 - 40 * (k % 2))
    device.close()
    report = device.report()
    assert report.trace is not None and report.trace.n == 16
    assert report.iterations[-2].state == "planned" and report.iterations[-2].ops == 16


def test_within_the_limit_nothing_is_planned() -> None:
    device = short(InMemory(), "1MiB", wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    device.close()
    report = device.report()
    assert report.plan is None and {row.state for row in report.iterations} == {"native", "idle"}


def test_a_part_of_a_peak_that_nobody_knows_yet() -> None:
    device = short(InMemory(), "70%", wait=True)
    assert "70%" in repr(device)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    assert device.report().limit == 560  # of 4 weights and 4 activations
    assert [row.peak > 560 for row in device.report().iterations] == [True] * 3 + [False] * 4


def test_on_demand_for_good() -> None:
    device = short(InMemory(), 500, planner="on-demand", wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    device.close()
    rows = device.report().iterations
    assert device.report().plan is None and {row.state for row in rows[1:]} == {"on demand"}


def test_an_iteration_lies_between_two_writes_of_an_input() -> None:
    """The thesis' test, which compares tensors by what they are: a program whose blocks stay."""
    device = Adaptive(InMemory(), 300, planner="heuristic", detect="writes", wait=True)
    x, y, z, w = (device.malloc(100) for _ in range(4))
    for k in range(6):
        device.write(x, np.full(100, k, np.uint8))
        for one, other in ((x, y), (y, z), (z, w)):
            device.exec("next", [one], [other], call=lambda stream, a, b: np.add(a, 1, out=b))
    first = next(e for e in device.log if e.kind == "found")
    assert (first.op, first.what) == (8, "4 ops")  # when the third iteration's input is about to be written
    assert device.read(w)[0] == 8


def test_a_plan_where_blocks_are_kept_for_longer_than_they_are_used() -> None:
    """Everything is freed at the end of the iteration only: no swap gets below the limit, unless dead tails go."""
    device = short(OnClock(CLOCK), 320, wait=True)
    w = device.malloc(100)
    device.write(w, b"1")
    for _ in range(6):
        chain = [w, *(device.malloc(100) for _ in range(5))]
        for one, other in pairwise(chain):
            device.exec("next", [one], [other], duration=100)
        for x in chain[1:]:
            device.free(x)
    device.close()
    report = device.report()
    assert report.plan is not None and any(isinstance(d, Hold) for d in report.plan.decisions)
    planned = [row for row in report.iterations if row.state == "planned"]
    assert len(planned) >= 2 and all(row.evictions == 0 == row.misses for row in planned[1:])


def test_what_is_used_of_a_trace() -> None:
    ops = Ops.make([[], [0], [], [3]], [[0], [], [2], []])
    trace = Trace(Buffers.make([8, 4, 2, 1], [0, 0, 2, 0], [4, 4, 5, 4], persistent=[False, True, False, True]), ops)
    some = without_idle(trace)
    assert some.buffers.size.tolist() == [8, 2, 1] and some.ops.reads.tolist() == [[], [0], [], [2]]
    short = used(some)
    assert short.buffers.end.tolist() == [2, 3, 4] and short.buffers.persistent.tolist() == [False, False, True]
    assert tails(some, short, 9) == [0, 1] and tails(some, short, 11) == []
    assert Plan.of(short).apply(short).peak_live_bytes == 9


def test_rows_are_the_sums_of_the_log() -> None:
    device = short(OnClock(CLOCK), "60%", wait=True)
    weights = begin(device)
    for k in range(9):
        step(device, weights, size=100 if k < 5 else 60)
        if k == 6:
            device.exec("odd", weights[:1], duration=1)
    device.close()
    rows = device.report().iterations
    assert any(row.deviation for row in rows) and sum(row.ops for row in rows) == len(told(device, "op"))
    for kind, sums in (("out", [row.moved_out for row in rows]), ("in", [row.moved_in for row in rows])):
        assert sum(sums) == sum(entry.size for entry in device.log if entry.kind == kind)
