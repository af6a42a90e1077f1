"""The host thread in the clock: logs worked out by hand, the naive clock, and what must hold of any host."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st

from gpumem import check, io
from gpumem.base.errors import CheckError, Infeasible, NotReached
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator import _iteration as _clock
from gpumem.simulator._iteration import Clock, Reservations, Steps
from gpumem.simulator.hazards import hazards
from gpumem.simulator.host_threads import Hosts
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import hosted, simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap import PLANNERS
from gpumem.swap.facts.limits import floor
from gpumem.trace import COPY_IN, COPY_OUT, Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import shared, tiny_machine
from tests.runs import outcome, same
from tests.strategies import plans, traces


def log(line: Timeline) -> list[tuple[int, int, int, str]]:
    """When each op was issued, started and ended, and what it waited for."""
    assert line.issued is not None
    return [(int(issued), s.start, s.end, s.cause) for issued, s in zip(line.issued, line)]


def chain(*durations: int, **columns: Any) -> Trace:
    """Ops of these durations that share nothing, on one stream unless told otherwise."""
    none: list[list[int]] = [[] for _ in durations]
    return Trace(Buffers.make([1], [0], [len(durations)]), Ops.make(none, none, duration=durations, **columns))


def with_copy(blocking: bool) -> Trace:
    """Two kernels of 10 and 30 ns; a copy out of what the first made, 7 ns; another kernel of 5 ns."""
    ops = Ops.make(
        [[], [], [0], []],
        [[0], [], [1], []],
        duration=[10, 30, -1, 5],
        stream=[0, 0, 1, 0],
        streams=["compute", "d2h"],
        role=[0, 0, COPY_OUT, 0],
        blocking=[False, False, blocking, False],
    )
    return Trace(Buffers.make([8, 8], [0, 2], [3, 3], host=[False, True]), ops)


def test_queued_kernels_hide_a_copy_that_does_not_block(machine: Machine) -> None:
    # host    all handed over at 0
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


def test_two_hosts_hand_over_in_one_order(machine: Machine) -> None:
    # a      |10: op 0|     waits until 50    |60: op 2|
    # b      |10: op 1|             |60: op 3, after op 2 though b could at 20; it blocks, 60..64|
    # first  |10 .. .. .. .. 50|         |60..62|
    # second |10..13|                    |60..64|
    pair = chain(40, 3, 2, 4, stream=[0, 1, 0, 1], streams=["first", "second"], host=[0, 1, 0, 1], hosts=["a", "b"])
    trace = replace(pair, ops=replace(pair.ops, blocking=np.array([True, False, False, False])))
    machine = machine.with_(host_ns=10)
    steps = Steps.make(trace, machine, None)
    clock = Clock(steps, Reservations.make(trace, None), Hosts.make(trace, machine, None))
    clock.advance()
    assert clock.hosts.issued.tolist() == [10, 10, 60, 60]
    assert list(zip(steps.start.tolist(), steps.end.tolist())) == [(10, 50), (10, 13), (60, 62), (60, 64)]
    # a goes on at 60, b at 64: op 0 at 70, op 1 at 74
    clock.advance()
    assert clock.hosts.issued.tolist() == [70, 74, 120, 120]
    assert simulate(trace, machine).makespan == 60


def test_blocking_ops_turn_the_host_on(machine: Machine) -> None:
    line = simulate(chain(4, 5, 6, stream=[0, 1, 0], streams=["a", "b"], blocking=[True, False, False]), machine)
    assert log(line) == [(0, 0, 4, "none"), (4, 4, 9, "host"), (4, 4, 10, "none")]
    assert simulate(chain(4, 5), machine).issued is None
    assert simulate(chain(4, 5), machine, sync=False).issued is None
    assert simulate(chain(4, 5), machine, sync=True).issued is not None


@dataclass(frozen=True)
class Case:
    """A trace under one clock, with a host."""

    trace: Trace
    machine: Machine
    placement: Placement | None
    capacity: int | None
    sync: bool | None

    def line(self, iterations: int = 200) -> Timeline:
        memory = {"capacity": self.capacity, "iterations": iterations, "sync": self.sync}
        return simulate(self.trace, self.machine, self.placement, **memory)

    def rules(self) -> dict[str, Any]:
        memory = {"placement": self.placement, "capacity": self.capacity, "duplex": self.machine.duplex}
        return memory | {"handing": self.machine.host_costs(self.trace), "sync": self.sync}

    def check(self) -> None:
        check.timeline(self.trace, self.line(), self.machine.durations(self.trace), **self.rules())

    def off(self) -> Case:
        """Nothing takes host time, nothing blocks."""
        return replace(
            self,
            trace=self.trace.with_blocking(False),
            machine=self.machine.with_(host_ns=0, copy_host_ns=0),
            sync=None,
        )


@st.composite
def cases(draw: st.DrawFn, hosts: int = 3, *, memory: bool = True) -> Case:
    """Blocking ops and copies, of several hosts, drawn or planned; arcs; any clock."""
    trace = draw(traces(max_ops=8, hosts=hosts))
    if draw(st.booleans()):
        trace = replace(draw(plans(trace)), blocking=draw(st.booleans())).apply(trace)
    machine = tiny_machine(duplex=draw(st.booleans()))
    machine = machine.with_(
        host_ns=draw(st.sampled_from([0, 1.4, 3, 10, 100])), copy_host_ns=draw(st.sampled_from([0, 5]))
    )
    which, sync = draw(st.integers(0, 2 if memory else 0)), draw(st.sampled_from([None, True, False]))
    placement = best_fit(trace, alignment=draw(st.sampled_from([1, 4]))) if which == 1 else None
    capacity = trace.peak_load + draw(st.sampled_from([0, 0, 1, 5, 1000])) if which == 2 else None
    return Case(trace, machine, placement, capacity, sync)


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
        Case(base, there, None, base.peak_load, sync).check()
    limit = max(base.peak_load * 7 // 10, floor(base)[1])
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
def test_a_host_only_ever_delays(case: Case) -> None:
    starts = []
    for one in (case, case.off()):
        steps = Steps.make(one.trace, one.machine, one.placement)
        clock = Clock(steps, Reservations.make(one.trace, one.capacity), Hosts.make(one.trace, one.machine, one.sync))
        starts.append([(clock.advance(), steps.start.copy())[1] for _ in range(4)])
    assert (np.array(starts[0]) >= np.array(starts[1])).all()


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


FAULTS = {
    "a blocking copy does not drain": ("if drained and drains[i] and ended[h] > clock[h]", "if False"),
    "it drains what the device was given last": ("max(ended[h], end[i])", "end[i]"),
    "each host has an order of its own": ("if here > last:", "if True:"),
    "handing over takes no time": ("clock[h] + cost[i]", "clock[h]"),
    "copies that do not block hold the host": ("end[i] if blocks[i] else", "end[i] if True else"),
    "nothing blocks": ("end[i] if blocks[i] else", "end[i] if False else"),
    "ops start before they are issued": ("if last > t:", "if False:"),
    "the host's time goes for a copy's": ("COPY if until >= t else HOST", "COPY"),
    "a copy's time goes for the host's": ("COPY if until >= t else HOST", "HOST"),
    "a copy that blocks is forgotten": ("held[h] = end[i]", "pass"),
}


def hand_made() -> list[Case]:
    """One copy after two kernels on one stream; after a long one and a short one on two; two hosts."""
    two = chain(40, 3, 2, 4, stream=[0, 1, 0, 1], streams=["first", "second"], host=[0, 1, 0, 1], hosts=["a", "b"])
    two = replace(two, ops=replace(two.ops, blocking=np.array([True, False, False, False])))
    one = with_copy(True)
    apart = replace(one, ops=replace(one.ops, stream=np.array([2, 0, 1, 0]), streams=("compute", "d2h", "long")))
    apart = replace(apart, ops=replace(apart.ops, duration=np.array([40, 3, -1, 5])))
    machines = tiny_machine(), tiny_machine().with_(host_ns=3, copy_host_ns=2)
    return [Case(trace, machine, None, None, None) for trace in (one, apart, two) for machine in machines]


def objects() -> bool:
    """Whether the naive clock objects to some case made by hand, or of fifty random ones."""

    @settings(max_examples=50, derandomize=True, database=None, phases=[Phase.generate], deadline=None)
    @given(cases(memory=False))
    def judged(case: Case) -> None:
        case.check()

    try:
        for case in hand_made():
            case.check()
        judged()
    except CheckError:
        return True
    return False


def test_without_a_fault_the_naive_clock_has_no_objection() -> None:
    assert not objects()


@pytest.mark.jit
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_loop_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = FAULTS[fault]
    source = inspect.getsource(getattr(_clock._advance, "py_func", _clock._advance)).removeprefix("@jit\n")
    assert right in source
    broken = dict(vars(_clock))
    exec(source.replace(right, wrong), broken)
    monkeypatch.setattr(_clock, "_advance", broken["_advance"])
    assert objects()


def test_a_sync_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Hosts.make
    monkeypatch.setattr(Hosts, "make", lambda trace, machine, sync: make(trace, machine, False))
    assert objects()
