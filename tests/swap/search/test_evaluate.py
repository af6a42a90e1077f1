"""The evaluator of the search against the simulation, and its account of the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from gpumem import check
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.plan import Plan, Variant
from gpumem.swap.plan.gaps import Windows
from gpumem.swap.search import _evaluate
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import (
    CLEAN,
    COPIED,
    IN,
    LATE,
    OUT,
    USELESS,
    Evaluation,
    State,
    SwapState,
    evaluate,
    host_excess,
    retime,
)
from gpumem.swap.search._hold_moves import change_holds
from gpumem.swap.search._recompute_changes import adopt, propagate
from gpumem.swap.search._recompute_state import POINTS, RecomputeState, copy_drops
from gpumem.swap.search.instance import Instance, problem
from gpumem.swap.search.walk import SearchWalk, swap_decisions
from gpumem.testing import steps
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.plain import plain
from tests.strategies import machine_of, nets, plans, traces
from tests.swap.accounts import as_taken, on_host
from tests.swap.nets import CARD, line
from tests.swap.search.oracles import menus


@given(st.data())
def test_the_evaluator_of_the_search_counts_the_same(data: st.DataObject) -> None:
    """The same bytes of pinned memory as `facts.pinned` and as the rewritten trace, copies at their accesses."""
    trace = data.draw(st.one_of(nets(), traces()))
    if data.draw(st.booleans()):
        trace = data.draw(plans(trace)).apply(trace)
    swap_problem, recompute, windows = problem(trace, tiny_machine(), 1)
    swap_problem, drops = swap_problem._replace(pinned=0), RecomputeState.of(recompute)
    propagate(recompute, drops)
    swaps, host = SwapState.of(swap_problem), Pinned(trace, windows, 10**6)
    for gap in range(len(windows)):
        if data.draw(st.booleans()):
            toggle(swap_problem, drops, swaps, gap)
            assert host.take(gap, int(windows.after[gap]), int(windows.before[gap]))
    excess = host_excess(swap_problem, swaps, Evaluation.of(swap_problem))
    assert excess == host.peak == on_host(trace, as_taken(host, trace))


def drawn_state(data: st.DataObject, trace: Trace, target: Machine) -> tuple[State, Windows]:
    """Any selection, any order of the engines, and ops that wait."""
    swap_problem, recompute, windows = problem(trace, target, 0)
    drops, swaps = RecomputeState.of(recompute), SwapState.of(swap_problem)
    propagate(recompute, drops)
    assume(len(windows))
    for gap in data.draw(st.lists(st.integers(0, len(windows) - 1), max_size=6, unique=True)):
        toggle(swap_problem, drops, swaps, gap)
    for op in data.draw(st.lists(st.integers(0, trace.n - 1), max_size=3)):
        swaps.stall[op] += data.draw(st.integers(1, 60))
    for order, count in ((swaps.outs, swaps.lengths[OUT]), (swaps.ins, swaps.lengths[IN])):
        if count > 1 and data.draw(st.booleans()):
            order[:count] = data.draw(st.permutations(order[:count].tolist()))
    state = State(swap_problem, drops, swaps, Evaluation.of(swap_problem))
    retime(state)
    return state, windows


@given(st.data())
def test_a_state_within_the_limit_waits_for_nothing_else(data: st.DataObject) -> None:
    """The evaluator against the simulation, with one compute stream: no longer than the state says."""
    trace = data.draw(traces(streams=1, max_ops=14))
    target = machine_of(data, duplex=True)
    state, windows = drawn_state(data, trace, target)
    fits = [limit for limit in range(1, trace.peak_live_bytes + 1) if evaluate(state, limit)[1] == 0]
    assume(fits)
    swapped = Plan(tuple(swap_decisions(state, windows)), trace.n).apply(trace)
    check.data_flow(trace, swapped)
    assert swapped.peak_live_bytes <= fits[0]
    timeline = simulate(swapped, target, capacity=fits[0])
    assert timeline.makespan <= state.times.period[0]
    if not state.swaps.stall.any():
        assert timeline.stalls == {"data": 0, "copy": 0, "memory": 0}


def off_device(state: State, gap: int) -> tuple[int, int]:
    """From when to when a swapped gap frees its bytes, by its kind."""
    problem, drops, swaps, times = state.problem, state.drops, state.swaps, state.times
    period, payer, back = int(times.period[0]), int(swaps.copied_by[gap]), int(times.in_start[gap])
    if payer == gap:
        return int(times.out_end[gap]), back
    leaves = int(times.opens[gap])
    if payer < 0 or times.out_end[payer] <= leaves:
        op = int(problem.after[gap]) + 1
        begins = int(times.begin[2 * op]) if op < len(problem.begin) else period + int(times.begin[0])
        return leaves + (begins - leaves) % period, back
    # Behind the copy-out of another gap: at the next point, as a plan releases buffers at ops.
    leaves = int(times.out_end[payer])
    points = times.begin[drops.points[: drops.used[POINTS]]].tolist()
    return leaves + next((point for point in points if point >= leaves % period), period) - leaves % period, back


@settings(max_examples=100)
@given(st.data())
def test_the_live_bytes_are_those_of_every_nanosecond(data: st.DataObject) -> None:
    """The evaluator against its definition: what each op holds, less what is swapped out then."""
    trace = data.draw(st.one_of(traces(streams=1, max_ops=10), nets()))
    trace = replace(trace, ops=replace(trace.ops, duration=trace.ops.duration % 50 + 1))
    target = machine_of(data).with_(launch_ns=0)
    state, _ = drawn_state(data, trace, target)
    times, drops, swaps = state.times, state.drops, state.swaps
    excess = evaluate(state, 1)[1]
    used, useless = np.zeros(int(times.period[0]), np.int64), False
    for gap in swaps.ins[: swaps.lengths[IN]].tolist():
        leaves, back = off_device(state, gap)
        left = leaves if times.kind[gap] == COPIED else times.out_end[gap]
        assert (times.kind[gap] == USELESS) == (back <= left)
        useless |= bool(back <= left)
        for moment in range(leaves, back) if back > left else ():
            used[moment % len(used)] -= state.problem.size[gap]
    for op in range(trace.n):
        first, pause = int(times.begin[2 * op + 1]), int(times.begin[2 * op])
        following = int(times.begin[2 * op + 2]) if op + 1 < trace.n else len(used)
        used[first:following] += drops.occupied[2 * op + 1]
        # What the op before gave back is free while this one waits.
        used[pause:first] += drops.occupied[2 * op]
    most = int(used.max())
    assert excess == max(most - 1, 1 if useless else 0)
    assert evaluate(state, most)[1] == (1 if useless else 0)
    if most > 1:
        evaluate(state, most - 1)
        worst = int(times.worst[0])
        begin = [*times.begin[drops.points[: drops.used[POINTS]]].tolist(), len(used)]
        position = int(drops.points[worst])
        first = int(times.begin[position - 1]) if position % 2 and swaps.stall[position // 2] else begin[worst]
        assert used[first : max(begin[worst + 1], first + 1)].max() == most


def line_state(latency: float, limit: int, pinned: int = 10_000) -> State:
    """X of 8 bytes between ops 0 and 4, which take 10 ns each, swapped by copies of some ns; Y of 8 bytes at op 2."""
    target = replace(CARD, out=Link(latency, 0.0), into=Link(latency, 0.0), pinned=pinned)
    walk = SearchWalk(Instance.of(line(), target, limit), 1.0, 0)
    toggle(walk.state.problem, walk.drops, walk.state.swaps, 0)
    return walk.state


def test_a_cost_is_the_sum_of_its_terms() -> None:
    """Excess: the mean over points and the largest; the engines' time; what is too much on the host."""
    state = line_state(8.0, 8)
    assert evaluate(state, 8) == (pytest.approx(1e-3 * 16 / 50), 0)
    toggle(state.problem, state.drops, state.swaps, 0)
    assert evaluate(state, 8) == (pytest.approx((8 / 2 + 8) / 8), 8)  # points: op 2 and the next one
    state = line_state(8.0, 1)
    toggle(state.problem, state.drops, state.swaps, 0)
    assert evaluate(state, 6) == (pytest.approx(((2 + 2 + 10 + 2 + 2) / 5 + 10) / 6), 10)
    state = line_state(8.0, 8, pinned=4)
    assert evaluate(state, 8) == (pytest.approx(1e-3 * 16 / 50 + 4 / 4), 1)


