"""The emulator poisons memory that nobody holds, and refuses an order that picks what cannot run."""

from __future__ import annotations

import pytest

from gpumem.base.errors import ExecutionError
from gpumem.execute import Call, Emulator, Views, in_issue_order, prepare
from gpumem.trace import Op
from gpumem.trace.placement import Placement
from tests.execute.programs import two_streams


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
