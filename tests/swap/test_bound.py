"""The certified bound: no plan beats it, however made; whole machines by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from gpumem.base import work
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap._solver_process import answer
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.bound import Bound, least_stall, zero_stall_limit
from gpumem.swap.facts.limits import floor
from gpumem.swap.fluid import refine, relax
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.search.planner import lowest
from gpumem.trace import F64, Buffers, Ops, Trace
from gpumem.trace.kinds import INPUT, PARAM
from tests.nets import GTX
from tests.strategies import any_plans, machine_of, plans, steps, traces
from tests.swap.nets import line


def stall(trace: Trace, target: Machine, swapped: Trace, capacity: int) -> float:
    """Nanoseconds that an iteration takes longer, less the rounding of its mean."""
    return simulate(swapped, target, capacity=capacity).makespan - simulate(trace, target).makespan + 0.5


def fractions(trace: Trace, target: Machine, limit: int) -> F64:
    """What the program of least stall swaps of each gap, and drops, at most at any breakpoint."""
    f = relax(trace, target, stalls=True, recompute=True)
    found = refine(f, trace.peak_live_bytes, limit, 4, 15_000).last
    assert found is not None
    most = np.zeros((2, len(f.w)))
    for row, column in zip(most, (found.absent, found.dropped)):
        np.maximum.at(row, found.gap, column)
    most[0] = np.minimum(most[0], 1 - most[1])  # told of whole parts: the gaps that are not dropped are swapped
    return most


@given(st.data())
def test_no_plan_runs_without_stall_below_the_bound(data: st.DataObject) -> None:
    trace = data.draw(traces(streams=data.draw(st.integers(1, 2)), max_ops=12))
    target = machine_of(data)
    bound = zero_stall_limit(trace, target)
    assert floor(trace)[1] <= bound.limit <= bound.peak_live_bytes == trace.peak_live_bytes
    swapped = data.draw(plans(trace)).apply(trace)
    capacity = max(swapped.peak_live_bytes, 1)
    if simulate(swapped, target, capacity=capacity).stalls == {"data": 0, "copy": 0, "memory": 0}:
        assert capacity >= bound.limit


@given(st.data())
def test_no_plan_stalls_less_than_the_bound(data: st.DataObject) -> None:
    trace = data.draw(traces(streams=data.draw(st.integers(1, 2)), max_ops=12))
    target = machine_of(data)
    swapped = data.draw(plans(trace)).apply(trace)
    capacity = swapped.peak_live_bytes
    assume(capacity)
    assert stall(trace, target, swapped, capacity) >= least_stall(trace, target, capacity).stall_ns


@given(st.data())
def test_nor_does_one_that_makes_values_again(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(steps(streams=1, max_layers=6), traces(streams=1, max_ops=12)))
    target = machine_of(data)
    swapped = data.draw(any_plans(trace)).apply(trace)
    capacity = swapped.peak_live_bytes
    assume(capacity)
    bound = least_stall(trace, target, capacity, recompute=True)
    assert stall(trace, target, swapped, capacity) >= bound.stall_ns
    assert bound.stall_ns <= least_stall(trace, target, capacity).stall_ns + 1


@given(st.data())
def test_nor_does_one_in_a_pool_by_the_placed_clock(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(steps(streams=1, max_layers=6), traces(streams=1, max_ops=12)))
    target = machine_of(data)
    swapped = data.draw(any_plans(trace)).apply(trace)
    placement = best_fit(swapped, alignment=1)
    assume(placement.height)
    longer = simulate(swapped, target, placement).makespan - simulate(trace, target).makespan + 0.5
    assert longer >= least_stall(trace, target, placement.height, recompute=True, placed=True).stall_ns


def test_what_is_allocated_early_is_in_nobodys_way_in_a_pool() -> None:
    """x leaves from 0 to 20, y is allocated at 10 and written from 30 on: by live bytes op 1 waits, in a pool none."""
    ops = Ops.make([[0], [], [], [], [], [], [], [0]], [[], [], [], [1], [], [], [], [0]], duration=[10] * 8)
    trace = Trace(Buffers.make([8, 8], [0, 1], [8, 4], kind=[PARAM, "activation"], persistent=[True, False]), ops)
    target = Machine("m", 100, Link(0.0, 2.5), Link(0.0, 2.5), 1.0, 1.0)
    swapped = Plan.of(trace, [Swap(0, 0, 7, 1, 4, 0)]).apply(trace)
    pool = best_fit(swapped, alignment=1)
    assert pool.height == swapped.peak_live_bytes == 8
    assert simulate(swapped, target, pool).makespan == simulate(trace, target).makespan == 80
    assert simulate(swapped, target, capacity=8).makespan == 80 + least_stall(trace, target, 8).stall_ns == 90
    assert least_stall(trace, target, 8, placed=True).stall_ns == 0


def test_while_an_op_waits_for_its_host_copies_run() -> None:
    trace, slow = bundled("mlp3"), GTX.with_(host_ns=1e6)
    sure, limit = zero_stall_limit(trace, slow), trace.peak_live_bytes * 9 // 10
    assert zero_stall_limit(trace, GTX.with_(copy_host_ns=1e6)) == zero_stall_limit(trace, GTX)  # makes plans slower
    line = simulate(autoswap(trace, slow, limit, peaks="all", threshold=1).apply(trace), slow, capacity=limit)
    assert line.overhead(simulate(trace, slow)) == 0.0
    assert sure.limit == floor(trace)[1] <= limit < zero_stall_limit(trace, GTX).limit
    assert least_stall(trace, slow, limit).stall_ns == 0 < least_stall(trace, GTX, limit).stall_ns


@given(st.data())
def test_the_planners_keep_to_the_bound(data: st.DataObject) -> None:
    trace = data.draw(traces(streams=1, max_ops=12))
    target = machine_of(data)
    _, limit = lowest(trace, target, stall=0, effort=1e-5)
    assert limit >= zero_stall_limit(trace, target).limit
    assume(trace.peak_live_bytes > 1)
    limit = data.draw(st.integers(1, trace.peak_live_bytes - 1))
    try:
        swapped = autoswap(trace, target, limit, peaks="all", threshold=1).apply(trace)
    except (Infeasible, NotReached):
        return
    assert stall(trace, target, swapped, limit) >= least_stall(trace, target, limit).stall_ns


@pytest.mark.parametrize(
    "ns_per_byte, limit",
    [
        (1.0, 8),  # out 10..18, in 32..40: X is off the device while Y is there
        (1.25, 8),  # out 10..20, in 30..40: just so
        (1.5, 16),  # out 10..22: too late for op 2
    ],
)
def test_whole_copies_by_hand(ns_per_byte: float, limit: int) -> None:
    link = Link(0.0, ns_per_byte)
    target = Machine("m", 100, link, link, 1.0, 1.0)
    bound = zero_stall_limit(line(), target)
    assert bound.limit == limit and bound.has_converged


def test_settled_is_a_bool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("gpumem.swap.fluid.refine"), "PATIENCE", 0)  # then it ends by what is missing
    trace = bundled("mlp3")
    assert type(least_stall(trace, GTX, trace.peak_live_bytes * 93 // 100, rounds=8).has_converged) is bool


def test_a_stall_by_hand() -> None:
    link = Link(0.0, 2.0)  # 16 ns a copy: out 10..26, op 2 26..36, in 36..52, op 4 from 52 instead of 40 on
    target = Machine("m", 100, link, link, 1.0, 1.0)
    bound = least_stall(line(), target, 8)
    assert bound.stall_ns == 12 and bound.has_converged
    assert least_stall(line(), target, 16).stall_ns == 0


@pytest.mark.thorough
def test_half_duplex_raises_the_bound() -> None:
    trace = bundled("resnet18")
    both, one = (zero_stall_limit(trace, GTX.with_(duplex=duplex), rounds=2) for duplex in (True, False))
    assert both.limit < one.limit < trace.peak_live_bytes


def test_several_streams_leave_the_static_bound() -> None:
    trace = line()
    ops = Ops.make(
        trace.ops.reads, trace.ops.writes, duration=trace.ops.duration, stream=[0, 1, 0, 0, 0], streams=["a", "b"]
    )
    bound = zero_stall_limit(Trace(trace.buffers, ops), GTX)
    assert (bound.limit, bound.breakpoints, bound.has_converged) == (8, 0, False)


def test_a_value_made_again_by_hand() -> None:
    link = Link(0.0, 1e4)  # hopeless: op 0 runs once more, but for what a fluid copies meanwhile
    target = Machine("m", 100, link, link, 1.0, 1.0)
    bound = least_stall(line(), target, 8, recompute=True)
    assert bound.stall_ns == 9 and bound.has_converged
    swapped, dropped = fractions(line(), target, 8)
    assert len(swapped) == 1
    assert 0 < swapped[0] < 0.01 and 0.99 < dropped[0] <= 1 - swapped[0] + 1e-9


def test_an_op_that_runs_again_is_shared_by_what_it_makes() -> None:
    link = Link(0.0, 1e4)
    target = Machine("m", 100, link, link, 1.0, 1.0)
    ops = Ops.make([[], [], [2], [], [0, 1]], [[0, 1], [], [2], [], []], duration=[10] * 5)
    trace = Trace(Buffers.make([6, 2, 8], [0, 0, 2], [5, 5, 3]), ops)
    assert least_stall(trace, target, 8, recompute=True).stall_ns == 9  # op 0 brings both back
    assert least_stall(trace, target, 10, recompute=True).stall_ns == 7  # the larger one, in fractions


def test_what_cannot_be_made_again_is_swapped() -> None:
    link = Link(0.0, 2.0)
    target = Machine("m", 100, link, link, 1.0, 1.0)
    trace = line()
    for kind in (INPUT, PARAM):
        fixed = Trace(replace(trace.buffers, kind=(kind, "")), trace.ops)
        swapped, dropped = fractions(fixed, target, 8)
        assert (dropped == 0).all() and swapped.max() > 0.9
        assert least_stall(fixed, target, 8, recompute=True).stall_ns == 12


def test_below_the_floor_is_infeasible() -> None:
    with pytest.raises(Infeasible):
        least_stall(line(), GTX, 7)


@pytest.mark.filterwarnings("error")
def test_ops_that_take_no_time_stall_for_all_of_their_copies() -> None:
    still = replace(line(), ops=replace(line().ops, duration=np.zeros(5, np.int64)))
    target = Machine("m", 100, Link(0.0, 2.0), Link(0.0, 2.0), 1.0, 1.0)
    assert least_stall(still, target, 8).stall_ns == 32  # 16 ns out, 16 ns in
    assert least_stall(still, target, 8, recompute=True).stall_ns == 0  # op 0 is recomputed in no time
    assert zero_stall_limit(still, target).limit == 16


def bounds(trace: Trace, target: Machine, seconds: float | None = None) -> list[float]:
    """Every bound, as numbers that grow as it gets tighter."""
    limit, how = trace.peak_live_bytes * 9 // 10, {"rounds": 4, "seconds": seconds}
    stalls = [least_stall(trace, target, limit, recompute=again, **how).stall_ns for again in (False, True)]
    return [zero_stall_limit(trace, target, **how).limit, *stalls]


@pytest.mark.parametrize("looks", [0, 1, 2, 3, 5, 8, 13, 100, 400])
def test_what_is_certified_by_the_deadline_is_a_bound(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    trace = bundled("mlp3")
    whole, clock = bounds(trace, GTX), [0]

    def now() -> float:  # each look at the clock takes a second
        clock[0] += 1
        return float(clock[0])

    monkeypatch.setattr(work, "now", now)
    monkeypatch.setattr(work, "LEAST", 60.0)  # the solver's own clock is another one
    monkeypatch.setattr("gpumem.swap.linear_programs.ask", partial(answered, clock, looks))
    early = bounds(trace, GTX, looks + 0.5)
    static = [floor(trace)[1], 0, 0]
    assert all(low <= one <= high for low, one, high in zip(static, early, whole))
    if looks == 0:
        assert early == static
    if looks == 400:
        assert early[0] > static[0] and early[1] > 0


def answered(clock: list[int], looks: int, question: dict[str, Any], **more: float) -> Any:
    """Solve a program in no time, unless the time is up."""
    return None if work.over() else answer({**question, "sides": {**question["sides"], "options": {}}})


def test_a_bound_that_had_no_time_is_the_trivial_one() -> None:
    trace = bundled("vgg16")
    assert zero_stall_limit(trace, GTX, seconds=1e-9) == Bound(floor(trace)[1], 0, trace.peak_live_bytes, 0, False)
    limit = trace.peak_live_bytes // 2
    assert least_stall(trace, GTX, limit, seconds=1e-9) == Bound(limit, 0, trace.peak_live_bytes, 0, False)
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^seconds: .* must be positive and finite"):
            zero_stall_limit(trace, GTX, seconds=seconds)
        with pytest.raises(ValueError, match=r"^seconds: .* must be positive and finite"):
            least_stall(trace, GTX, limit, seconds=seconds)


@pytest.mark.thorough
def test_the_bound_of_vgg16() -> None:
    trace = bundled("vgg16")
    told: list[str] = []
    bound = zero_stall_limit(trace, GTX, progress=told.append)
    assert 0.585 < bound.limit / trace.peak_live_bytes < 0.6 and told[-1].endswith("of the peak")
    assert zero_stall_limit(trace, GTX, rounds=1).limit <= bound.limit
