"""Plans run with real bytes: every legal order gives what the unswapped run gives, and no wait can be spared."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import autoswap, check
from gpumem.base.errors import ExecutionError, Infeasible, NotReached
from gpumem.execute import Call, Emulator, GenericOp, Views, in_issue_order, prepare, run, scaled
from gpumem.io import load
from gpumem.pool.smartpool.offline import best_fit, first_fit
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import Buffers, Op, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import shared
from tests.execute.programs import planned, two_streams
from tests.runs import outcome, same
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

    Not so over the boundary: the first iteration would compute what its caller passes in.
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


@pytest.mark.thorough
@pytest.mark.jit
@pytest.mark.parametrize("name", ["vgg16", "resnet18"])
def test_a_real_plan_in_random_orders(name: str) -> None:
    whole, there, trace, placement = planned(name)
    want = outcome(whole, whole, there, in_issue_order)
    for seed in range(5):
        assert same(want, outcome(whole, trace, placement, seed))


def at_70_percent(trace: Trace) -> Plan:
    """AutoSwap at 70 % of the peak live bytes, or at the lowest limit that is feasible at all."""
    machine, limit = Machine.named("gtx1080ti"), trace.peak_live_bytes * 70 // 100
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


def test_a_bare_trace_does_not_run_and_neither_do_no_iterations() -> None:
    bare = Trace.from_lifetimes([4], [0], [1])
    with pytest.raises(ValueError, match="no ops"):
        prepare(bare, Placement.at(bare, [0]), Emulator())
    program = prepare(two_streams(), Placement.at(two_streams(), [0, 8]), Emulator())
    with pytest.raises(ValueError, match="iterations: 0"):
        program.run(0)


def test_an_unswapped_launch_refuses_a_strange_trace() -> None:
    trace = two_streams()
    strange = replace(trace, ops=replace(trace.ops, of=trace.ops.of + 5))
    with pytest.raises(ValueError, match="recorded op 5 is not in the trace"):
        prepare(strange, Placement.at(trace, [0, 8]), Emulator(), GenericOp(trace))
