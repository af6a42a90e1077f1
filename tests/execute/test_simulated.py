"""The simulator as a backend says what the simulator says, and moves no bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.execute import Simulator, run
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.simulate import simulate
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import tiny_machine
from tests.strategies import plans, traces


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


def test_the_simulator_has_no_bytes_to_read_back() -> None:
    trace = Trace(Buffers.make([8], [0], [1], persistent=[True]), Ops.make([[0]], [[0]]))
    with pytest.raises(ValueError, match="moves no bytes"):
        run(trace, Placement.at(trace, [0]), Simulator(tiny_machine()), state={0: np.zeros(8, np.uint8)})
