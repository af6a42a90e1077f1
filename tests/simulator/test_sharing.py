"""Kernels of several streams of one trace that share the GPU: timelines in which each does its work, and by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import floor

import numpy as np
import pytest
from hypothesis import given

from gpumem import check
from gpumem.simulator._sharing_loop import SharedClock, kernels
from gpumem.simulator.machine import Machine
from gpumem.simulator.sharing import rates, share
from gpumem.simulator.timeline import Timeline
from gpumem.trace import COMPUTE, SYNC, Buffers, Csr, Ops, Trace
from tests.conftest import tiny_machine
from tests.simulator.sharing_cases import Case, Naive, cases, streams


def fenced(trace: Trace) -> Trace:
    """All that is no copy waits for the last such op of the iteration before, which waits for all of them."""
    b, o, n = trace.buffers, trace.ops, trace.n
    mine = np.flatnonzero(~o.copies).tolist()
    reads, writes = (
        [row + [len(b)] * (i in of) for i, row in enumerate(rows.tolist())]
        for rows, of in ((o.reads, mine), (o.writes, mine[-1:]))
    )
    columns = ([*old.tolist(), new] for old, new in ((b.size, 1), (b.start, 0), (b.end, n)))
    more = {"persistent": [*b.persistent.tolist(), True], "host": [*b.host.tolist(), False]}
    return Trace(Buffers.make(*columns, **more), replace(o, reads=Csr.of(reads), writes=Csr.of(writes)))


def progress(case: Case, line: Timeline, op: int, until: int) -> Fraction:
    """What the timeline lets an op do of its work before an instant: its rate, by who else runs, over time."""
    kernel = kernels(case.trace)
    far = range(-20 * line.makespan, 21 * line.makespan, max(line.makespan, 1))
    others = [(s + t, e + t) for s, e in zip(line.start[kernel].tolist(), line.end[kernel].tolist()) for t in far]
    start = int(line.start[op])
    near = [(s, e) for s, e in others if s < until and e > start]
    at = sorted({start, until, *(t for pair in near for t in pair if start < t < until)})
    done = Fraction(0)
    for s, e in pairwise(at):
        count = sum(first <= s and e <= last for first, last in near)
        done += (e - s) / (1 + Fraction(str(case.slowdown)) * (count - 1))
    return done


def judge(case: Case) -> bool:
    """Hold what is shared against its timeline alone; False where its streams drift apart, so that it has none."""
    shared, line = case.shared()
    work, kernel = case.machine.durations(case.trace), kernels(case.trace)
    if line.cycle != 1:
        return False
    took, costs = case.machine.durations(shared), case.machine.host_costs(case.trace)
    placed = {"placement": case.placement, "duplex": case.machine.duplex}
    check.timeline(case.trace, line, took, host_costs=costs, sync=case.sync, **placed)
    assert took[~kernel].tolist() == work[~kernel].tolist()
    for i in np.flatnonzero(kernel).tolist():
        start, end = int(line.start[i]), int(line.end[i])
        assert progress(case, line, i, end) >= work[i], f"op {i} ends before its work is done"
        assert start == end or progress(case, line, i, end - 1) < work[i], f"op {i} goes on when its work is done"
    if case.slowdown == 1:
        busy = {t % line.makespan for i in np.flatnonzero(kernel) for t in range(line.start[i], line.end[i])}
        assert 0 <= len(busy) - work[kernel].sum() < max(kernel.sum(), 1), "work is not conserved"
    return True


@given(cases())
def test_the_timeline_shows_that_each_kernel_did_its_work(case: Case) -> None:
    assert judge(replace(case, trace=fenced(case.trace), placement=None)) or case.trace.ops.copies.any()


@given(cases())
def test_so_it_does_without_a_common_instant(case: Case) -> None:
    judge(case)


@given(cases())
def test_alone_or_undisturbed_ops_take_what_they_take(case: Case) -> None:
    kernel = kernels(case.trace)
    still = share(case.trace, case.machine, 0.0)
    one = replace(case.trace, ops=replace(case.trace.ops, stream=np.where(kernel, 0, case.trace.ops.stream)))
    for trace, shared in ((case.trace, still), (one, share(one, case.machine, case.slowdown))):
        assert case.machine.durations(shared).tolist() == case.machine.durations(trace).tolist()


@given(cases())
def test_whatever_the_regime_no_kernel_takes_more_than_beside_all_others(case: Case) -> None:
    work, took = (case.machine.durations(trace) for trace in (case.trace, case.shared()[0]))
    unit, rate = rates(case.slowdown, max(len(np.unique(case.trace.ops.stream[kernels(case.trace)])), 1))
    assert (work <= took).all() and (took <= -(-work * unit // rate[-1])).all()


def test_pairs_of_groups_with_syncs_between() -> None:
    # slot 1: first works 30 beside 10 of second; slot 2: 10 beside 10. slowdown 1: while two run, each at half speed
    # first   [ 30, of them 10 at half speed: 40 ][ 10: 20 ]
    # second  [ 10: 20 ]                          [ 10: 20 ]
    tokens = [0, 1]
    ops = Ops.make(
        [[], [], tokens, tokens, [], [], tokens, tokens],
        [[0], [1], [0], [1], [0], [1], [0], [1]],
        duration=[30, 10, -1, -1, 10, 10, -1, -1],
        stream=[0, 1] * 4,
        streams=["first", "second"],
        role=[COMPUTE, COMPUTE, SYNC, SYNC] * 2,
    )
    trace = Trace(Buffers.make([1, 1], [0, 0], [8, 8], persistent=[True, True]), ops)
    case = Case(trace, tiny_machine(), 1.0)
    shared, line = case.shared()
    assert shared.ops.duration.tolist() == [40, 20, -1, -1, 20, 20, -1, -1]
    assert (line.start.tolist(), line.makespan) == ([0, 0, 40, 40, 40, 40, 60, 60], 60)
    assert judge(case)


def test_streams_that_share_nothing_do_not_drift_apart() -> None:
    """In the long run both do an iteration in the time of 17 ns of work: 7 beside one another, 3 alone."""
    shared = share(streams([10], [7]), tiny_machine(), 1.0)
    assert shared.ops.duration.tolist() == [17, 14]


def test_where_no_regime_is_found_the_second_half_counts() -> None:
    case = Case(streams([10], [7], [4]), tiny_machine(), 2.25)  # these do not repeat before the 13th iteration
    naive = Naive(case, 11)
    took = [[e - s for s, e in zip(*naive.iteration(k))] for k in range(11)]
    for iterations in range(1, 12):
        half = took[iterations // 2 : iterations]
        mean = [floor(Fraction(sum(column), len(half)) + Fraction(1, 2)) for column in zip(*half)]
        shared = share(case.trace, case.machine, case.slowdown, iterations=iterations)
        assert shared.ops.duration.tolist() == mean, iterations


@pytest.mark.parametrize(
    "slowdown, most, parts",
    [
        (0.5, 3, (6, [0, 6, 4, 3])),
        (0.0, 2, (1, [0, 1, 1])),
        (1.0, 1, (1, [0, 1])),
        (0.25, 4, (105, [0, 105, 84, 70, 60])),
    ],
)
def test_work_is_counted_in_parts_that_all_rates_do_whole(slowdown: float, most: int, parts: object) -> None:
    assert rates(slowdown, most) == parts


def test_a_regime_is_looked_for_in_a_hundred_iterations(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    advance, turns = SharedClock.advance, list[int]()
    monkeypatch.setattr(SharedClock, "cycle", lambda clock: 0)
    monkeypatch.setattr(SharedClock, "advance", lambda clock: (turns.append(1), advance(clock))[1])
    assert share(streams([10], [7]), machine, 1.0).ops.duration.tolist() == [17, 14] and len(turns) == 100


def test_work_is_counted_exactly_up_to_the_last_part(machine: Machine) -> None:
    slowdown = 759 / 5**6  # two at once are 2**14 / 5**6 times slower, so that a ns has 2**14 parts
    assert share(streams([2**48 - 1], [1]), machine, slowdown).ops.duration.tolist() == [2**48, 2]
    with pytest.raises(ValueError, match="is too fine to count exactly"):
        share(streams([2**48], [1]), machine, slowdown)
    assert share(streams([2**51 - 1], [2**51 - 1]), machine, 1.0).ops.duration.tolist() == [2**52 - 2] * 2


def test_what_cannot_be_shared_is_refused(machine: Machine) -> None:
    two = streams([10], [7])
    for bad in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"slowdown: {bad} is not finite and >= 0"):
            share(two, machine, bad)
    with pytest.raises(ValueError, match="no ops, a bare instance has no timeline"):
        share(Trace.from_lifetimes([1], [0], [1]), machine, 1.0)
    with pytest.raises(ValueError, match="iterations: 0 is below 1"):
        share(two, machine, 1.0, iterations=0)
    with pytest.raises(
        ValueError, match=r"slowdown: 0.123456789012345 is too fine to count exactly; give it fewer digits"
    ):
        share(streams([10**6], [10**6]), machine, 0.123456789012345)
    with pytest.raises(ValueError, match="its ops take too long to count in ns"):
        share(streams([2**51], [2**51]), machine, 1.0)
