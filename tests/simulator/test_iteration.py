"""The compiled loop over an iteration: hosts hand over in one order and only delay; faults in the loop are seen."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import gpumem.simulator._iteration as module
from gpumem.base.errors import CheckError
from gpumem.simulator._iteration import Clock, Reservations, Steps
from gpumem.simulator.host_threads import Hosts
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from tests.conftest import tiny_machine
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


@given(cases())
def test_a_host_only_ever_delays(case: Case) -> None:
    starts = []
    for one in (case, case.off()):
        steps = Steps.make(one.trace, one.machine, one.placement)
        clock = Clock(steps, Reservations.make(one.trace, one.capacity), Hosts.make(one.trace, one.machine, one.sync))
        starts.append([(clock.advance(), steps.start.copy())[1] for _ in range(4)])
    assert (np.array(starts[0]) >= np.array(starts[1])).all()


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
    source = inspect.getsource(getattr(module.advance, "py_func", module.advance)).removeprefix("@jit\n")
    assert right in source
    broken = dict(vars(module))
    exec(source.replace(right, wrong), broken)
    monkeypatch.setattr(module, "advance", broken["advance"])
    assert objects()


def test_a_sync_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Hosts.make
    monkeypatch.setattr(Hosts, "make", lambda trace, machine, sync: make(trace, machine, False))
    assert objects()