@pytest.mark.parametrize(("latency", "late"), [(14.0, None), (15.0, 0), (20.0, 10)])
def test_a_gap_that_is_back_before_it_has_left_is_no_plan(latency: float, late: int | None) -> None:
    """Between its accesses there are 30 ns: at the limit of the peak each state without it will do."""
    cost, excess = evaluate(line_state(latency, 8), 16)
    useless = 0 if late is None else late / 50 + 8 / 16
    assert (cost, excess) == (pytest.approx(useless + 1e-3 * 2 * latency / 50), 0 if late is None else 1)


def swap_all(walk: SearchWalk) -> State:
    for gap in range(len(walk.windows)):
        toggle(walk.state.problem, walk.drops, walk.state.swaps, gap)
    return walk.state


def link(out: float, into: float) -> Machine:
    return replace(CARD, out=Link(out, 0.0), into=Link(into, 0.0))


@pytest.mark.parametrize(("wait", "excess"), [(9, 8), (10, 0)])
def test_while_an_op_waits_what_the_op_before_it_gave_back_is_free(wait: int, excess: int) -> None:
    """X is due 20 ns before op 4, at 40: from 30 on, where op 3 waits that long and Y is dead, there is space."""
    state = swap_all(SearchWalk(Instance.of(line(), link(5.0, 20.0), 8), 1.0, 0))
    state.swaps.stall[3] = wait
    retime(state)
    assert evaluate(state, 8)[1] == excess


