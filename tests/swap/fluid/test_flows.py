"""The program of flows: it says what the fluid program says, and finer breakpoints never lower its bound."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from gpumem.io import bundled
from gpumem.simulator.machine import Link, Machine
from gpumem.swap.facts.limits import floor
from gpumem.swap.fluid import FlowProgram, relax
from tests.nets import GTX
from tests.strategies import machine_of, traces
from tests.swap.fluid.linear import Linear
from tests.swap.nets import line


@given(st.data())
def test_flows_say_what_the_fluid_says(data: st.DataObject) -> None:
    trace, target = data.draw(traces(streams=1, max_ops=12)), machine_of(data)
    assume(trace.peak_live_bytes)
    breaks = 2 * np.array(sorted(data.draw(st.sets(st.integers(0, trace.n - 1), min_size=1))))
    for limit in (None, max(floor(trace)[1], trace.peak_live_bytes // 2)):
        f = relax(trace, target, stalls=limit is not None)
        fluid = Linear(f, breaks, trace.peak_live_bytes, limit).rows.relaxed()
        flow = FlowProgram(f, breaks, trace.peak_live_bytes, limit).solve()
        assert fluid and flow and fluid.dual == pytest.approx(flow.dual, rel=1e-3, abs=1e-4)  # close rates are one


def test_copies_before_their_value_is_made_are_told() -> None:
    link = Link(0.0, 2.0)
    target = Machine("m", 100, link, link, 1.0, 1.0)
    found = FlowProgram(relax(line(), target, stalls=True), np.array([0, 4, 6]), 16, 8).solve()
    assert found is not None and found.dual == pytest.approx(0, abs=1e-9)  # out 0..16 and in 30..46, as it seems
    assert dict(zip(*(column.tolist() for column in found.crammed))) == pytest.approx({1: 6, 8: 6})  # op 0 ends at 10


def test_finer_breakpoints_never_lower_the_bound() -> None:
    trace = bundled("mlp3")
    f = relax(trace, GTX, stalls=False)
    breaks = (np.arange(0, 2 * f.n, 2 * step) for step in (8, 4, 2, 1))
    found = [FlowProgram(f, at, trace.peak_live_bytes, None).solve() for at in breaks]
    values = [solution.dual for solution in found if solution is not None]
    assert len(values) == 4
    assert all(a <= b + 1e-9 for a, b in pairwise(values))
