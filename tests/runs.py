"""Runs on the emulator with the generic op, and whether two of them agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpumem.execute import Call, Emulator, GenericOp, Order, Views, carried, initial, prepare
from gpumem.trace import Op, Trace
from gpumem.trace.placement import Placement

Outcome = tuple[dict[int, np.ndarray], np.ndarray]


def as_it_is(op: Op, views: Views, call: Call) -> Call:
    return call


def outcome(
    original: Trace,
    trace: Trace,
    placement: Placement,
    order: int | Order,
    *,
    host: Placement | None = None,
    iterations: int = 3,
    fault: Callable[[Op, Views, Call], Call] = as_it_is,
) -> Outcome:
    """What a run leaves at the boundary, and what every op of the original has read.

    All iterations are queued before the first op runs. `fault` may put another call in the place of an op's.
    """
    generic, state = GenericOp(original), initial(original, seed=1)

    def launch(op: Op, views: Views) -> Call | None:
        call = generic(op, views)
        return call and fault(op, views, call)

    program = prepare(trace, placement, Emulator(order), launch, host=host)
    program.write({of: value for of, value in state.items() if of in program.crossing()})
    program.run(iterations)
    held = carried(original)
    return {of: value for of, value in program.read().items() if of in held}, generic.seen


def differs(want: Outcome, got: Outcome) -> str:
    """Which op read other bytes than its original, or which buffer that the second run keeps has others."""
    for op in np.flatnonzero(want[1] != got[1]).tolist():
        return f"op {op} read other bytes"
    return next((f"buffer {of} holds other bytes" for of, x in got[0].items() if (x != want[0][of]).any()), "")


def same(want: Outcome, got: Outcome) -> bool:
    """Whether every op read the same, and whatever the second run keeps is what the first keeps."""
    return not differs(want, got)
