"""What can be made again: reasons why not, the cost, where the backward pass begins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.io import bundled
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.recompute import REASONS, backward_start, recomputable
from gpumem.swap.plan import Plan, Recompute
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.strategies import traces
from tests.swap.nets import layers


def test_every_reason_is_told(machine: Machine) -> None:
    def reason(ops: Ops, *, buffer: int = 1, end: int = 3) -> str:
        found = recomputable(Trace(Buffers.make([1, 8], [0, 0], [end, 3], persistent=[end == 3, False]), ops), machine)
        k = int(np.flatnonzero((found.gaps.buffer == buffer) & (found.gaps.after == 0))[0])
        return REASONS[found.reason[k]]

    make = Ops.make([[0], [], [1]], [[1], [], []])
    assert reason(make) == ""
    assert reason(Ops.make([[0], [], []], [[], [], []]), buffer=0) == "the gap wraps the iteration boundary"
    assert reason(Ops.make([[1], [], [1]], [[], [], []])) == "no op makes it as a whole"
    assert reason(Ops.make([[0, 1], [], [1]], [[1], [], []])) == "no op makes it as a whole"
    assert reason(replace(make, rng=np.array([True, False, False]))) == ""
    assert "reads nothing" in reason(Ops.make([[], [], [1]], [[1], [], []]))
    assert reason(make, end=2) == "no op makes it as a whole"  # its input, which is dead by then
    assert reason(Ops.make([[0], [], [1]], [[1], [0], []])) == "it was made before the iteration boundary"


def test_the_producers_time_is_the_cost(machine: Machine) -> None:
    found = recomputable(layers(2), machine)
    assert found.cost_ns[found.ok].tolist() == [10] * int(found.ok.sum())


def test_the_turn_of_a_trace() -> None:
    trace = bundled("vgg16")
    assert trace.ops.name[backward_start(trace)] == "ones_like.default"  # the gradient of the loss
    plain = replace(trace, buffers=replace(trace.buffers, kind=("",) * len(trace.buffers)))
    assert trace.ops.name[backward_start(plain)] == "nll_loss_backward.default"
    assert backward_start(replace(plain, ops=replace(trace.ops, name=("",) * trace.n))) == trace.peak[0]


@given(st.data())
def test_what_is_called_recomputable_is(data: st.DataObject) -> None:
    trace = data.draw(traces())
    found = recomputable(trace, tiny_machine())
    for k in range(len(found)):
        b, after, before = (int(x[k]) for x in (found.gaps.buffer, found.gaps.after, found.gaps.before))
        if at := int(found.until[k]):
            check.data_flow(trace, Plan((Recompute(b, after, before, at),)).apply(trace))
        if at < before and "reads nothing" not in REASONS[found.reason[k]]:  # and no later
            with pytest.raises(ValueError):
                Plan((Recompute(b, after, before, max(at, after) + 1),)).apply(trace)
