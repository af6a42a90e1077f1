"""The compiled loop over an iteration: hosts launch in one order and only delay; faults in the loop are seen."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st

import gpumem.simulator._iteration as module
from gpumem.base.errors import CheckError
from gpumem.simulator._iteration import Clock, Regime, Reservations, Steps
from gpumem.simulator.host_threads import HELD, LAST, LATE, Hosts
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.plain import plain
from tests.simulator.host_cases import Case, cases, chain, with_copy


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


def test_a_host_that_needs_no_time_hands_over_at_once(machine: Machine) -> None:
    trace = chain(4, 5, 6)
    steps = Steps.make(trace, machine, None)
    clock = Clock(steps, Reservations.make(trace, None), Hosts.make(trace, machine, True))
    for begin in (0, 15):  # the last op blocks
        clock.advance()
        assert clock.hosts.issued.tolist() == [begin] * 3
        assert steps.start.tolist() == [begin, begin + 4, begin + 9]
    one = simulate(chain(40), machine.with_(host_ns=10), sync=False)
    assert (one.makespan, one.cycle, one.gain) == (40, 1, 30)


def test_a_state_tells_how_long_copies_hold_a_host_from_now_on(machine: Machine) -> None:
    trace = chain(10, 13, stream=[0, 1], streams=["first", "second"])
    clock = Clock(Steps.make(trace, machine, None), Reservations.make(trace, None), Hosts.make(trace, machine, True))
    clock.advance()  # the next op may start at 10, all have ended at 13
    states = []
    for held in (-1, 5, 9, 10, 11, 12, 13):
        clock.hosts.held[0] = clock.hosts.state[HELD] = held
        states.append(clock._state(13))
    assert states[0] == states[1] == states[2] and len({*states}) == 5


def test_a_regime_is_there_once_the_lead_is_no_less_than_it_was(machine: Machine) -> None:
    hosts, regime, turns = (
        Hosts.make(chain(1), machine.with_(host_ns=1), False),
        Regime(),
        iter(range(100, 10_000, 100)),
    )

    def cycle(lead: int, late: int = 0, state: bytes = b"a") -> int:
        hosts.state[LAST], hosts.state[LATE] = (origin := next(turns)) - lead, late
        return regime.cycle(state, hosts, origin)

    assert [cycle(10), cycle(9), cycle(10), cycle(11), cycle(11, state=b"b"), cycle(10)] == [0, 0, 2, 3, 0, 5]
    # an op that is late depends on the lead; thereafter all is new
    assert [cycle(10, late=1), cycle(9, late=1), cycle(10, late=1), cycle(20), cycle(20)] == [0, 0, 2, 0, 1]


@given(cases())
def test_a_host_only_ever_delays(case: Case) -> None:
    starts = []
    for one in (case, case.off()):
        steps = Steps.make(one.trace, one.machine, one.placement)
        clock = Clock(steps, Reservations.make(one.trace, one.capacity), Hosts.make(one.trace, one.machine, one.sync))
        starts.append([(clock.advance(), steps.start.copy())[1] for _ in range(4)])
    assert (np.array(starts[0]) >= np.array(starts[1])).all()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 9)), min_size=4, max_size=30))
def test_the_heap_gives_back_the_earliest_bytes_first(drawn: list[tuple[bool, int, int]]) -> None:
    # some come back between; in the end all do
    steps = [step for again, *entry in drawn for step in (tuple(entry), *([None] if again else []))]
    steps += [None] * len(drawn)
    loops, there, free = plain(module), Counter[tuple[int, int]](), 0
    (time, size), state = np.zeros((2, len(steps)), np.int64), np.zeros(3, np.int64)
    for step in steps:
        if step is not None:
            loops._push(time, size, state, *step)
            there[step] += 1
        elif there:
            first = min(there)[0]
            assert loops._pop(time, size, state) == first
            ((gone, count),) = (there - Counter(zip(time[: state[2]].tolist(), size[: state[2]].tolist()))).items()
            assert gone[0] == first and count == 1
            there -= Counter([gone])
            free += gone[1]
        used = int(state[2])
        assert Counter(zip(time[:used].tolist(), size[:used].tolist())) == there
        assert (state[0], state[1]) == (free, 0)


def test_what_came_back_by_now_is_free_before_anything_starts() -> None:
    trace = Trace(Buffers.make([8] * 4, [0] * 4, [2] * 4), Ops.make([[], []], [[], []]))
    memory = Reservations.make(trace, 40)
    heap = [(5, 1), (9, 2), (5, 4), (6, 8)]
    memory.heap_time[:4], memory.heap_bytes[:4] = zip(*heap)
    memory.state[:] = 10, 3, 4
    later = memory.release_due(5)
    assert later.state.tolist() == [15, 3, 2]
    assert list(zip(later.heap_time[:2].tolist(), later.heap_bytes[:2].tolist())) == [(6, 8), (9, 2)]
    assert len(later.heap_time) == len(later.heap_bytes) >= 2 + 4  # room for all that an iteration gives back
    assert later.release_due(4).state.tolist() == [15, 3, 2] and later.release_due(9).state.tolist() == [25, 3, 0]


def test_what_is_there_before_the_first_iteration_is_reserved() -> None:
    # W lives for ever, A over the boundary; B ends with the iteration; H is on the host
    keep, host = [True, False, False, False], [False, False, False, True]
    buffers = Buffers.make([1, 2, 4, 8], [0, 1, 1, 1], [2, 3, 2, 3], persistent=keep, host=host)
    memory = Reservations.make(Trace(buffers, Ops.make([[], []], [[], []])), 100)
    assert memory.live.tolist() == [False, True, False, False] and memory.state.tolist() == [100 - 3, 0, 0]
    assert (memory.start_ptr.tolist(), memory.starts.tolist()) == ([0, 0, 2], [1, 2])
    assert (memory.end_ptr.tolist(), memory.ends.tolist()) == ([0, 1, 2], [2, 1])
    off = Reservations.make(Trace(buffers, Ops.make([[], []], [[], []])), None)
    assert not off.live.any() and not len(off.starts) and not len(off.ends)


FAULTS = {
    "a blocking copy does not drain": (
        "if drains and hosts.drains[op] and hosts.ended[host] > clock[host]",
        "if False",
    ),
    "it drains what the device was given last": ("max(hosts.ended[host], finish)", "finish"),
    "each host has an order of its own": ("if launched > state[LAST]:", "if True:"),
    "launching takes no time": ("clock[host] + hosts.cost[op]", "clock[host]"),
    "copies that do not block hold the host": ("finish if hosts.blocks[op] else", "finish if True else"),
    "nothing blocks": ("finish if hosts.blocks[op] else", "finish if False else"),
    "ops start before they are issued": ("if state[LAST] > start:", "if False:"),
    "the host's time goes for a copy's": ("COPY if state[HELD] >= start else HOST", "COPY"),
    "a copy's time goes for the host's": ("COPY if state[HELD] >= start else HOST", "HOST"),
    "a copy that blocks is forgotten": ("hosts.held[host] = finish", "pass"),
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
    loops = (module.advance, module._after_hazards, module._launch, module._advance_host)
    source = "".join(inspect.getsource(getattr(loop, "py_func", loop)).partition("\n")[2] for loop in loops)
    assert right in source
    broken = dict(vars(module))
    exec(source.replace(right, wrong), broken)
    monkeypatch.setattr(module, "advance", broken["advance"])
    assert objects()


def test_a_sync_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Hosts.make
    monkeypatch.setattr(Hosts, "make", lambda trace, machine, sync: make(trace, machine, False))
    assert objects()
