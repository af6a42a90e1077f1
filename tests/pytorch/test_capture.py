"""Recorded steps: against files recorded by another program."""

from __future__ import annotations

from gpumem import Trace
from gpumem.io import bundled
from gpumem.torch import capture
from tests.pytorch.nets import mlp3


def described(trace: Trace) -> list[object]:
    """Each op by name, operands (bytes and kind), flops and bytes moved."""
    b = trace.buffers
    return [
        (op.name, *([(int(b.size[i]), b.kind[i]) for i in ids] for ids in (op.reads, op.writes)), flops, moved)
        for op, flops, moved in zip(trace.ops, trace.ops.flops.tolist(), trace.ops.moved.tolist())
    ]


def test_a_step_is_what_another_recorder_saw() -> None:
    mine, theirs = capture(mlp3), bundled("mlp3")
    assert described(mine) == described(theirs)
    assert mine.load().tolist() == theirs.load().tolist()
    assert mine.buffers.name[:2] == ("0.weight", "0.bias")
