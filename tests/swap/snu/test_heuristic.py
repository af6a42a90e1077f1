"""The SNU heuristic: what it takes in which order, where it moves the copies, and every oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, load
from gpumem.pool import best_fit
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap.facts.limits import floor
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.plan.gaps import Gaps, gaps, lasts, straddle
from gpumem.swap.snu.heuristic import heuristic, select
from gpumem.swap.snu.overlap import largest_first
from gpumem.trace import I64, Buffers, Ops, Trace
from tests.conftest import shared, tiny_machine
from tests.nets import hill
from tests.strategies import traces

GTX = Machine.named("gtx1080ti")


def test_the_largest_goes_first(machine: Machine) -> None:
    trace = hill(2, 8, 4, 1)  # load 2 10 14 15 15 14 10 2
    assert [swap.buffer for swap in heuristic(trace, machine, 14).swaps] == [1]
    chosen, left, _ = select(trace, machine, 8, simulate(trace, machine))
    assert chosen.buffer.tolist() == [0, 1]  # after 8 bytes, ops 1 and 6 still hold 10: of these, 2 may go
    assert left.load.tolist() == [2, 8, 4, 5, 5, 4, 8, 2]


def test_of_equal_ones_the_longer_gap_goes_first(machine: Machine) -> None:
    assert [swap.buffer for swap in heuristic(hill(4, 4, 4), machine, 8).swaps] == [0]


def params(*, writes: list[int], n: int = 8) -> Trace:
    """P (4 bytes, for ever): 0, 3, 7, written by `writes`. Q (6): 0, 7. R (2): 1, 5."""
    reads: list[list[int]] = [[0], [], [], [0], [], [], [], [0, 1]]
    made: list[list[int]] = [[1], [2], [], [], [], [], [], []]
    for op in writes:
        made[op].append(0)
    reads[5].append(2)
    ops = Ops.make(reads, made, duration=[100] * n)
    return Trace(Buffers.make([4, 6, 2], [0, 0, 1], [n, n, 6], persistent=[True, False, False]), ops)


def test_free_re_reads_go_before_larger_pairs(machine: Machine) -> None:
    # load 10 12 12 12 12 12 10 10; nothing writes P, so the host always has it: ops 1, 2 and 4, 5 cost no copy-out
    swaps = heuristic(params(writes=[]), machine, 11).swaps
    assert [(swap.buffer, swap.after) for swap in swaps] == [(0, 0), (0, 3), (1, 0)]  # Q for op 3 only
    roles = [op.role for op in heuristic(params(writes=[]), machine, 11).apply(params(writes=[])).ops]
    assert (roles.count("copy_out"), roles.count("copy_in")) == (1, 3)


def test_a_written_parameter_is_no_free_re_read(machine: Machine) -> None:
    swaps = heuristic(params(writes=[7]), machine, 11).swaps
    assert [(swap.buffer, swap.after) for swap in swaps] == [(1, 0)]


def repeated(ns: int) -> Trace:
    """R (8 bytes): 0, 2, 7. S (8): 0, 4. U (9): 1. T (9): 3. Ops take 100 ns, op 1 `ns`."""
    reads: list[list[int]] = [[], [], [0], [], [1], [], [], [0]]
    ops = Ops.make(reads, [[0, 1], [2], [], [3], [], [], [], []], duration=[100, ns, *[100] * 6])
    return Trace(Buffers.make([8, 8, 9, 9], [0, 0, 1, 3], [8, 5, 2, 4]), ops)


def test_the_other_gaps_of_a_value_follow_its_pair(machine: Machine) -> None:
    # R's gap (2, 7) goes first. S's is longer than R's (0, 2), but the host has that value now
    plan = heuristic(repeated(100), machine, 17)
    assert [(swap.buffer, swap.after) for swap in plan.swaps] == [(0, 0), (0, 2)]
    roles = [op.role for op in plan.apply(repeated(100)).ops]
    assert (roles.count("copy_out"), roles.count("copy_in")) == (1, 2)
    # unless there is no time to bring it back
    assert [(swap.buffer, swap.after) for swap in heuristic(repeated(1), machine, 17).swaps] == [(0, 2), (1, 0)]


def test_a_value_goes_on_over_the_boundary(machine: Machine) -> None:
    # W (8, for ever): read by 2, written by 5. S (8): 1, 5. T (10): 0. U (9): 3. W's gap (5, 8) is the longest, and W
    # has the same value in (2, 5)
    reads: list[list[int]] = [[], [], [0], [], [], [1]]
    ops = Ops.make(reads, [[2], [1], [], [3], [], [0]], duration=[500, 100, 100, 100, 100, 100])
    start, end = [0, 1, 0, 3], [6, 6, 1, 4]
    trace = Trace(Buffers.make([8, 8, 10, 9], start, end, persistent=[True, False, False, False]), ops)
    assert [(swap.buffer, swap.after) for swap in heuristic(trace, machine, 17).swaps] == [(0, 2), (0, 5)]


def test_gaps_too_short_for_their_copies_come_last(machine: Machine) -> None:
    # B (4): 0, 6. A (8): 1, 3, 10 ns apart. C (4): 2. Copies of A take 7 + 4 ns. The live bytes are 4 12 16 12 4 4 4
    ops = Ops.make([[], [], [], [1], [], [], [0]], [[0], [1], [2], [], [], [], []], duration=[10] * 7)
    trace = Trace(Buffers.make([4, 8, 4], [0, 1, 2], [7, 4, 3]), ops)
    assert [swap.buffer for swap in heuristic(trace, machine, 12).swaps] == [0]
    assert [swap.buffer for swap in heuristic(trace, machine.with_(out=Link(1, 0.5)), 12).swaps] == [1]
    assert [swap.buffer for swap in heuristic(trace, machine, 8).swaps] == [0, 1]


def between(used: int, ends: int) -> Trace:
    """X (8 bytes): 0, 9. Y (8): 4 and `used`, freed after `ends`. Ops take 10 ns."""
    reads: list[list[int]] = [[] for _ in range(10)]
    reads[9], reads[used] = [0], [1]
    ops = Ops.make(reads, [[0], [], [], [], [1], [], [], [], [], []], duration=[10] * 10)
    return Trace(Buffers.make([8, 8], [0, 4], [10, ends + 1]), ops)


def test_copies_move_to_where_they_overlap() -> None:
    machine = tiny_machine().with_(out=Link(25, 0.0), into=Link(15, 0.0))
    # out from 10 to 35: released at op 4 (40). In from 75 to 90: right before op 7 (70)
    plan = heuristic(between(5, 5), machine, 8)
    assert plan.swaps == (Swap(buffer=0, after=0, before=9, release=4, prefetch=7),)
    assert simulate(plan.apply(between(5, 5)), machine, capacity=8).makespan == 100
    # with Y there through op 8 no bytes are free before, and op 9 waits
    assert heuristic(between(8, 8), machine, 8).swaps == (Swap(buffer=0, after=0, before=9, release=4, prefetch=9),)


def test_the_larger_copy_takes_the_link_first() -> None:
    # X (8): 0, 19. Z (16): 1, 18. P (30): 10. Copies out take 25 ns, ops 10
    ops = Ops.make([*[[]] * 18, [1], [0]], [[0], [1], *[[]] * 8, [2], *[[]] * 9], duration=[10] * 20)
    trace = Trace(Buffers.make([8, 16, 30], [0, 1, 10], [20, 19, 11]), ops)
    machine = tiny_machine().with_(out=Link(25, 0.0), into=Link(15, 0.0))
    x, z = heuristic(trace, machine, 30).swaps
    assert (z.out, z.release) == (1, 5)  # from 20 to 45
    assert (x.out, x.release) == (3, 7)  # from 10 on there are 10 ns only, so from 45 to 70: issued after op 3
    assert (z.prefetch, x.prefetch) == (16, 15)  # in from 165 to 180 and, before that, from 150 to 165


def test_free_bytes_go_to_the_copy_that_ends_last() -> None:
    # X (8): 0, 19. Z (8): 1, 18. P (16): 2 to 4. Q (24): 10. Copies out take 25 ns, ops 10
    ops = Ops.make([*[[]] * 18, [1], [0]], [[0], [1], [2], *[[]] * 7, [3], *[[]] * 9], duration=[10] * 20)
    trace = Trace(Buffers.make([8, 8, 16, 24], [0, 1, 2, 10], [20, 19, 5, 11]), ops)
    x, z = heuristic(trace, tiny_machine().with_(out=Link(25, 0.0), into=Link(15, 0.0)), 24).swaps
    assert (z.out, z.release) == (2, 6)  # from 35 to 60, and held until then
    assert (x.out, x.release) == (0, 2)  # from 10 to 35, but at ops 2 to 4 the bytes of one are free


def test_a_pinned_budget_is_a_constraint(machine: Machine) -> None:
    trace = hill(2, 8, 4, 1)
    assert [swap.buffer for swap in heuristic(trace, machine.with_(pinned=7), 14).swaps] == [2]
    with pytest.raises(NotReached, match="a peak of 13 bytes; the pinned-host budget is 3 B") as stop:
        heuristic(trace, machine.with_(pinned=3), 12)
    assert (stop.value.reached, stop.value.limit) == (13, 12)


def test_the_limits_ends(machine: Machine) -> None:
    trace = hill(2, 8, 4, 1)
    assert heuristic(trace, machine, 15) == Plan((), 8)
    with pytest.raises(Infeasible, match="op 1 must hold 8 B, the limit is 7 B"):
        heuristic(trace, machine, 7)
    with pytest.raises(ValueError, match="limit: 0 bytes"):
        heuristic(trace, machine, 0)


@given(st.data())
def test_plans_pass_every_oracle(data: st.DataObject) -> None:
    trace, machine = data.draw(traces()), tiny_machine(duplex=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        machine = machine.with_(out=Link(500, 0.5), into=Link(400, 0.25))
    machine = machine.with_(pinned=data.draw(st.sampled_from([0, 4, 11, 40, 10**6])))
    least = floor(trace)[1]
    limit = data.draw(st.integers(max(least, 1), max(trace.peak_live_bytes, least, 1)))
    try:
        plan = heuristic(trace, machine, limit)
    except NotReached as stop:
        assert stop.reached > limit and machine.pinned < 10**6
        return
    assert plan == heuristic(trace, machine, limit)
    swapped = plan.apply(trace)
    placed = best_fit(swapped, alignment=4)
    line = simulate(swapped, machine, placed, iterations=60)
    check.everything(trace, swapped, placed, line, machine, limit=limit, host=machine.pinned)
    tight = simulate(swapped, machine, capacity=limit, iterations=60)
    check.timeline(swapped, tight, machine.durations(swapped), capacity=limit, duplex=machine.duplex)


def plain_select(trace: Trace, machine: Machine, limit: int, line: Timeline) -> tuple[Gaps, I64, Pinned]:
    """`select`, its live bytes followed op by op: O(m n)."""
    load, found = trace.live_bytes(), gaps(trace)
    found = found.where(straddle(found, load > limit) & (found.size > 0))
    size, host = found.size, Pinned(trace, found, machine.pinned)
    order, free, value = largest_first(found, line), found.constant, found.value
    time, in_ns = lasts(found, line), machine.into.copy_ns(size)
    pair_ns = in_ns + np.where(free, 0, machine.out.copy_ns(size))

    def take(gap_row: int) -> bool:
        after, before = int(found.after[gap_row]), int(found.before[gap_row])
        absent = np.arange(after + 1, before) % trace.n
        helps = not host.columns.taken[gap_row] and load[absent].max(initial=0) > limit
        if not helps or not host.take(gap_row, after, before):
            return False
        load[absent] -= size[gap_row]
        return True

    for short in (False, True):
        now = order[short | (time >= pair_ns)[order]]
        for gap_row in [*now[free[now]].tolist(), *now[~free[now]].tolist()]:
            if take(gap_row):
                for other in np.flatnonzero(value == value[gap_row]).tolist():
                    if short or time[other] >= in_ns[other]:
                        take(other)
    return found.where(host.columns.taken), load, host


def same_choice(trace: Trace, machine: Machine, limit: int) -> None:
    line = simulate(trace, machine)
    fast, plain = (way(trace, machine, limit, line) for way in (select, plain_select))
    assert [*zip(fast[0].buffer, fast[0].after)] == [*zip(plain[0].buffer, plain[0].after)]
    assert fast[1].load.tolist() == plain[1].tolist() and fast[2].peak == plain[2].peak


@given(st.data())
def test_the_choice_is_that_of_the_plain_loop(data: st.DataObject) -> None:
    trace = data.draw(traces())
    machine = tiny_machine().with_(pinned=data.draw(st.sampled_from([0, 4, 11, 40, 10**6])))
    same_choice(trace, machine, data.draw(st.integers(1, max(trace.peak_live_bytes, 1))))


def whole_line(trace: Trace, percent: int) -> None:
    limit = trace.peak_live_bytes * percent // 100
    try:
        swapped = heuristic(trace, GTX, limit).apply(trace)
    except Infeasible as stop:
        assert stop.limit < stop.needs == floor(trace)[1]
        return
    check.budget(swapped, limit, host=GTX.pinned)
    check.data_flow(trace, swapped)
    simulate(swapped, GTX, capacity=limit)
    same_choice(trace, GTX, limit)


@pytest.mark.parametrize("percent", [80, 60, 40])
@pytest.mark.parametrize("name", ["vgg16", "resnet18", "mlp3"])
def test_bundled_traces(name: str, percent: int) -> None:
    whole_line(bundled(name), percent)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("percent", [80, 60])
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_shared_traces(path: Path, percent: int) -> None:
    whole_line(load(path).trace, percent)
