"""What a file tells of buffers and ops (shapes, types, attributes, modules, hosts, blocking) stays with them.

It is asked of plans, other batches, files, instructions of jobs, and the models of `execute`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, strategies as st

from gpumem import io
from gpumem.execute.models import mlp
from gpumem.jobs.scheduler.instructions import instructions
from gpumem.simulator.machine import Machine
from gpumem.swap import Plan, Recompute, Swap, Variant
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.batch import rebatch
from gpumem.trace.kinds import GENERATOR
from tests.strategies import any_plans, steps
from tests.trace.rows import columns

HOSTS = ("main", "loader")


def told(trace: Trace) -> Trace:
    """The trace with something of its own told of every buffer and every op but each third."""
    n, count = trace.n, len(trace.buffers)
    buffers = replace(
        trace.buffers,
        shape=tuple(None if j % 3 == 2 else (j, 3) for j in range(count)),
        dtype=tuple("" if j % 3 == 2 else f"float{j}" for j in range(count)),
    )
    ops = replace(
        trace.ops,
        attributes=tuple(None if i % 3 == 2 else {"stride": [i, i]} for i in range(n)),
        module=tuple("" if i % 3 == 2 else f"layer{i}" for i in range(n)),
        host=np.arange(n) % 2,
        hosts=HOSTS,
        blocking=np.arange(n) % 4 == 1,
    )
    return replace(trace, buffers=buffers, ops=ops)


@given(st.data())
def test_pieces_of_buffers_and_ops_run_again_know_what_those_before_did(data: st.DataObject) -> None:
    trace = told(data.draw(steps()))
    plan = data.draw(any_plans(trace))
    after = replace(plan, blocking=data.draw(st.booleans())).apply(trace)
    for new in after.buffers:
        if new.kind == GENERATOR and trace.buffers.kind[min(new.of, len(trace.buffers) - 1)] != GENERATOR:
            assert (new.of, new.shape, new.dtype) == (-1, None, "")
        elif new.of >= 0:
            old = trace.buffers[new.of]
            assert (new.shape, new.dtype) == (old.shape, old.dtype)
    beside = {int(of): i for i, of in enumerate(after.ops.of.tolist()) if of >= 0}
    for op in after.ops:
        if op.role.startswith("copy"):
            assert (op.attributes, op.module, op.host in HOSTS) == (None, "", True) and op.blocking in (False, True)
        else:
            old_op = trace.ops[op.of]
            now = (op.attributes, op.module, op.host, op.blocking)
            assert now == (old_op.attributes, old_op.module, old_op.host, old_op.blocking) and op.of in beside


def net() -> Trace:
    """op 0 makes A, op 1 works beside it, random op 2 makes B of A, op 3 reads both; the last two read A again."""
    ops = Ops.make([[], [], [0], [0, 1], [0], [1]], [[0], [2], [1], [], [], []], rng=[0, 0, 1, 0, 0, 0])
    kind = ["activation", "activation", "workspace"]
    return told(Trace(Buffers.make([8, 8, 4], [0, 2, 1], [6, 6, 2], kind=kind), ops))


def test_by_hand() -> None:
    trace = net()
    plan = Plan.of(trace, [Swap(0, 0, 2, 1, 2), Recompute(1, 3, 5, 5)], blocking=True)
    after = plan.apply(trace)
    assert {(b.space, b.shape, b.dtype) for b in after.buffers if b.of == 0} == {
        ("device", (0, 3), "float0"),
        ("host", (0, 3), "float0"),
    }
    assert [(b.shape, b.dtype, b.of) for b in after.buffers if b.kind == GENERATOR] == [(None, "", -1)]
    out, again = (op for op in after.ops if op.role in ("copy_out", "recompute"))
    assert (out.host, out.blocking, out.attributes, out.module) == ("main", True, None, "")  # of op 0
    assert (again.of, again.host, again.blocking, again.module) == (2, "main", False, "")
    (back,) = (op for op in after.ops if op.role == "copy_in")
    assert (back.host, back.blocking) == ("main", True)  # of op 2
    waits = replace(trace, ops=replace(trace.ops, blocking=np.arange(6) == 2))
    assert [op.blocking for op in plan.apply(waits).ops if op.of == 2] == [True, True]


def test_a_workspace_of_another_size_has_no_shape() -> None:
    after = Plan.of(net(), [Variant(1, "other", 5, 99)]).apply(net())
    assert after.buffers[2].size == 99 and after.buffers.shape == ((0, 3), (1, 3), None)
    after = Plan.of(net(), [Variant(0, "other", 5, 99)]).apply(net())
    assert after.buffers.shape == ((0, 3), (1, 3), None, None) and after.buffers.dtype == ("float0", "float1", "", "")
    assert after.ops.attributes == net().ops.attributes and after.ops.hosts == HOSTS


def test_rewrites_of_the_whole_trace_keep_them(tmp_path: Path) -> None:
    trace = net()
    twice = rebatch(trace, 2)
    assert twice.buffers.dtype == trace.buffers.dtype
    assert columns(twice.ops) == columns(trace.ops)
    assert trace.host_side().buffers.shape == trace.buffers.shape
    io.write(tmp_path / "net.json", trace, duration=np.full(6, 3))
    back = io.read(tmp_path / "net.json")
    assert columns(back.ops) == columns(trace.ops)
    assert (back.buffers.shape, back.buffers.dtype) == (trace.buffers.shape, trace.buffers.dtype)


def test_instructions_of_a_job_keep_them() -> None:
    plan = Plan.of(net(), [Swap(0, 0, 2, 1, 2)])
    todo = instructions(net(), plan, Machine.named("v100")).trace
    assert {op.of: (op.attributes, op.module, op.host, op.blocking) for op in todo.ops if op.of >= 0} == dict(
        enumerate(columns(net().ops))
    )
    assert {b.shape for b in todo.buffers if b.of == 0} == {(0, 3)}


def test_models_know_their_shapes() -> None:
    trace = mlp(batch=4).trace
    assert trace.buffers.shape is not None and trace.buffers.dtype is not None
    for b in trace.buffers:
        if b.shape is not None:
            assert b.size == int(np.prod(b.shape)) * np.dtype(b.dtype).itemsize
    assert sum(shape is not None for shape in trace.buffers.shape) > len(trace.buffers) // 2
