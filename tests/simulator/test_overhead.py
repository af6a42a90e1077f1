"""Is every overhead, of `simulator`, `pipeline`, `swap.facts` and `benchmarks.papers`, against the same host?

A base is the unswapped run with the host of the run that it is for.
"""

from __future__ import annotations

from functools import partial

import pytest

import gpumem
from benchmarks.papers.zero_overhead_limit import lowest_limit, lowest_limit_of, overhead_at
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.swap.facts.limits import Judge
from gpumem.swap.plan import Plan, Swap
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine


def pipelined() -> Trace:
    """Op 0 on one stream makes X and Y, op 1 needs room, op 2 on another reads both: iterations overlap, 100 ns each.

    Once the host waits for op 2 they do not, and an iteration takes 190.
    """
    ops = Ops.make([[], [], [0, 1]], [[0, 1], [2], []], duration=[90, 10, 100], stream=[0, 0, 1], streams=["a", "b"])
    return Trace(Buffers.make([40, 40, 40], [0, 0, 1], [3, 3, 2]), ops, name="pipelined")


SWAP = Swap(buffer=1, after=0, before=2, release=1, prefetch=2)  # out 3 + 20 ns, in 2 + 10 ns
LIMIT = 80


def by_hand(trace: Trace, machine: Machine, limit: int, *, blocking: bool) -> Plan:
    if limit < LIMIT:
        raise NotReached(LIMIT, limit)
    return Plan.of(trace, [SWAP], blocking=blocking)


def test_a_base_has_the_host_of_the_run_that_it_is_for() -> None:
    trace, machine = pipelined(), tiny_machine()
    free, waits = (by_hand(trace, machine, LIMIT, blocking=blocking).apply(trace) for blocking in (False, True))
    assert baseline(trace, machine, free).makespan == simulate(trace, machine).makespan == 100
    assert baseline(trace, machine, waits).makespan == simulate(trace, machine, sync=True).makespan == 190
    assert simulate(waits, machine, capacity=LIMIT).makespan == 90 + 23 + 10 + 12 + 100
    copies = machine.with_(copy_host_ns=1)  # the unswapped iteration has none
    assert (simulate(trace, copies).makespan, baseline(trace, copies, free).makespan) == (100, 190)
    slow = machine.with_(host_ns=1)  # the host is on without a plan as well
    assert (
        baseline(trace, slow, waits).makespan == baseline(trace, slow, free).makespan == simulate(trace, slow).makespan
    )


def test_a_base_with_the_host_off_is_another_number() -> None:
    trace, machine = pipelined(), tiny_machine()
    swapped = by_hand(trace, machine, LIMIT, blocking=True).apply(trace)
    line = simulate(swapped, machine, capacity=LIMIT)
    assert line.overhead(baseline(trace, machine, swapped)) == 235 / 190 - 1
    assert line.overhead(simulate(trace, machine)) == 235 / 100 - 1  # to whom that says something


@pytest.mark.parametrize("blocking, base", [(True, 190), (False, 100)])
def test_every_overhead_is_against_that_base(blocking: bool, base: int) -> None:
    trace, machine, planner = pipelined(), tiny_machine(), partial(by_hand, blocking=blocking)
    cost = 235 / base - 1
    assert overhead_at(trace, machine, planner, LIMIT) == cost
    assert lowest_limit(trace, machine, planner, free=cost, step=1 / 3).overhead == cost
    assert lowest_limit_of(trace, machine, lambda *given: (planner(*given, LIMIT), LIMIT)).overhead == cost
    planned = gpumem.plan(trace, machine, load=LIMIT, planner=planner, placer="best-fit")
    assert planned.overhead == planned.row()["overhead"] == cost
    assert planned.before.timeline.makespan == base
    placed = baseline(trace, machine, planned.trace, planned.before.placement)
    assert planned.placed_overhead == planned.placed.makespan / placed.makespan - 1
    assert (placed.issued is not None) == blocking


def test_a_search_counts_the_stall_from_that_base() -> None:
    trace, machine = pipelined(), tiny_machine().with_(copy_host_ns=1)
    judge = Judge(trace, machine, LIMIT)
    judge.offer(by_hand(trace, machine, LIMIT, blocking=False))
    assert judge.line is not None
    assert judge.stall == judge.line.makespan - 190