def constants(goal: int, *, workspace: int = 0) -> SearchWalk:
    """Z of 8 bytes is read by op 0, X of 8 by op 1, neither is ever written; W lives during op 1."""
    ops = Ops.make([[0], [1], []], [[], [2], []], duration=[10] * 3)
    buffers = Buffers.make([8, 8, workspace], [0, 0, 1], [3, 3, 2], persistent=[True, True, False])
    return SearchWalk(Instance.of(Trace(buffers, ops), link(5.0, 5.0), goal, recompute=True), 1.0, 0)


@pytest.mark.parametrize(("wait", "excess"), [(4, 8), (5, 0)])
def test_what_needs_no_copy_leaves_before_an_op_that_waits(wait: int, excess: int) -> None:
    """Z leaves at 10, after its access; X comes in 5 ns before op 1."""
    state = swap_all(constants(8))
    state.swaps.ins[:2] = state.swaps.ins[:2][::-1].copy()  # X first: Z is due with the next iteration
    state.swaps.stall[1] = wait
    retime(state)
    assert evaluate(state, 8)[1] == excess
    assert sorted(state.times.kind.tolist()) == [CLEAN, CLEAN]


def test_before_a_replay_it_leaves_with_the_op() -> None:
    """As if something were recomputed before op 1 for 5 ns: all of it waits, and Z leaves all the same."""
    walk = constants(16, workspace=8)
    walk.drops.targets[1], walk.drops.added_ns[1] = 1, 5
    propagate(walk.recompute, walk.drops)
    state = swap_all(walk)
    state.swaps.ins[:2] = state.swaps.ins[:2][::-1].copy()
    state.swaps.stall[1] = 5
    retime(state)
    assert walk.drops.points[: walk.drops.used[POINTS]].tolist() == [3, 5]
    assert evaluate(state, 16)[1] == 0


def test_what_another_gap_copies_out_too_late_is_there_until_then() -> None:
    """X is written by op 0, read by ops 2 and 5; its copy-out takes from 10 to 35, when op 3 holds X and Y."""
    ops = Ops.make([[], [], [0], [], [], [0]], [[0], [], [], [1], [], []], duration=[10] * 6)
    trace = Trace(Buffers.make([8, 8], [0, 3], [6, 4]), ops)
    state = swap_all(SearchWalk(Instance.of(trace, link(25.0, 2.0), 8), 1.0, 0))
    retime(state)
    assert evaluate(state, 8)[1] == 8
    assert state.times.kind.tolist() == [USELESS, LATE]


