"""The clock against event logs worked out by hand, and against the naive clock."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.pool.smartpool.offline import best_fit, first_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.trace import COPY_IN, COPY_OUT, Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import tiny_machine
from tests.strategies import plans, traces


def log(timeline: Timeline) -> list[tuple[int, int, int, str]]:
    return [(s.start, s.end, s.wait, s.cause) for s in timeline]


def swapped(size: int = 8) -> Trace:
    """op 0 writes X, copy out; op 1 works in Y; copy in; op 2 reads X.

    Copies of 8 bytes take 7 ns out and 4 ns in on the tiny machine.
    """
    ops = Ops.make(
        [[], [0], [], [2], [1]],
        [[0], [2], [3], [1], []],
        name=["make X", "copy_out", "work", "copy_in", "use X"],
        duration=[10, -1, 5, -1, 6],
        stream=[0, 1, 0, 2, 0],
        streams=["compute", "d2h", "h2d"],
        role=[0, COPY_OUT, 0, COPY_IN, 0],
        of=[0, -1, 1, -1, 2],
    )
    #                          X        X again   host     Y
    buffers = Buffers.make([size, size, size, 8], [0, 3, 1, 2], [2, 5, 4, 3], host=[False, False, True, False])
    return Trace(buffers, ops)


def test_without_memory_everything_overlaps_that_may(machine: Machine) -> None:
    # compute |make X 0..10|work 10..15|      wait      |use X 21..27|
    # d2h                  |copy_out 10..17|
    # h2d                                  |copy_in 17..21|
    line = simulate(swapped(), machine)
    assert log(line)[0::2] == [(0, 10, 0, "none"), (10, 15, 0, "none"), (21, 27, 6, "copy")]
    assert log(line)[1][:2] == (10, 17)
    assert log(line)[3][:2] == (17, 21)
    assert (line.makespan, line.cycle, line.stalls) == (27, 1, {"data": 0, "copy": 6, "memory": 0})


def test_the_placed_clock_waits_for_the_bytes(machine: Machine) -> None:
    # Y lies where X was: work waits for the copy out, 10..17; X comes back beside it
    trace = swapped()
    line = simulate(trace, machine, Placement.at(trace, [0, 8, -1, 0]))
    # compute |make X 0..10| memory |work 17..22|use X 22..28|
    # d2h                  |out 10..17|
    # h2d                           |in 17..21|
    assert log(line)[0::2] == [(0, 10, 0, "none"), (17, 22, 7, "memory"), (22, 28, 0, "none")]
    assert (line.makespan, line.stalls["memory"]) == (28, 7)


def test_the_capacity_clock_waits_for_enough_bytes(machine: Machine) -> None:
    # 8 bytes: Y must wait until X has gone at 17, X for Y at 22; then op 2 for the copy in, 22..26
    line = simulate(swapped(), machine, capacity=8)
    assert [s[:2] for s in log(line)] == [(0, 10), (10, 17), (17, 22), (22, 26), (26, 32)]
    assert line.stalls == {"data": 0, "copy": 4, "memory": 7}
    # 16 bytes hold X and Y together: no wait for memory before the copy in, which is ready at 17 anyway
    assert simulate(swapped(), machine, capacity=16).makespan == 27


def test_half_duplex_copies_queue_in_issue_order() -> None:
    # two independent copies: 7 ns out from 10 on, 4 ns in; full duplex they overlap, half duplex they do not
    ops = Ops.make(
        [[], [0], [3], [2]],
        [[0], [1], [2], []],
        duration=[10, -1, -1, 1],
        stream=[0, 1, 2, 0],
        streams=["compute", "d2h", "h2d"],
        role=[0, COPY_OUT, COPY_IN, 0],
    )
    buffers = Buffers.make(
        [8] * 4, [0, 1, 2, 0], [2, 2, 4, 4], host=[False, True, False, True], persistent=[0, 0, 0, 1]
    )
    full = simulate(Trace(buffers, ops), tiny_machine())
    half = simulate(Trace(buffers, ops), tiny_machine(duplex=False))
    assert full.makespan == 11  # the copy in of an iteration overlaps the one before
    # half: make 0..10, out 10..17, in 17..21, use 21..22, and make of the next right after it
    assert half.makespan == 22
    assert half.stalls["copy"] == 11


def test_an_iteration_may_take_turns_to_repeat() -> None:
    line = simulate(swapped(), tiny_machine())
    assert line.first >= line.cycle >= 1


def test_streams_that_share_nothing_drift_apart() -> None:
    ops = Ops.make([[], []], [[], []], duration=[10, 7], stream=[0, 1], streams=["a", "b"])
    line = simulate(Trace(Buffers.make([1], [0], [2]), ops), tiny_machine(), iterations=40)
    assert (line.makespan, line.first, line.cycle) == (10, 39, 0)
    assert simulate(Trace(Buffers.make([1], [0], [2]), ops), tiny_machine()).first == 199


def pipeline(*work: int, streams: int) -> Trace:
    """The first op makes X, the second reads it; others share nothing. Each is on a stream of its own, or the last."""
    n = len(work)
    reads, writes = [[], [0], *[[]] * (n - 2)], [[0], *[[]] * (n - 1)]
    names = [f"s{k}" for k in range(streams)]
    ops = Ops.make(reads, writes, duration=work, stream=[min(i, streams - 1) for i in range(n)], streams=names)
    return Trace(Buffers.make([8], [0], [2]), ops)


@pytest.mark.parametrize("iterations, makespan", [(1, 100), (2, 50), (4, 50), (5, 50), (10, 60), (11, 60), (40, 60)])
def test_without_a_regime_the_second_half_counts(iterations: int, makespan: int) -> None:
    # all of iterations 0..k has ended at max(100 + 50 k, 60 (k + 1)): the two streams are behind first, then the third
    line = simulate(pipeline(50, 50, 60, streams=3), tiny_machine(), iterations=iterations)
    assert (line.makespan, line.first, line.cycle, line.gain) == (makespan, iterations - 1, 0, 0)
    assert line.stalls == {"data": 0, "copy": 0, "memory": 0}
    ended = [max(100 + 50 * k, 60 * (k + 1)) for k in range(iterations)]
    last = iterations - 1
    assert not last or makespan == round((ended[last] - ended[last // 2]) / (last - last // 2))


def test_stalls_are_those_of_the_regime() -> None:
    # op 1 waits 60 ns for the first X and then, as long as op 0 takes, 10 ns for each: 60..110, 120..170
    line = simulate(pipeline(60, 50, streams=2), tiny_machine())
    assert (line.makespan, line.first, line.cycle, line.stalls["data"]) == (60, 1, 1, 10)
    assert [span.start for span in line] == [0, 60] and [span.wait for span in line] == [0, 10]


@pytest.mark.parametrize("size, start", [(8, 40), (1, 40), (0, 0)])
@pytest.mark.parametrize("how", ["reads", "writes"])
def test_who_touches_a_buffer_waits_for_its_bytes_though_another_op_began_it(size: int, start: int, how: str) -> None:
    # A: op 0 makes it, op 1 reads it until 40. B begins with op 2, whose own bytes C must wait for A, if B has none;
    # op 3, on a stream of its own, is the first to touch B
    more = 8 if size == 0 else 0
    touches = {"reads": [[], [0], [], []], "writes": [[0], [], [], []]}
    touches[how][3] = [1]
    ops = Ops.make(**touches, duration=[10, 30, 5, 2], stream=[0, 1, 0, 2], streams=["a", "b", "c"])
    trace = Trace(Buffers.make([8, size, more], [0, 2, 2], [2, 4, 3]), ops)
    line = simulate(trace, tiny_machine(), capacity=8, iterations=1)
    assert log(line)[:3] == [(0, 10, 0, "none"), (10, 40, 10, "data"), (40, 45, 30, "memory")]
    assert log(line)[3] == (start, start + 2, start, "memory" if start else "none")


def test_ops_of_no_time_take_none(machine: Machine) -> None:
    for iterations in (1, 2, 10):
        assert simulate(pipeline(0, 0, streams=2), machine, iterations=iterations).makespan == 0


def test_the_only_buffer_is_waited_for_too(machine: Machine) -> None:
    # X is there for 10 + 20 ns; op 0 cannot make another one beside it, though its stream is free at 10
    for capacity, makespan in ((8, 30), (15, 30), (16, 20), (None, 20)):
        assert simulate(pipeline(10, 20, streams=2), machine, capacity=capacity).makespan == makespan


@given(st.data())
def test_the_placed_clock_is_the_naive_one(data: st.DataObject) -> None:
    trace = data.draw(traces(max_ops=8))
    if data.draw(st.booleans()):
        trace = data.draw(plans(trace)).apply(trace)
    machine = tiny_machine(duplex=data.draw(st.booleans()))
    placement = data.draw(st.sampled_from([best_fit, first_fit]))(trace, alignment=data.draw(st.sampled_from([1, 4])))
    line = simulate(trace, machine, placement, iterations=60)
    check.timeline(trace, line, machine.durations(trace), placement=placement, duplex=machine.duplex)


@given(st.data())
def test_the_capacity_clock_is_the_naive_one(data: st.DataObject) -> None:
    trace = data.draw(traces(max_ops=8))
    if data.draw(st.booleans()):
        trace = data.draw(plans(trace)).apply(trace)
    machine = tiny_machine(duplex=data.draw(st.booleans()))
    capacity = trace.peak_live_bytes + data.draw(st.sampled_from([0, 0, 1, 5, 1000]))
    line = simulate(trace, machine, capacity=capacity, iterations=60)
    check.timeline(trace, line, machine.durations(trace), capacity=capacity, duplex=machine.duplex)


@given(traces())
def test_memory_only_ever_delays(trace: Trace) -> None:
    machine = tiny_machine()
    free = simulate(trace, machine, iterations=60)
    tight = simulate(trace, machine, capacity=trace.peak_live_bytes, iterations=60)
    assert tight.makespan >= free.makespan


@given(traces(streams=1))
def test_one_stream_is_the_sum_of_its_durations(trace: Trace) -> None:
    line = simulate(trace, tiny_machine(), capacity=trace.peak_live_bytes)
    assert line.makespan == trace.ops.duration.sum()
    assert not any(line.stalls.values())


@given(st.data())
def test_stalls_and_work_fill_the_iteration(data: st.DataObject) -> None:
    trace = data.draw(traces(streams=1))
    swapped = data.draw(plans(trace)).apply(trace)
    line = simulate(swapped, tiny_machine(), capacity=swapped.peak_live_bytes)
    if line.cycle:
        assert abs(sum(line.stalls.values()) + trace.ops.duration.sum() - line.makespan) <= 2  # rounding of means


def test_what_cannot_be_simulated_is_refused(machine: Machine) -> None:
    trace = swapped()
    with pytest.raises(ValueError, match="no ops"):
        simulate(Trace.from_lifetimes([1], [0], [1]), machine)
    with pytest.raises(ValueError, match="not both"):
        simulate(trace, machine, best_fit(trace), capacity=100)
    with pytest.raises(ValueError, match="op 0: the live bytes are 8 B, the capacity 7 B"):
        simulate(trace, machine, capacity=7)
    with pytest.raises(ValueError, match="iterations: 0"):
        simulate(trace, machine, iterations=0)
    assert simulate(trace, machine, capacity=8, iterations=1).first == 0
