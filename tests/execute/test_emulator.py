"""The emulator poisons memory that nobody holds, and refuses an order that picks what cannot run."""

from __future__ import annotations

import tracemalloc

import pytest

from gpumem.base.errors import ExecutionError
from gpumem.execute import Call, Emulator, Views, in_issue_order, late, prepare
from gpumem.execute.emulator import AHEAD
from gpumem.trace import Buffers, Op, Ops, Trace
from gpumem.trace.placement import Placement
from tests.execute.programs import planned, two_streams
from tests.runs import outcome, same


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


def most_bytes(trace: Trace, iterations: int) -> int:
    program = prepare(trace, Placement.at(trace, [0]), Emulator())
    tracemalloc.start()
    try:
        program.run(iterations)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.jit
def test_a_long_run_does_not_keep_all_of_its_ops() -> None:
    ops = Ops.make([[0]] * 40, [[0]] * 40)
    trace = Trace(Buffers.make([8], [0], [40], persistent=[True]), ops)
    most_bytes(trace, 1)  # what is compiled or imported once
    more = most_bytes(trace, 8 * AHEAD) - most_bytes(trace, 2 * AHEAD)
    assert more / (6 * AHEAD * 40) < 50  # bytes an op; once 350


@pytest.mark.jit  # a real plan: minutes without the compiler
def test_what_has_been_queued_for_too_long_is_run() -> None:
    whole, there, trace, placement = planned("vgg16")
    copies = [i for i in range(trace.n) if trace.ops.role[i] and i % 3 == 0]
    iterations = AHEAD + 9
    held = {k * trace.n + i for k in range(iterations) for i in copies}
    want = outcome(whole, whole, there, in_issue_order, iterations=iterations)
    for order in (late(held), 3):
        assert same(want, outcome(whole, trace, placement, order, iterations=iterations))
