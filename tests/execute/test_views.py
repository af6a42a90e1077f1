"""What an op may look at: its own buffers as arrays that fit, and a counter for what it draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpumem.execute import Call, Emulator, Views, prepare, run
from gpumem.trace import Buffers, Op, Ops, Trace
from gpumem.trace.placement import Placement


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
