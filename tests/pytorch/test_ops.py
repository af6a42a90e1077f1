"""The classifier says what an op is before it runs: by its schema and operands alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.torch import record
from gpumem.torch.ops import call_of, kind_of

X, Y = torch.ones(4, 4), torch.ones(2, 4)
Calls = list[tuple[str, int, int]]


class Classify(TorchDispatchMode):
    """Asks of each call, before it runs, whether it is an op; of ops: operands and what is written."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.calls = device, list[tuple[str, int, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = call_of(func, args, kwargs or {}, self.device)
        if call is not None:
            self.calls.append((call.kind.name.partition(".")[0], len(call.operands), len(call.written)))
        return func(*args, **(kwargs or {}))


def calls(run: Callable[[], object], device: str = "cpu") -> Calls:
    with Classify(device) as classify:
        run()
    return classify.calls


@pytest.mark.parametrize(
    "run",
    [
        lambda: X.view(-1)[1:].detach().unsqueeze(0).expand(3, 15),
        lambda: X.chunk(2) + X.unbind() + X.split([1, 3]),
        lambda: torch.ops.aten._unsafe_view(X, [16]),
        lambda: torch.tensor([1.0, 2.0]),
        lambda: torch.ops.profiler._record_function_enter_new("mark", None),
        lambda: (X.shape, X.stride(), X.is_contiguous(), X.dtype),
        lambda: (torch.empty(0), torch.zeros(2, 0)),
    ],
    ids=["views", "pieces", "unsafe_view", "lift_fresh", "no tensors", "questions", "nothing"],
)
def test_what_is_no_op(run: Callable[[], object]) -> None:
    assert calls(run) == []


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: X + X, [("add", 2, 0)]),
        (lambda: X.clone().add_(1), [("clone", 1, 0), ("add_", 1, 1)]),
        (lambda: torch.zeros(3), [("zeros", 0, 0)]),
        (lambda: torch.randn(3), [("randn", 0, 0)]),
        (lambda: X.sum().item(), [("sum", 1, 0), ("_local_scalar_dense", 1, 0)]),
        (lambda: torch.equal(X, X), [("equal", 2, 0)]),
        (lambda: torch.add(X, X, out=torch.empty(4, 4)), [("empty", 0, 0), ("add", 3, 1)]),
        (lambda: torch._foreach_add_([X.clone(), X.clone()], 0), [("clone", 1, 0)] * 2 + [("_foreach_add_", 2, 2)]),
        (lambda: torch._foreach_mul([X, X], 2), [("_foreach_mul", 2, 0)]),
        (lambda: torch.cat([X, X]), [("cat", 2, 0)]),
        (lambda: X[torch.tensor([0, 1])], [("index", 2, 0)]),
        (
            lambda: F.batch_norm(X, X[0] * 0, X[1] * 1, training=True),
            [("mul", 1, 0)] * 2 + [("native_batch_norm", 3, 2)],
        ),
        (lambda: F.batch_norm(X, X[0], X[1]), [("native_batch_norm", 3, 0)]),
        (lambda: X.to("meta"), [("_to_copy", 1, 0)]),
    ],
)
def test_what_is_one(run: Callable[[], object], expected: Calls) -> None:
    assert calls(run) == expected


def test_a_device_sees_its_own_ops_and_what_is_copied_to_it() -> None:
    there = torch.empty(4, 4, device="meta")
    assert calls(lambda: X + X, "meta") == calls(lambda: torch.zeros(3), "meta") == []
    assert calls(lambda: X.to("meta"), "meta") == [("_to_copy", 0, 0)]
    assert calls(lambda: there.copy_(X), "meta") == [("copy_", 1, 1)]
    assert calls(lambda: there * torch.tensor(2.0), "meta") == [("mul", 1, 0)]


def test_random_ops_are_told_from_others() -> None:
    aten = torch.ops.aten
    draws = [aten.randn.default, aten.bernoulli_.float, aten.native_dropout.default, aten.normal_.default]
    assert all(kind_of(op).rng for op in draws)
    assert not any(kind_of(op).rng for op in (aten.mm.default, aten.native_dropout_backward.default))


def test_ops_that_arrive_whole_are_taken_apart() -> None:
    def traced(guard: Callable[[], Any]) -> tuple[str, ...]:
        def step() -> None:
            with guard():
                F.linear(torch.ones(2, 4), X, X[0]).relu()

        return record(lambda: step, "cpu").trace.ops.name

    assert traced(torch.inference_mode) == traced(torch.no_grad) == ("ones.default", "addmm.default", "relu.default")
