"""Whose tensors a plan moves: decisions are summed by module and phase."""

from __future__ import annotations

import pytest

import gpumem
from gpumem import Trace
from gpumem.pipeline.report import by_module
from gpumem.swap import Plan, Recompute, Swap
from gpumem.trace import Buffers, Ops

pytestmark = pytest.mark.jit


def modular() -> Trace:
    """Four ops of two modules; the first two make a buffer each, the last two read them; a weight with its state."""
    told = [{"phase": phase} for phase in ("forward", "forward", "backward", "optimizer")]
    ops = Ops.make(
        [[2], [0], [0, 1], [2, 3]],
        [[0], [1], [], [2, 3]],
        attributes=told,
        module=["net.0.conv", "net.0.relu", "net.0.relu", ""],
    )
    names, kinds = (
        ["", "", "net.0.conv.weight", "net.0.conv.weight.momentum"],
        ["activation"] * 2 + ["param", "opt_state"],
    )
    full = {"persistent": [False, False, True, True]}
    return Trace(Buffers.make([8, 4, 2, 2], [0, 1, 0, 0], [3, 3, 4, 4], kind=kinds, name=names, **full), ops)


def test_decisions_are_summed_by_module_and_phase() -> None:
    plan = Plan.of(modular(), [Swap(3, 3, 7, 4, 6), Swap(0, 1, 2, 2, 2), Recompute(1, 1, 2, 2)])
    deep = {h.module: (h.moved, h.recomputed, h.tensors, h.phases) for h in by_module(modular(), plan)}
    assert deep == {
        "net.0.conv": (10, 0, 2, "forward to backward, optimizer to the next optimizer"),
        "net.0.relu": (0, 4, 1, "forward to backward"),
    }
    (one,) = by_module(modular(), plan, rows=1)
    assert (one.module, one.moved, one.recomputed, one.tensors) == ("net.0", 10, 4, 3)
    assert by_module(modular(), Plan()) == []


def test_where_there_are_too_many_modules_the_rest_is_one_row() -> None:
    trace = gpumem.bundled("vgg16")
    plan = gpumem.plan(trace, "gtx1080ti", pool="60%", planner="capuchin", check=False).plan
    (one,) = by_module(trace, plan, rows=1)
    assert one.tensors == len(plan.decisions) and one.moved == sum(trace.buffers.size[s.buffer] for s in plan.swaps)
    assert len(by_module(trace, plan, rows=3)) <= 3
