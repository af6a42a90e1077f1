"""Timelines: the oracle lets exact ones pass and objects to any other, and its naive clock is right by hand."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import COPY, HOST, Timeline
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.check import naive
from tests.check.nets import net
from tests.conftest import objects, tiny_machine
from tests.strategies import steps, traces


def placed_net() -> tuple[Trace, Placement, Timeline, Machine]:
    machine = tiny_machine()
    _, swapped = net()
    swapped = Trace(swapped.buffers, replace(swapped.ops, duration=np.where(swapped.ops.of >= 0, 5, -1)))
    placement = best_fit(swapped, alignment=1)
    return swapped, placement, simulate(swapped, machine, placement), machine


def test_a_timeline_must_be_exact() -> None:
    trace, placement, line, machine = placed_net()
    duration = machine.durations(trace)
    check.timeline(trace, line, duration, placement=placement)
    for i in range(trace.n):
        for shift in (-1, 1):
            start, end = line.start.copy(), line.end.copy()
            start[i] += shift
            end[i] += shift
            with objects("start", f"op {i}: starts"):
                check.timeline(trace, replace(line, start=start, end=end), duration, placement=placement)
    with objects("duration", "op 2: takes"):
        check.timeline(trace, line, duration + (np.arange(trace.n) == 2), placement=placement)
    with objects("makespan", "makespan"):
        check.timeline(trace, replace(line, makespan=line.makespan + 1), duration, placement=placement)
    with objects("wait", "waits"):
        check.timeline(trace, replace(line, wait=line.wait + 1), duration, placement=placement)
    for i in range(trace.n):
        with objects("cause", f"op {i}: waits .* the naive clock says (none|copy or data or memory)"):
            cause = np.where(np.arange(trace.n) == i, np.where(line.wait == 0, COPY, HOST), line.cause)
            check.timeline(trace, replace(line, cause=cause), duration, placement=placement)


def test_a_timeline_must_be_issued_as_its_hosts_can() -> None:
    trace, placement, _, machine = placed_net()
    duration, host_costs = machine.durations(trace), np.full(trace.n, 3)
    line = simulate(trace, machine.with_(host_ns=3, copy_host_ns=3), placement)
    check.timeline(trace, line, duration, placement=placement, host_costs=host_costs)
    with objects("issue", "the host is on, the naive clock says it is not"):
        check.timeline(trace, line, duration, placement=placement)
    with objects("issue", "the host is off, the naive clock says it is not"):
        check.timeline(trace, replace(line, issued=None), duration, placement=placement, host_costs=host_costs)
    assert line.issued is not None
    with objects("issue", "op 0: issues .* ns, the naive clock says"):
        check.timeline(
            trace, replace(line, issued=line.issued - 1), duration, placement=placement, host_costs=host_costs
        )
    late = np.flatnonzero(line.cause == HOST)
    with objects("cause", f"op {late[0]}: .* cause 'copy', the naive clock says host"):
        cause = np.where(line.cause == HOST, COPY, line.cause)
        check.timeline(trace, replace(line, cause=cause), duration, placement=placement, host_costs=host_costs)


def test_a_timeline_of_another_clock_is_refused() -> None:
    trace, placement, line, machine = placed_net()
    duration = machine.durations(trace)
    free = simulate(trace, machine)
    assert free.makespan < line.makespan
    with objects("start", "the naive clock says"):
        check.timeline(trace, free, duration, placement=placement)
    with objects("capacity", "op 0: the live bytes exceed the capacity of 7 bytes"):
        check.timeline(trace, line, duration, capacity=7)


def test_a_timeline_that_does_not_repeat_is_seen() -> None:
    # op 0 runs ahead of op 1 by another 10 ns in each iteration; see the next test
    ops = Ops.make([[], [0]], [[0], []], duration=[10, 20], stream=[0, 1], streams=["a", "b"])
    trace = Trace(Buffers.make([4], [0], [2]), ops)
    start, end, none = np.array([0, 10]), np.array([10, 30]), np.zeros(2, np.int64)
    line = Timeline(start, end, wait=np.array([0, 10]), cause=none, makespan=20, first=0, cycle=1, stalls={})
    with objects("cycle", "op 0: does not repeat after 1 iterations from iteration 0") as found:
        check.timeline(trace, line, trace.ops.duration)
    assert found.value.ops == (0,)


def test_the_naive_clock_by_hand() -> None:
    # two streams, one buffer of 4 bytes made by op 0 (10 ns) and read by op 1 (20 ns) on the other stream:
    # free      a 0..10 10..20 20..30     b 10..30 30..50 50..70      a fresh buffer each iteration
    # placed    a 0..10 30..40 60..70     b 10..30 40..60 70..90      the same bytes: a waits for b
    ops = Ops.make([[], [0]], [[0], []], duration=[10, 20], stream=[0, 1], streams=["a", "b"])
    trace = Trace(Buffers.make([4], [0], [2]), ops)
    start, end = check.naive_clock(trace, trace.ops.duration, iterations=3)
    assert start.tolist() == [[0, 10], [10, 30], [20, 50]]
    assert end.tolist() == [[10, 30], [20, 50], [30, 70]]
    start, _ = check.naive_clock(trace, trace.ops.duration, placement=Placement.at(trace, [0]), iterations=3)
    assert start.tolist() == [[0, 10], [30, 40], [60, 70]]
    # capacity 4: the same, since the bytes come back when b has read them; 8: one iteration ahead
    start, _ = check.naive_clock(trace, trace.ops.duration, capacity=4, iterations=3)
    assert start.tolist() == [[0, 10], [30, 40], [60, 70]]
    start, _ = check.naive_clock(trace, trace.ops.duration, capacity=8, iterations=4)
    assert start.tolist() == [[0, 10], [10, 30], [30, 50], [50, 70]]


@given(st.one_of(traces(max_ops=8), steps()), st.data())
def test_the_clock_waits_for_all_that_every_pair_of_buffers_says(trace: Trace, data: st.DataObject) -> None:
    host = trace.buffers.host
    at = np.array([-1 if away else data.draw(st.integers(0, 12)) for away in host], np.int64)
    duration = np.array(data.draw(st.lists(st.integers(0, 9), min_size=trace.n, max_size=trace.n)), np.int64)
    for placement in (None, Placement(at, 2**40)):
        start, _ = check.naive_clock(trace, duration, placement=placement, iterations=4)
        assert start.tolist() == naive.clock(trace, duration, placement, 4).tolist()


def test_the_clock_of_a_chain_at_two_addresses_takes_some_bytes_for_each_op() -> None:
    n = 1000  # all that share an address conflict; each of their pairs once took 19 bytes, and its row another pass
    ops = Ops.make([[i - 1] if i else [] for i in range(n)], [[i] for i in range(n)], duration=[5] * n)
    trace = Trace(Buffers.make([8] * n, range(n), [min(i + 2, n) for i in range(n)]), ops)
    placement = Placement.at(trace, [8 * (i % 2) for i in range(n)])
    tracemalloc.start()
    try:
        check.naive_clock(trace, trace.ops.duration, placement=placement, iterations=1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2000 * n