@pytest.mark.parametrize(("latency", "start"), [(8.0, 30), (10.0, 30), (12.0, 20)])
def test_what_will_be_placed_counts_from_the_start_of_its_op(latency: float, start: int) -> None:
    state = swap_all(SearchWalk(Instance.of(line(), link(5.0, latency), 8, placed=True), 1.0, 0))
    evaluate(state, 8)
    assert state.times.in_start[0] == start


def test_a_copy_that_ends_gives_way_to_one_that_starts_then() -> None:
    """On a circle of 50 ns each of two values is off the device when the other is there: they change at 25 and 49."""
    state = swap_all(constants(1, workspace=8))
    swaps, times, drops = state.swaps, state.times, state.drops
    times.begin[:], times.period[0] = [0, 0, 10, 10, 20, 20], 50
    drops.occupied[:], times.kind[:], swaps.lengths[:] = 16, COPIED, 2
    times.freed[:] = times.freed_early[:] = 0
    swaps.outs[:2], swaps.ins[:2] = [0, 1], [1, 0]
    times.out_end[:2], times.in_start[:2] = [25, 49], [49, 25]
    assert plain(_evaluate)._follow_live_bytes(state, 8, 8) == (0, 0)


@pytest.mark.parametrize(("duplex", "end"), [(True, 15), (False, 25)])
def test_with_half_duplex_a_copy_out_waits_for_copies_in(duplex: bool, end: int) -> None:
    """Z, a constant, comes back from 10 to 20, before op 2; X could leave from 10 on, for 5 ns."""
    ops = Ops.make([[0], [], [0], [], [1]], [[1], [], [], [], []], duration=[10] * 5)
    trace = Trace(Buffers.make([8, 8], [0, 0], [5, 5], persistent=[True, False]), ops)
    walk = SearchWalk(Instance.of(trace, replace(link(5.0, 10.0), duplex=duplex), 1), 1.0, 0)
    rows = walk.windows.rows(trace.n)
    for key in ((0, 0), (1, 0)):
        toggle(walk.state.problem, walk.drops, walk.state.swaps, rows[key])
    evaluate(walk.state, 8)
    assert walk.state.times.in_start[rows[0, 0]] == 10
    assert walk.state.times.out_end[rows[1, 0]] == end


@settings(max_examples=60)
@given(st.data())
def test_no_link_copies_twice_at_a_time(data: st.DataObject) -> None:
    """In a state that will do; with half duplex there is one link."""
    trace = data.draw(nets())
    trace = replace(trace, ops=replace(trace.ops, duration=trace.ops.duration % 50 + 30))
    target = machine_of(data).with_(launch_ns=0)
    state, _ = drawn_state(data, trace, target)
    problem, swaps, times = state.problem, state.swaps, state.times
    assume(evaluate(state, trace.peak_live_bytes)[1] == 0)
    busy = np.zeros((2, int(times.period[0])), np.int64)
    for gap in swaps.outs[: swaps.lengths[OUT]].tolist():
        for moment in range(times.out_end[gap] - problem.out_ns[gap], times.out_end[gap]):
            busy[OUT, moment % len(busy[OUT])] += 1
    for gap in swaps.ins[: swaps.lengths[IN]].tolist():
        for moment in range(times.in_start[gap], times.in_start[gap] + problem.in_ns[gap]):
            busy[IN, moment % len(busy[IN])] += 1
    assert (busy if target.duplex else busy.sum(axis=0)).max() <= 1


