"""Memory over the time of an iteration, against all events of several iterations one by one, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.io import bundled
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import hosted, simulate
from gpumem.simulator.timeline import FREED, Span, Timeline
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.strategies import plans, steps, traces


def naive(trace: Trace, line: Timeline, freed: str) -> list[tuple[int, int]]:
    """What is held after each op has taken, and after it has given back, in the iteration shown, neighbours counted."""
    assert line.issued is not None
    period = line.makespan if freed == "completed" else line.makespan - line.gain
    touches: list[list[int]] = [[] for _ in trace.buffers]
    for op in trace.ops:
        for j in {*op.reads, *op.writes}:
            touches[j].append(op.id)
    longest = int(line.end.max() - line.issued.min()) // max(period, 1)
    events: dict[tuple[int, int, bool], int] = {}  # when, at which op of all iterations, takes or gives back: bytes
    for k in range(-longest - 3, longest + 4):
        now = k * period
        for b in trace.buffers:
            if b.space == "host" or b.size == 0 or (b.persistent and b.end - b.start == trace.n):
                continue
            last = max([(i - b.start) % trace.n for i in touches[b.id]], default=b.end - b.start - 1) + b.start
            ends = []
            for i in touches[b.id] or [last % trace.n]:
                over = (b.start + (i - b.start) % trace.n >= trace.n) * period
                ends.append(int(line.end[i]) + over + now)
            issued = int(line.issued[last % trace.n]) + (last >= trace.n) * period + now
            take = int(line.issued[b.start]) + now, k * trace.n + b.start, False
            give = (issued if freed == "scheduled" else max(ends)), k * trace.n + last, True
            events[take] = events.get(take, 0) + b.size
            events[give] = events.get(give, 0) - b.size
    held, rows = (
        sum(b.size for b in trace.buffers if b.persistent and b.space == "device" and b.end - b.start == trace.n),
        [],
    )
    before = held
    for (when, op, _), change in sorted(events.items()):
        held += change
        if period == 0 and not 0 <= op < trace.n:
            before = held if op < 0 else before
        elif when < 0:
            before = held
        elif when < max(period, 1):
            rows.append((when, held))
    return rows if rows and rows[0][0] == 0 else [(0, before), *rows]


@st.composite
def handed(draw: st.DrawFn, trace: Trace) -> Trace:
    """The trace with ops of up to three hosts, some of them blocking."""
    n, count = trace.n, draw(st.integers(1, 3))
    host = draw(st.lists(st.integers(0, count - 1), min_size=n, max_size=n))
    blocking = draw(st.lists(st.integers(0, 4).map(lambda k: k == 0), min_size=n, max_size=n))
    hosts = tuple(f"host{k}" for k in range(count))
    ops = replace(trace.ops, host=np.array(host), hosts=hosts, blocking=np.array(blocking))
    return replace(trace, ops=ops)


@given(st.data())
def test_memory_over_time_is_the_naive_one(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(traces(max_ops=8), steps()))
    if data.draw(st.booleans()):
        trace = data.draw(plans(trace)).apply(trace)
    trace = data.draw(handed(trace))
    costs = {"host_ns": data.draw(st.sampled_from([0, 3, 30])), "copy_host_ns": data.draw(st.sampled_from([0, 9]))}
    machine = replace(tiny_machine(duplex=data.draw(st.booleans())), **costs)
    capacity = data.draw(st.sampled_from([None, trace.peak_live_bytes]))
    sync = data.draw(st.booleans()) or not hosted(trace, machine)
    line = simulate(trace, machine, capacity=capacity, sync=sync, iterations=40)
    host_costs = machine.host_costs(trace)
    check.timeline(
        trace,
        line,
        machine.durations(trace),
        duplex=machine.duplex,
        capacity=capacity,
        host_costs=host_costs,
        sync=sync,
    )
    for freed in (FREED if not line.gain else FREED[:1]) if line.cycle == 1 else ():
        time, held = line.memory_over_time(trace, freed)
        assert time.dtype == held.dtype == np.int64
        assert [*zip(time.tolist(), held.tolist())] == naive(trace, line, freed)
        assert time[0] == 0 and (np.diff(time) >= 0).all() and time[-1] < max(line.makespan, 1)
    peak = int(line.memory_over_time(trace)[1].max())
    tails = trace.buffers.start + trace.last_touch() + 1 < trace.buffers.end
    if line.cycle == 1:
        assert peak <= trace.peak_live_bytes
        if not (tails & (trace.last_touch() >= 0) & ~trace.eternal & ~trace.buffers.host).any():
            assert peak == trace.peak_live_bytes


def two() -> Trace:
    """op 0 makes A (8), op 1 makes B (4) from it, op 2 reads B, with a workspace W (16) of its own."""
    ops = Ops.make([[], [0], [1]], [[0], [1], [2]], duration=[10, 20, 30])
    return Trace(Buffers.make([8, 4, 16], [0, 1, 2], [2, 3, 3]), ops)


def steps_of(line: Timeline, trace: Trace, freed: str) -> list[tuple[int, int]]:
    time, held = line.memory_over_time(trace, freed)
    return [*zip(time.tolist(), held.tolist())]


def test_by_hand() -> None:
    # issued 0, 5, 10; run 0..10, 10..30, 30..60; the host waits for the last op, and launches again 5 ns later
    trace, line = two(), simulate(two(), replace(tiny_machine(), host_ns=5))
    assert line.issued is not None and line.issued.tolist() == [0, 5, 10] and line.makespan == 65
    assert steps_of(line, trace, "scheduled") == [(0, 8), (5, 12), (5, 4), (10, 20), (10, 0)]
    assert steps_of(line, trace, "completed") == [(0, 8), (5, 12), (10, 28), (30, 20), (60, 0)]


def test_what_has_ended_is_given_back_before_a_later_op_takes_at_that_instant() -> None:
    # each op blocks, so that it is issued when the one before has ended: 0..10, 10..30, 30..60, and op 1 reads nothing
    ops = Ops.make([[], [], [1]], [[0], [1], [2]], duration=[10, 20, 30], blocking=[True] * 3)
    trace = replace(two(), ops=ops)
    line = simulate(trace, tiny_machine())
    assert line.issued is not None and line.issued.tolist() == [0, 10, 30]
    assert steps_of(line, trace, "completed") == [(0, 0), (0, 8), (10, 0), (10, 4), (30, 20)]
    assert steps_of(line, trace, "scheduled") == [(0, 8), (0, 0), (10, 4), (30, 20), (30, 0)]


def test_lifetimes_longer_than_an_iteration_count_as_often_as_they_overlap() -> None:
    trace = two()
    line = simulate(trace, replace(tiny_machine(), host_ns=5))
    assert line.issued is not None
    late = replace(line, end=line.end + 2 * line.makespan)  # what this iteration takes comes back two later
    assert steps_of(late, trace, "completed") == [
        (when, held + 2 * 28) for when, held in steps_of(line, trace, "completed")
    ]


def test_what_is_held_at_the_start_is_what_the_iteration_before_left() -> None:
    trace = two()
    line = simulate(trace, replace(tiny_machine(), host_ns=5))
    assert line.issued is not None
    late = replace(line, issued=line.issued + 1, end=line.end + 1)
    assert steps_of(late, trace, "scheduled") == [(0, 0), (1, 8), (6, 12), (6, 4), (11, 20), (11, 0)]
    assert steps_of(late, trace, "completed") == [(0, 0), (1, 8), (6, 12), (11, 28), (31, 20), (61, 0)]
    with pytest.raises(ValueError, match="the host gains 1 ns in every iteration"):
        replace(line, gain=1).memory_over_time(trace, "completed")
    assert replace(line, gain=1, cycle=0).memory_over_time(trace, "completed")[0][0] == 0


def test_where_nothing_takes_time_the_peak_is_still_there() -> None:
    trace = two()
    trace = replace(trace, ops=replace(trace.ops, duration=np.zeros(3, np.int64)))
    line = simulate(trace, tiny_machine(), sync=True)
    assert line.makespan == 0
    for freed in FREED:
        assert max(held for _, held in steps_of(line, trace, freed)) == trace.peak_live_bytes == 20


def test_a_trace_without_buffers_to_take_is_flat() -> None:
    trace = Trace(Buffers.make([8], [0], [1], persistent=[True]), Ops.make([[0]], [[]], duration=[10]))
    line = simulate(trace, tiny_machine(), sync=True)
    assert steps_of(line, trace, "completed") == [(0, 8)]


def test_what_memory_over_time_cannot_say() -> None:
    trace, machine = bundled("mlp3"), Machine.named("p100")
    with pytest.raises(ValueError, match=r"the host is off, .* sync=True, or on a machine with host_ns"):
        simulate(trace, machine).memory_over_time(trace)
    line = simulate(trace, machine.with_(host_ns=1), sync=False)
    assert line.gain > 0
    with pytest.raises(ValueError, match=r"the host gains .* in every iteration, so ever more is taken; .* sync=True"):
        line.memory_over_time(trace, "completed")
    assert 0 < line.memory_over_time(trace)[1].max() <= trace.peak_live_bytes
    with pytest.raises(ValueError, match=r"freed: 'complete' is unknown; .* did you mean 'completed'"):
        line.memory_over_time(trace, "complete")
    with pytest.raises(ValueError, match="timeline: "):
        line.memory_over_time(two())
    assert simulate(trace, machine.with_(host_ns=1)).gain == simulate(trace, machine).gain == 0


def test_a_host_that_gains_takes_and_gives_back_at_its_own_pace() -> None:
    line = simulate(two(), tiny_machine().with_(host_ns=1), sync=False)
    assert (line.makespan, line.gain, line.host_period) == (60, 57, 3)
    rows = steps_of(line, two(), "scheduled")
    assert sorted({time for time, _ in rows}) == [0, 1, 2]
    assert sorted(held for _, held in rows) == [0, 4, 8, 12, 20]


@given(st.data())
def test_each_host_hands_over_its_ops_in_turn(data: st.DataObject) -> None:
    trace = data.draw(handed(data.draw(traces(max_ops=8))))
    machine = replace(tiny_machine(), host_ns=data.draw(st.sampled_from([0, 3, 30])))
    line = simulate(trace, machine, sync=data.draw(st.booleans()) or not hosted(trace, machine))
    assert line.issued is not None
    costs, issued = machine.host_costs(trace).tolist(), line.issued.tolist()
    want = []
    for k in range(len(trace.ops.hosts)):
        mine = [i for i in range(trace.n) if trace.ops.host[i] == k]
        before = [issued[mine[-1]] - (line.makespan - line.gain), *(issued[i] for i in mine)] if mine else []
        want.append(
            [
                Span(i, issued[i] - costs[i], issued[i], max(issued[i] - costs[i] - last, 0), "none", issued[i])
                for i, last in zip(mine, before)
            ]
        )
    assert line.host_spans(trace) == want
    off = simulate(trace.with_blocking(False), tiny_machine())
    assert (off.issued, off.host_costs, off.gain, off.host_spans(trace)) == (None, None, 0, [])


def run(makespan: int, **columns: object) -> Timeline:
    times = [np.array(row) for row in ([0, 4], [3, 9], [0, 1], [0, 2])]
    return Timeline(*times, makespan=makespan, first=3, cycle=2, stalls={"data": 0, "copy": 1}, **columns)


def test_a_timeline_is_a_row_of_spans() -> None:
    line = run(10, issued=np.array([-2, 1]))
    assert list(line) == [Span(0, 0, 3, 0, "none", -2), Span(1, 4, 9, 1, "copy", 1)]
    assert line[-1] == line[1] and run(10)[1] == Span(1, 4, 9, 1, "copy") and len(line) == 2
    assert Span(0, 1, 2) == Span(0, 1, 2, 0, "none", None)
    with pytest.raises(IndexError, match="op 2"):
        line[2]
    with pytest.raises(ValueError, match="timeline: 2 ops, but trace 'random' has 3"):
        line.host_spans(replace(two(), name="random"))


def test_an_overhead_is_a_fraction_of_the_base() -> None:
    assert run(13).overhead(run(10)) == pytest.approx(0.3) and run(10).overhead(run(10)) == 0
    assert run(0).overhead(run(0)) == 0 and run(1).overhead(run(0)) == float("inf") and run(0).overhead(run(1)) == -1
    assert (run(10).host_period, run(10, gain=4).host_period) == (10, 6)


def test_a_timeline_is_shown_by_its_makespan_and_stalls() -> None:
    told = "2 ops, makespan 10 ns, stalls 1 ns for copy, repeats after 3 iterations, every 2"
    assert repr(run(10)) == f"Timeline({told})"
    none = replace(run(10), stalls={"data": 0}, cycle=0)
    assert repr(none) == "Timeline(2 ops, makespan 10 ns, stalls none, repeats not found)"


def test_a_table_has_a_row_an_op() -> None:
    pytest.importorskip("pandas")
    table = run(10).to_pandas()
    assert {name: table[name].tolist() for name in table} == {
        "start_ns": [0, 4],
        "end_ns": [3, 9],
        "wait_ns": [0, 1],
        "cause": ["none", "copy"],
    }
    assert table.index.name == "op" and run(10, issued=np.array([-2, 1])).to_pandas().issued_ns.tolist() == [-2, 1]
