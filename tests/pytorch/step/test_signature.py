"""Signatures of calls say what was called: held against the calls themselves, and kept by captured traces."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpumem.torch import capture
from gpumem.torch.step.signature import signature_of
from gpumem.trace.signature import contiguous, parse


class Calls(TorchDispatchMode):
    """Holds each signature against the arguments that it is of."""

    count = strided = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs or {}))
        found = parse(signature_of(args, kwargs or {}))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        assert [o.shape for o in found.operands] == [tuple(x.shape) for x in tensors]
        assert [f"torch.{o.dtype}" for o in found.operands] == [str(x.dtype) for x in tensors]
        for operand, x in zip(found.operands, tensors):
            assert x.is_contiguous() == contiguous(x.shape, x.stride()) == (operand.strides is None)
            assert operand.strides in (None, x.stride())
            self.strided += operand.strides is not None
        numbers = [float(x) for x in leaves if isinstance(x, (bool, int, float))]
        assert list(found.numbers) == numbers, (func, args)
        self.count += 1
        return func(*args, **(kwargs or {}))


def step() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.nn.GELU("tanh"), torch.nn.Flatten())
    last = torch.nn.Linear(64, 5)
    loss = torch.cat([last(net(torch.randn(2, 3, 8, 8))), torch.ones(1, 5)]).t().softmax(0).expand(2, 5, 3).sum()
    loss.backward()
    torch.optim.Adam([*net.parameters(), *last.parameters()], foreach=True).step()


def test_a_signature_says_what_was_called() -> None:
    with Calls() as calls:
        step()
    assert calls.count > 60 and calls.strided > 5


def test_captured_ops_keep_theirs() -> None:
    def make(batch: int = 4) -> Any:
        net = torch.nn.Conv2d(3, 8, 3, stride=2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step() -> None:
            net(torch.randn(batch, 3, 9, 9)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    for device in ("meta", "cpu"):
        trace = capture(make, device)
        assert trace.ops.attributes is not None
        called = {op.name: op.attributes["signature"] for op in trace.ops if op.attributes}
        assert (
            called["convolution.default"] == "float32[4,3,9,9] float32[8,3,3,3] float32[8] (2 2) (0 0) (1 1) 0 (0 0) 1"
        )


def test_what_an_op_resizes_is_written_as_it_was_before() -> None:
    def make() -> Any:
        out = torch.empty(0)

        def step() -> None:
            x = torch.ones(3, 2)
            torch.mm(x, x.t(), out=out)
            out.resize_(0)

        return step

    trace = capture(make, "cpu")
    called = {op.name: op.attributes["signature"] for op in trace.ops if op.attributes}
    assert called["mm.out"] == "float32[3,2] float32[2,3]@1,2 out=float32[0]"


def test_tensors_without_a_shape_of_their_own_have_a_type_alone() -> None:
    lazy = torch.nn.LazyLinear(4).weight
    assert signature_of([lazy, torch.ones(2).to_sparse()], {}) == "float32[] float32[]"