def test_the_host_holds_a_constant_always_and_others_from_their_first_gap_on() -> None:
    """Z, read by ops 0 and 2, is swapped between them; X between ops 3 and 6. Both are on the host at op 4 and 5."""
    ops = Ops.make([[0], [], [0], [], [], [], [1]], [[], [], [], [1], [], [], []], duration=[10] * 7)
    trace = Trace(Buffers.make([8, 4], [0, 3], [7, 7], persistent=[True, False]), ops)
    walk = SearchWalk(Instance.of(trace, replace(link(1.0, 1.0), pinned=9), 1), 1.0, 0)
    for row in (walk.windows.rows(trace.n)[key] for key in ((0, 0), (1, 3))):
        toggle(walk.state.problem, walk.drops, walk.state.swaps, row)
    assert host_excess(walk.state.problem, walk.state.swaps, walk.state.times) == 8 + 4 - 9


@pytest.mark.parametrize(("goal", "points"), [(1, [1, 3, 5, 7, 9]), (8, [5, 7]), (15, [5, 7]), (16, [])])
def test_points_are_where_the_goal_may_be_exceeded_and_where_that_ends(goal: int, points: list[int]) -> None:
    """X is live throughout, Y at op 2: 16 bytes. At other positions no state exceeds a limit that is sought."""
    drops = SearchWalk(Instance.of(line(), CARD, goal), 1.0, 0).drops
    assert drops.points[: drops.used[POINTS]].tolist() == points
    assert drops.next_point.tolist() == [sum(point < position for point in points) for position in range(11)]


def test_where_the_last_op_exceeds_the_goal_the_first_is_a_point() -> None:
    """X is persistent and Y lives during the last op."""
    ops = Ops.make([[0], [], []], [[], [], [1]], duration=[10] * 3)
    trace = Trace(Buffers.make([8, 8], [0, 2], [3, 3], persistent=[True, False]), ops)
    drops = SearchWalk(Instance.of(trace, CARD, 8), 1.0, 0).drops
    assert drops.points[: drops.used[POINTS]].tolist() == [1, 5]


@given(st.data())
def test_a_state_within_the_limit_takes_what_recomputations_take(data: st.DataObject) -> None:
    """The evaluator against the simulation: swaps, drops, holds, variants, one compute stream, full duplex."""
    trace = data.draw(steps(streams=1))
    target = machine_of(data, duplex=True)
    walk = SearchWalk(Instance.of(trace, target, 1, recompute=True, algorithms=data.draw(menus(trace))), 1.0, 0)
    state, recompute, drops, gaps = walk.state, walk.recompute, walk.drops, len(walk.windows)
    assume(gaps)
    choice, droppable = drops.choice.copy(), recompute.droppable.tolist()
    for gap in data.draw(st.lists(st.sampled_from(droppable), max_size=4, unique=True)) if droppable else ():
        choice.recompute_at[gap] = recompute.last_place[gap]
    choice.variant[:] = walk.choose_variants(lambda row: data.draw(st.integers(0, len(row) - 1)))
    assume(adopt(recompute, drops, choice))
    before = drops.copy()
    for seed in data.draw(st.lists(st.integers(1, 10**6), max_size=4)):
        if change_holds(recompute, drops, np.array([seed])):
            propagate(recompute, drops)
            copy_drops(recompute, before, drops)
        else:
            copy_drops(recompute, drops, before)
    for gap in data.draw(st.lists(st.integers(0, gaps - 1), max_size=4, unique=True)):
        if not choice.recompute_at[gap]:
            toggle(state.problem, drops, state.swaps, gap)
    retime(state)
    fits = [limit for limit in range(1, trace.peak_live_bytes + 250) if evaluate(state, limit)[1] == 0]
    assume(fits)
    changes = walk.changes(drops.choice)
    swapped = Plan.of(trace, [*swap_decisions(state, walk.windows), *changes]).apply(trace)
    check.data_flow(Plan.of(trace, [change for change in changes if isinstance(change, Variant)]).apply(trace), swapped)
    assert swapped.peak_live_bytes <= fits[0]
    timeline = simulate(swapped, target, capacity=fits[0])
    assert timeline.stalls == {"data": 0, "copy": 0, "memory": 0}
    assert (
        timeline.makespan == state.problem.period + drops.added_ns.sum() + drops.extra_ns.sum() == state.times.period[0]
    )
