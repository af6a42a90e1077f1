"""Plans run with real bytes: every legal order gives what the unswapped run gives, and no wait can be spared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem.columns import Buffers, Csr, Ops
from gpumem.errors import ExecutionError
from gpumem.execute import Emulator, GenericOp, Program, Race, Simulator, in_issue_order, initial, late, prepare, run
from gpumem.execute.emulate import Order
from gpumem.placement import Placement
from gpumem.pool.smartpool import best_fit, first_fit
from gpumem.simulate import simulate
from gpumem.trace import Trace

from .conftest import tiny_machine
from .strategies import plans, traces

State = dict[int, np.ndarray]


def outcome(
    original: Trace,
    trace: Trace,
    placement: Placement,
    order: int | Order,
    *,
    host: Placement | None = None,
    iterations: int = 3,
) -> tuple[State, np.ndarray]:
    """What a run leaves behind, and what every op of the original has read."""
    launch, state = GenericOp(original), initial(original, seed=1)
    program = prepare(trace, placement, Emulator(order), launch, host=host)
    program.write({of: value for of, value in state.items() if of in program.crossing()})
    program.run(iterations)
    return program.read(), launch.seen


def same(want: tuple[State, np.ndarray], got: tuple[State, np.ndarray]) -> bool:
    """Whether every op read the same, and whatever the second run keeps is what the first keeps."""
    return bool((want[1] == got[1]).all()) and all((want[0][of] == value).all() for of, value in got[0].items())


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
