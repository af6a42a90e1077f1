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
from gpumem.simulator.timeline import FREED, Timeline
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
    capacity = data.draw(st.sampled_from([None, trace.peak_load]))
    sync = data.draw(st.booleans()) or not hosted(trace, machine)
    line = simulate(trace, machine, capacity=capacity, sync=sync, iterations=40)
    handing = machine.host_costs(trace)
    check.timeline(
        trace, line, machine.durations(trace), duplex=machine.duplex, capacity=capacity, handing=handing, sync=sync
    )
    for freed in (FREED if not line.gain else FREED[:1]) if line.cycle == 1 else ():
        time, held = line.memory_over_time(trace, freed)
        assert time.dtype == held.dtype == np.int64
        assert [*zip(time.tolist(), held.tolist())] == naive(trace, line, freed)
        assert time[0] == 0 and (np.diff(time) >= 0).all() and time[-1] < max(line.makespan, 1)
    peak = int(line.memory_over_time(trace)[1].max())
    tails = trace.buffers.start + trace.last_touch() + 1 < trace.buffers.end
    if line.cycle == 1:
        assert peak <= trace.peak_load
        if not (tails & (trace.last_touch() >= 0) & ~trace.eternal & ~trace.buffers.host).any():
            assert peak == trace.peak_load


def two() -> Trace:
    """op 0 makes A (8), op 1 makes B (4) from it, op 2 reads B, with a workspace W (16) of its own."""
    ops = Ops.make([[], [0], [1]], [[0], [1], [2]], duration=[10, 20, 30])
    return Trace(Buffers.make([8, 4, 16], [0, 1, 2], [2, 3, 3]), ops)


def steps_of(line: Timeline, trace: Trace, freed: str) -> list[tuple[int, int]]:
    time, held = line.memory_over_time(trace, freed)
    return [*zip(time.tolist(), held.tolist())]


def test_by_hand() -> None:
    # issued 0, 5, 10; run 0..10, 10..30, 30..60; the host waits for the last op, and hands over again 5 ns later
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


def test_where_nothing_takes_time_the_peak_is_still_there() -> None:
    trace = two()
    trace = replace(trace, ops=replace(trace.ops, duration=np.zeros(3, np.int64)))
    line = simulate(trace, tiny_machine(), sync=True)
    assert line.makespan == 0
    for freed in FREED:
        assert max(held for _, held in steps_of(line, trace, freed)) == trace.peak_load == 20


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
    assert 0 < line.memory_over_time(trace)[1].max() <= trace.peak_load
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
