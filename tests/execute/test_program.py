"""Plans run with real bytes: every legal order gives what the unswapped run gives, and no wait can be spared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import autoswap, bundled, check
from gpumem.base.errors import ExecutionError, Infeasible, NotReached
from gpumem.execute import (
    Call,
    Emulator,
    GenericOp,
    Program,
    Race,
    Simulator,
    Views,
    carried,
    in_issue_order,
    initial,
    late,
    prepare,
    run,
    scaled,
)
from gpumem.io import load
from gpumem.pool.smartpool.offline import best_fit, first_fit
from gpumem.simulator.hazards import hazards
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import Buffers, Op, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import shared, tiny_machine
from tests.runs import Outcome, outcome, same
from tests.strategies import plans, traces


@given(st.data())
def test_any_plan_in_any_legal_order_gives_the_unswapped_bytes(data: st.DataObject) -> None:
    trace = data.draw(traces(streams=3))
    swapped = data.draw(plans(trace)).apply(trace)
    planner = data.draw(st.sampled_from([best_fit, first_fit]))
    placement = planner(swapped, alignment=data.draw(st.sampled_from([1, 4])))
    host = planner(swapped.host_side()) if data.draw(st.booleans()) else None

    def drawn(ready: list[int]) -> int:
        return ready[0] if len(ready) == 1 else data.draw(st.sampled_from(ready))

    want = outcome(trace, trace, best_fit(trace), in_issue_order)
    assert same(want, outcome(trace, swapped, placement, drawn, host=host))


def legal_recomputations(trace: Trace) -> list[Trace]:
    """The trace with each of its gaps bridged by running the producer again, where that makes the same value.

    Not so over the boundary: the first iteration would compute what its caller hands over.
    """
    found, made = gaps(trace), []
    for b, after, before in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist()):
        with suppress(ValueError):
            again = Plan((Recompute(b, after, before, before),), trace.n).apply(trace)
            check.data_flow(trace, again)
            made.append(again)
    return made


@given(st.data())
def test_a_recomputed_value_is_the_same_bytes(data: st.DataObject) -> None:
    trace = data.draw(traces(streams=3))
    rewritten = legal_recomputations(trace)
    if rewritten:
        again = data.draw(st.sampled_from(rewritten))
        swapped = data.draw(plans(again)).apply(again)  # of a rewritten trace: `of` composes
        want = outcome(trace, trace, best_fit(trace), in_issue_order)
        for one in (again, swapped):
            assert same(want, outcome(trace, one, best_fit(one, alignment=4), data.draw(st.integers(0, 99))))


@given(st.data())
def test_the_simulator_behind_the_protocol_is_the_simulator(data: st.DataObject) -> None:
    trace = data.draw(traces(streams=3))
    swapped = data.draw(plans(trace)).apply(trace)
    machine, placement = tiny_machine(), best_fit(swapped)
    line = simulate(swapped, machine, placement)
    got = run(swapped, placement, Simulator(machine), iterations=line.first + 1)
    for column in ("start", "end", "wait", "cause"):
        assert getattr(got, column).tolist() == getattr(line, column).tolist(), column


@given(st.data())
def test_one_copy_engine_behind_the_protocol(data: st.DataObject) -> None:
    trace = data.draw(traces())
    swapped = data.draw(plans(trace)).apply(trace)
    machine, placement = tiny_machine(duplex=False), best_fit(swapped)
    line = simulate(swapped, machine, placement)
    got = run(swapped, placement, Simulator(machine), iterations=line.first + 1)
    assert (got.start.tolist(), got.end.tolist()) == (line.start.tolist(), line.end.tolist())


def planned(name: str, percent: int = 70) -> tuple[Trace, Placement, Trace, Placement]:
    """A bundled trace and its plan, shrunk: unswapped and swapped, each with a placement."""
    trace = bundled(name)
    swapped = autoswap(trace, Machine.named("gtx1080ti"), trace.peak_load * percent // 100).apply(trace)
    return *scaled(trace, best_fit(trace)), *scaled(swapped, best_fit(swapped))


@pytest.mark.thorough
@pytest.mark.jit
@pytest.mark.parametrize("name", ["vgg16", "resnet18"])
def test_a_real_plan_in_random_orders(name: str) -> None:
    whole, there, trace, placement = planned(name)
    want = outcome(whole, whole, there, in_issue_order)
    for seed in range(5):
        assert same(want, outcome(whole, trace, placement, seed))


def at_70_percent(trace: Trace) -> Plan:
    """AutoSwap at 70 % of the peak load, or at the lowest limit that is feasible at all."""
    machine, limit = Machine.named("gtx1080ti"), trace.peak_load * 70 // 100
    try:
        return autoswap(trace, machine, limit)
    except (Infeasible, NotReached) as stop:
        limit = max(limit, stop.needs if isinstance(stop, Infeasible) else 0)
        return autoswap(trace, machine, limit, peaks="all", threshold=0)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name)
def test_every_shared_plan_in_twenty_orders(path: Path) -> None:
    trace = load(path).trace
    plan = at_70_percent(trace)
    swapped = plan.apply(trace)
    whole, there = scaled(trace, best_fit(trace))
    small, placement = scaled(swapped, best_fit(swapped))
    host = best_fit(small.host_side(), alignment=1)
    want = outcome(whole, whole, there, in_issue_order)
    for seed in range(20):
        assert same(want, outcome(whole, small, placement, seed, host=host if seed % 2 else None))


def without(program: Program, y: int, x: int) -> Program:
    """The program in which op `x` no longer waits for position `y`."""
    program.after[x].remove(y)
    return program


def caught(whole: Trace, want: Outcome, trace: Trace, placement: Placement, y: int, x: int) -> tuple[bool, bool]:
    """Whether the race detector, and whether wrong bytes in some order, show that op `x` does not wait for `y`."""
    state = initial(whole, seed=1)

    def program(emulator: Emulator, launch: GenericOp) -> Program:
        made = prepare(trace, placement, emulator, launch)
        made.write({of: value for of, value in state.items() if of in made.crossing()})
        return without(made, y, x)

    try:
        program(Emulator(), GenericOp(whole)).run(3)
        raced = False
    except Race as race:
        raced = race.second == x
    launch = GenericOp(whole)
    blind = program(Emulator(late({y + trace.n}), races=False), launch)  # y of iteration 0 or 1 comes last
    blind.run(3)
    held = carried(whole)
    return raced, not same(want, ({of: v for of, v in blind.read().items() if of in held}, launch.seen))


@pytest.mark.thorough
@pytest.mark.jit
@pytest.mark.parametrize("name", ["vgg16", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_no_wait_of_a_real_plan_can_be_spared(name: str) -> None:
    whole, there, trace, placement = planned(name)
    want = outcome(whole, whole, there, in_issue_order)
    edges = [(y, x) for x, row in enumerate(hazards(trace, placement).after.tolist()) for y in row]
    assert 20 < len(edges) < 60
    for y, x in edges:
        assert caught(whole, want, trace, placement, y, x) == (True, True), f"op {x} without its wait for {y}"


@given(st.data())
def test_the_race_detector_misses_no_dropped_wait(data: st.DataObject) -> None:
    trace = data.draw(traces(streams=3))
    swapped = data.draw(plans(trace)).apply(trace)
    placement = best_fit(swapped, alignment=data.draw(st.sampled_from([1, 4])))
    program = prepare(swapped, placement, Emulator())
    edges = [(y, x) for x, row in enumerate(program.after) for y in row]
    program.run(2)
    if edges:
        y, x = data.draw(st.sampled_from(edges))
        b = swapped.buffers
        touched = {j for i in (x, y % swapped.n) for j in (*swapped.ops.reads[i], *swapped.ops.writes[i])}
        if all(b.size[j] for j in touched):  # no bytes, no race
            with pytest.raises(Race, match=rf"op {x} .* races with op"):
                without(prepare(swapped, placement, Emulator()), y, x).run(2)


def two_streams() -> Trace:
    """a writes X; b, on another stream, reads it; c writes Y in the same place."""
    ops = Ops.make([[], [0], []], [[0], [], [1]], stream=[0, 1, 0], streams=["x", "y"], name=list("abc"))
    return Trace(Buffers.make([8, 6], [0, 2], [2, 3]), ops)


def test_a_race_names_the_ops_and_the_bytes() -> None:
    trace = two_streams()
    placement = Placement.at(trace, [4, 6])
    with pytest.raises(Race) as race:
        without(prepare(trace, placement, Emulator()), 1, 2).run()
    assert str(race.value) == "op 2 (c): races with op 1 (b) for device bytes 6..12: neither waits for the other"
    assert (race.value.first, race.value.second, race.value.low, race.value.high) == (1, 2, 6, 12)


def test_memory_outside_live_buffers_is_poisoned() -> None:
    trace = two_streams()
    emulator = Emulator(in_issue_order, poison=0xEE)
    seen = []

    def launch(op: Op, views: Views) -> Call:
        def call(stream: object) -> None:
            seen.append(emulator.slabs[0].copy())
            if op.name == "a":
                views.bytes(0)[:] = 1

        return call

    prepare(trace, Placement.at(trace, [0, 8]), emulator, launch).run()
    assert [row.tolist() for row in seen] == [[0xEE] * 14, [1] * 8 + [0xEE] * 6, [0xEE] * 14]


def test_an_order_that_picks_what_cannot_run_is_refused() -> None:
    with pytest.raises(ExecutionError, match="order: 1 is none of the ops that can run"):
        prepare(two_streams(), Placement.at(two_streams(), [0, 8]), Emulator(lambda ready: 1)).run()


def test_an_op_that_fails_is_named_and_the_next_run_works() -> None:
    trace = two_streams()
    fail = [True]

    def launch(op: Op, views: Views) -> Call:
        def call(stream: object) -> None:
            if op.name == "b" and fail[0]:
                raise OSError("the disk is full")

        return call

    program = prepare(trace, Placement.at(trace, [0, 8]), Emulator(), launch)
    with pytest.raises(ExecutionError, match=r"op 1 \(b\): the disk is full"):
        program.run()
    fail[0] = False
    assert program.run().makespan > 0


@pytest.mark.parametrize(
    "state, why",
    [
        ({1: np.zeros(1)}, "recorded buffer 1 carries no value over the boundary"),
        ({0: np.zeros(9, np.uint8)}, "9 bytes for buffer 0, which has 8"),
    ],
)
def test_a_state_that_does_not_fit(state: dict[int, np.ndarray], why: str) -> None:
    trace = Trace(Buffers.make([8, 8], [0, 0], [1, 1], persistent=[True, False]), Ops.make([[0]], [[1]]))
    with pytest.raises(ValueError, match=why):
        run(trace, Placement.at(trace, [0, 8]), Emulator(), state=state)


@pytest.mark.parametrize(
    "offset, height, why",
    [([0, 8], 12, "buffer 1: bytes 8..16 lie outside 0..12"), ([0], 16, "1 offsets, but the trace has 2")],
)
def test_a_placement_that_does_not_belong(offset: list[int], height: int, why: str) -> None:
    trace = Trace(Buffers.make([8, 8], [0, 0], [1, 1]), Ops.make([[]], [[0, 1]]))
    with pytest.raises(ValueError, match=why):
        prepare(trace, Placement(np.array(offset), height), Emulator())


@pytest.mark.parametrize(
    "view, why",
    [
        (lambda v: v(2, "uint8", (1,)), r"op 0 \(op\): does not touch recorded buffer 2"),
        (lambda v: v(0, "float32", (3,)), r"buffer 0 .*: an array of float32 \(3,\) takes 12 bytes"),
        (lambda v: v(1, "float64", (1,)), "buffer 1 .*: not aligned for float64"),
    ],
)
def test_a_view_of_what_is_not_there(view: Callable[[Views], object], why: str) -> None:
    trace = Trace(Buffers.make([8, 8, 8], [0, 0, 0], [1, 1, 1]), Ops.make([[0]], [[1]], name=["op"]))

    def launch(op: Op, views: Views) -> None:
        view(views)

    with pytest.raises(ValueError, match=why):
        prepare(trace, Placement.at(trace, [0, 12, 20]), Emulator(), launch)


def test_an_op_and_its_reruns_share_a_draw_counter_which_counts_through_all_iterations() -> None:
    ops = Ops.make([[]] * 4, [[]] * 4, role=[0, 3, 0, 3], of=[0, 0, 1, 1])
    trace = Trace(Buffers.make([], [], []), ops)
    seen: list[list[int]] = [[], [], [], []]

    def launch(op: Op, view: Views) -> Call:
        counter = view.generator()
        assert counter.dtype == np.uint64 and counter.shape == (1,)

        def call(stream: object) -> None:
            counter[0] += np.uint64(op.role == "compute")
            seen[op.id].append(int(counter[0]))

        return call

    for _ in range(2):  # a program of its own starts from the beginning
        run(trace, Placement.at(trace, []), Emulator(), launch, iterations=3)
    assert seen == [[1, 2, 3] * 2] * 4


def test_a_bare_trace_does_not_run_and_neither_do_no_iterations() -> None:
    bare = Trace.from_lifetimes([4], [0], [1])
    with pytest.raises(ValueError, match="no ops"):
        prepare(bare, Placement.at(bare, [0]), Emulator())
    program = prepare(two_streams(), Placement.at(two_streams(), [0, 8]), Emulator())
    with pytest.raises(ValueError, match="iterations: 0"):
        program.run(0)


def test_the_simulator_has_no_bytes_to_read_back() -> None:
    trace = Trace(Buffers.make([8], [0], [1], persistent=[True]), Ops.make([[0]], [[0]]))
    with pytest.raises(ValueError, match="moves no bytes"):
        run(trace, Placement.at(trace, [0]), Simulator(tiny_machine()), state={0: np.zeros(8, np.uint8)})


def test_an_unswapped_launch_refuses_a_strange_trace() -> None:
    trace = two_streams()
    strange = replace(trace, ops=replace(trace.ops, of=trace.ops.of + 5))
    with pytest.raises(ValueError, match="recorded op 5 is not in the trace"):
        prepare(strange, Placement.at(trace, [0, 8]), Emulator(), GenericOp(trace))
