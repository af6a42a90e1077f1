"""The host thread in the clock: logs worked out by hand, the naive clock, and what must hold of any host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem import check, io
from gpumem.base.errors import Infeasible, NotReached
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.hazards import hazards
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import hosted, simulate
from gpumem.swap import PLANNERS
from gpumem.swap.facts.limits import floor
from gpumem.trace import COPY_IN, Buffers, Ops, Trace
from tests.conftest import shared, tiny_machine
from tests.runs import outcome, same
from tests.simulator.host_cases import Case, cases, chain, log, with_copy
from tests.strategies import plans, traces


def test_queued_kernels_hide_a_copy_that_does_not_block(machine: Machine) -> None:
    # host    all launched at 0
    # compute |0..10|10 .. .. .. 40|40..45|
    # d2h           |10..17|
    line = simulate(with_copy(False), machine)
    assert (line.makespan, line.issued, list(line.stalls)) == (45, None, ["data", "copy", "memory"])


def test_a_blocking_copy_drains(machine: Machine) -> None:
    # host    |kernels at 0|   waits for both   |copy at 40|waits|47: the last kernel, which blocks|
    # compute |0..10|10 .. .. .. 40|                              |47..52|
    # d2h                          |40 .. 47|
    line = simulate(with_copy(True), machine)
    assert log(line) == [(0, 0, 10, "none"), (0, 10, 40, "none"), (40, 40, 47, "copy"), (47, 47, 52, "copy")]
    assert (line.makespan, line.cycle, line.stalls) == (52, 1, {"data": 0, "copy": 7, "memory": 0, "host": 0})


def test_what_the_host_needs_after_a_copy_is_part_of_the_stall(machine: Machine) -> None:
    # host    |3: kernel|6: kernel|  waits, 42   |45: copy|waits|55: kernel|waits|
    # compute    |3..13|13 .. .. 43|                             |55..60|
    # d2h                               |45 .. 52|
    line = simulate(with_copy(True), machine.with_(host_ns=3, copy_host_ns=2))
    assert log(line) == [(0, 0, 10, "host"), (3, 10, 40, "none"), (42, 42, 49, "copy"), (52, 52, 57, "copy")]
    assert (line.makespan, line.stalls) == (60, {"data": 0, "copy": 12, "memory": 0, "host": 3})


def test_a_copy_that_is_waited_for_anyway_stays_the_cause_when_the_host_adds_to_it(machine: Machine) -> None:
    # as above, but the last kernel reads what the copy makes on the device: the host is 3 ns later than the bytes
    ops = Ops.make(
        [[], [0], [1]],
        [[], [1], []],
        duration=[10, -1, 5],
        stream=[0, 1, 0],
        streams=["compute", "h2d"],
        role=[0, COPY_IN, 0],
        blocking=[False, True, False],
    )
    trace = Trace(Buffers.make([8, 8], [0, 1], [2, 3], host=[True, False]), ops)
    line = simulate(trace, machine.with_(host_ns=3))
    assert log(line) == [(0, 0, 10, "host"), (10, 10, 14, "copy"), (17, 17, 22, "copy")]
    assert line.stalls == {"data": 0, "copy": 7, "memory": 0, "host": 3}


def test_a_host_slower_than_the_device_sets_its_pace(machine: Machine) -> None:
    # host    |10: a|20: b|30: c|   c blocks until 36
    # compute     |10..14| |20..25| |30..36|
    line = simulate(chain(4, 5, 6), machine.with_(host_ns=10))
    assert log(line) == [(0, 0, 4, "host"), (10, 10, 15, "host"), (20, 20, 26, "host")]
    assert (line.makespan, line.stalls["host"]) == (36, 10 + 6 + 5)
    free = simulate(chain(4, 5, 6), machine.with_(host_ns=10), sync=False)  # the host goes on while c runs
    assert (free.makespan, free.cycle, free.stalls["host"]) == (30, 1, 6 + 5 + 4)


def test_without_sync_a_faster_host_gains_and_delays_nothing(machine: Machine) -> None:
    line = simulate(chain(40, 5, 6), machine.with_(host_ns=10), sync=False)
    assert (line.makespan, line.first, line.cycle, line.stalls["host"]) == (51, 2, 1, 0)
    assert line.issued is not None
    assert line.issued.tolist() == [70 - 112, 80 - 112, 90 - 112]  # of the third iteration, which begins at 112


def test_a_host_without_ops_does_not_matter(machine: Machine) -> None:
    one = simulate(chain(4, 5), machine.with_(host_ns=10))
    two = simulate(chain(4, 5, hosts=["host", "idle"]), machine.with_(host_ns=10))
    assert (one.makespan, one.first, one.cycle) == (two.makespan, two.first, two.cycle) == (25, 1, 1)


def test_blocking_ops_turn_the_host_on(machine: Machine) -> None:
    line = simulate(chain(4, 5, 6, stream=[0, 1, 0], streams=["a", "b"], blocking=[True, False, False]), machine)
    assert log(line) == [(0, 0, 4, "none"), (4, 4, 9, "host"), (4, 4, 10, "none")]
    assert simulate(chain(4, 5), machine).issued is None
    assert simulate(chain(4, 5), machine, sync=False).issued is None
    assert simulate(chain(4, 5), machine, sync=True).issued is not None


@given(cases())
def test_the_clock_is_the_naive_one(case: Case) -> None:
    case.check()


@pytest.mark.slow
@settings(max_examples=1000)
@given(cases())
def test_the_clock_is_the_naive_one_on_a_thousand(case: Case) -> None:
    case.check()


def recorded(path: Path) -> None:
    """Any host on a recorded trace, as it is and swapped at 70 % or above, with copies that block or not."""
    base, machine = io.read(path), Machine.named("p100")
    for host_ns, sync in ((2e5, None), (1e3, False), (0, True)):
        there = machine.with_(host_ns=host_ns, copy_host_ns=host_ns / 10)
        Case(base, there, None, base.peak_live_bytes, sync).check()
    limit = max(base.peak_live_bytes * 7 // 10, floor(base)[1])
    for name in ("on-demand", "heuristic"):
        try:
            after = PLANNERS[name](base, machine, limit).apply(base)
        except (Infeasible, NotReached):
            continue
        for host_ns in (0, 2e5):
            Case(after, machine.with_(host_ns=host_ns), None, limit, None).check()
        Case(after, machine.with_(host_ns=1e4), best_fit(after), None, None).check()


@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/mlp3*.json.gz"), ids=lambda p: p.name)
def test_the_clock_is_the_naive_one_on_recorded_traces(path: Path) -> None:
    recorded(path)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_the_clock_is_the_naive_one_on_all_recorded_traces(path: Path) -> None:
    recorded(path)


@given(cases(hosts=1))
def test_a_regime_is_for_ever_and_found_soon(case: Case) -> None:
    line, off = case.line(), case.off().line()
    assert line.cycle or not off.cycle  # streams that share nothing drift apart, with a host or without
    if len(set(case.trace.ops.stream)) == 1:
        assert (line.cycle == 1 and line.first <= 2) or case.capacity or case.placement
    if line.cycle:
        turns, at = line.first + 5 * line.cycle + 20, line.first
        _, end = check.naive_clock(case.trace, case.machine.durations(case.trace), iterations=turns, **case.rules())
        period = np.diff(end[at :: line.cycle], axis=0)
        assert (period == period[0, 0]).all()
        assert round(period[0, 0] / line.cycle) == line.makespan


@given(cases())
def test_a_regime_of_several_hosts_is_for_ever(case: Case) -> None:
    line = case.line()
    if line.cycle:
        turns = line.first + 3 * line.cycle + 5
        _, end = check.naive_clock(case.trace, case.machine.durations(case.trace), iterations=turns, **case.rules())
        period = np.diff(end[line.first :: line.cycle], axis=0)
        assert (period == period[0]).all(), "each op is as much later each time"


@given(cases())
def test_with_the_host_off_nothing_is_another(case: Case) -> None:
    off = case.off()
    assert not hosted(off.trace, off.machine)
    ops = replace(off.trace.ops, host=np.zeros(off.trace.n, np.int64), hosts=("host",))
    want, got = replace(off, trace=replace(off.trace, ops=ops)).line(), off.line()
    assert got.issued is None and "host" not in got.stalls
    for column in ("start", "end", "wait", "cause"):
        assert getattr(got, column).tobytes() == getattr(want, column).tobytes()
    assert (got.makespan, got.first, got.cycle, got.stalls) == (want.makespan, want.first, want.cycle, want.stalls)


@given(traces(streams=1))
def test_one_stream_and_a_host_that_needs_no_time_are_as_without(trace: Trace) -> None:
    assert simulate(trace, tiny_machine(), sync=True).makespan == simulate(trace, tiny_machine()).makespan


@given(st.data())
def test_who_blocks_makes_no_difference_to_hazards_and_bytes(data: st.DataObject) -> None:
    trace = data.draw(traces(max_ops=6, streams=2))
    plan = data.draw(plans(trace))
    queued, blocking = plan.apply(trace), replace(plan, blocking=True).apply(trace)
    assert (blocking.ops.blocking == blocking.ops.copies).all()
    assert hazards(queued).after.tolist() == hazards(blocking).after.tolist()
    placed = best_fit(queued)
    ran = [outcome(trace, swapped, placed, order=1, iterations=2) for swapped in (queued, blocking)]
    assert same(*ran)
