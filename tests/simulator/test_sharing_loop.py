"""The compiled loop over events against a run in steps of a nanosecond; faults in the loop are seen."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import gpumem.simulator._sharing_loop as module
from gpumem.jobs import Job, Policy, simulate_jobs, unmanaged
from gpumem.simulator._sharing_loop import LAUNCHED, NOW, TURN
from tests.conftest import tiny_machine
from tests.simulator.sharing_cases import SLOWDOWNS, Case, cases, streams


@given(cases())
def test_each_iteration_is_that_in_steps_of_a_nanosecond(case: Case) -> None:
    case.check()


def test_a_host_that_gains_does_not_hide_that_iterations_repeat() -> None:
    off = Case(streams([10], [7]), tiny_machine(), 1.0)
    ahead = replace(off, machine=off.machine.with_(host_ns=1), sync=False)
    found = []
    for case in (off, ahead):
        clock = case.clock()
        cycles = [(clock.advance(), clock.cycle())[1] for _ in range(20)]
        found.append(next(k for k, cycle in enumerate(cycles) if cycle))
    assert found == [7, 8]  # the first op is issued too late once


def test_a_state_has_all_that_hosts_do_from_now_on() -> None:
    two = streams([10], [7])
    trace = replace(two, ops=replace(two.ops, blocking=np.array([False, True])))
    clock = Case(trace, tiny_machine().with_(host_ns=2), 1.0).clock()
    clock.advance()
    x, hosts, now = clock.streams, clock.hosts, int(clock.streams.state[NOW])
    was = clock._state(now)
    for column, k in ((x.waits, 0), (x.given, 0), (hosts.clock, 0), (hosts.ended, 0), (x.left, 0), (x.begun, 1)):
        old = column[k].copy()
        column[k] = not old if column.dtype == bool else old + 1
        assert (clock._state(now) == was) == (column is x.left), "nothing runs, so that nothing is left"
        column[k] = old
    x.state[LAUNCHED] += 1  # the first op of the next iteration, then
    row = x.issued[x.state[TURN] % len(x.issued)]
    states = []
    for issued in (now - 5, now, now + 1, now + 2):
        row[0] = issued
        states.append(clock._state(now))
    assert states[0] == states[1] and len({*states, was}) == 4


@pytest.mark.parametrize("slowdown", [0.0, *SLOWDOWNS])
def test_two_jobs_are_two_streams(slowdown: float) -> None:
    work, machine, turns = ([100, 50, 30], [60, 0, 55, 65]), tiny_machine(), 3
    jobs = [Job(f"job{k}", streams(row), iterations=turns + 1) for k, row in enumerate(work)]
    ran = simulate_jobs(jobs, machine, 100, Policy(unmanaged), slowdown=slowdown)
    trace = streams(*work)
    clock = Case(trace, machine, slowdown).clock()
    for k in range(turns):
        _, end = clock.advance()
        assert [job.end[k] for job in ran.jobs] == [end[trace.ops.stream == s].max() for s in range(2)]


FAULTS = {
    "of three kernels that run one is forgotten": (
        "(next_event - now) * rate[count]",
        "(next_event - now) * rate[min(count, 2)]",
    ),
    "copies slow others down": ("count += kernel[op]", "count = min(count + 1, len(rate) - 1)"),
    "a kernel ends a nanosecond early": (
        "now - (-left[engine] // rate[count])",
        "now + max(left[engine] // rate[count], 1)",
    ),
    "work goes on at full speed": ("(next_event - now) * rate[count]", "(next_event - now) * unit"),
    "nobody waits": ("streams.ended[earlier] <= iteration", "False"),
    "the iteration before is forgotten": ("streams.ended[earlier + len(streams.work)] < iteration", "False"),
    "streams drift apart": ("iteration >= turn + window", "iteration >= turn + window + 1"),
    "ops start before they are issued": ("if issued > now:", "if False:"),
    "a copy does not drain": ("(hosts.drains[op] and streams.given[host] > 0)", "False"),
    "nothing blocks": ("streams.waits[host] = hosts.blocks[op]", "pass"),
    "launching takes no time": ("hosts.clock[host] + hosts.cost[op]", "hosts.clock[host]"),
    "the host goes on as of when it launched": ("hosts.clock[host] = now", "pass"),
}


def objects() -> bool:
    """Whether the steps of a nanosecond object to some of a hundred random cases."""

    @settings(max_examples=100, derandomize=True, database=None, phases=[Phase.generate], deadline=None)
    @given(cases())
    def judged(case: Case) -> None:
        case.check(3)

    try:
        judged()
    except (AssertionError, IndexError):
        return True
    return False


@pytest.mark.jit
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_loop_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = FAULTS[fault]
    loops = (module.advance, module._waits_have_ended, module.launch, module.release)
    source = "".join(inspect.getsource(getattr(loop, "py_func", loop)).partition("\n")[2] for loop in loops)
    assert right in source
    broken = dict(vars(module))
    exec(source.replace(right, wrong), broken)
    monkeypatch.setattr(module, "advance", broken["advance"])
    assert objects()
