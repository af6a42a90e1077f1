"""The classifier says what an op is before it runs: by its schema and operands alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.torch import record
from gpumem.torch.step.ops import LOOKS_AT_SHAPES, TOUCHES_NOTHING, call_of, kind_of
from tests.pytorch.own_ops import OWN

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


def aten_ops() -> list[Any]:
    """All overloads of PyTorch's own ops that reach a mode; composite ones come as what they are made of."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        if space == "aten" and not composite and hasattr(torch.ops.aten, packet):
            found.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return found


def tensors_in(arguments: Any) -> list[Any]:
    return [a for a in arguments if "Tensor" in str(a.type)]


# they look like views or questions, and do read: an alias with values of its own, a test of values
READ_ALL_THE_SAME = {
    *("_local_scalar_dense", "equal", "_assert_async", "allclose", "is_pinned", "_linalg_check_errors"),
    *("_sparse_broadcast_to", "_nested_get_values", "_nested_view_from_buffer", "_nested_view_from_jagged"),
    *("_nested_get_ragged_idx", "_nested_tensor_from_mask_left_aligned", "_validate_compressed_sparse_indices"),
    *("_cslt_sparse_mm_search",),
}


def test_every_op_of_this_pytorch_that_may_touch_nothing_is_in_one_of_two_lists() -> None:
    """A canary: what a new PyTorch adds counts as an op that reads until somebody has looked at it."""
    new = set()
    for op in aten_ops():
        arguments, schema = op._schema.arguments, op._schema
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
        aliases = any(a.alias_info is not None for a in arguments)
        if tensors_in(arguments) and not writes and (aliases or not tensors_in(schema.returns)):
            name = schema.name.removeprefix("aten::")
            if schema.name not in TOUCHES_NOTHING and name not in READ_ALL_THE_SAME:
                new.add(name)
    assert not new, f"look whether these touch bytes, and put them into TOUCHES_NOTHING or READ_ALL_THE_SAME: {new}"


def test_every_op_of_this_pytorch_that_may_look_at_shapes_only_is_listed() -> None:
    named = {op._schema.name for op in aten_ops() if op._schema.name.endswith("_like") or "::new_" in op._schema.name}
    new = named - LOOKS_AT_SHAPES
    assert not new, f"look whether these read their operand, and put them into LOOKS_AT_SHAPES or here: {new}"


def test_what_touches_nothing_makes_nothing_but_views() -> None:
    """Forms that write, as `unsafe_split.out`, count whatever they are called."""
    for op in aten_ops():
        schema = op._schema
        if schema.name not in TOUCHES_NOTHING or kind_of(op).may_be_op:
            continue
        fresh = [r for r in tensors_in(schema.returns) if r.alias_info is None]
        views = ("aten::unsafe_split", "aten::_unsafe_view", "aten::lift", "aten::_nested_tensor_")
        made_of_views = schema.name.startswith(views)
        assert not fresh or made_of_views, schema
    assert kind_of(torch.ops.aten.unsafe_split.Tensor_out).may_be_op and kind_of(torch.ops.aten.lift.out).may_be_op


@pytest.mark.parametrize("name", ["twice_like", "new_zeros", "view", "check", "count"])
def test_an_op_of_somebodys_own_reads_whatever_it_is_called_and_returns(name: str) -> None:
    op = getattr(OWN, name).default
    call = call_of(op, (X,), {}, "cpu")
    assert call is not None and [x is X for x in call.read] == [True]


def test_an_assertion_reads() -> None:
    call = call_of(torch.ops.aten._assert_async.default, (X,), {}, "cpu")
    assert call is not None and len(call.read) == 1


def test_ops_of_other_devices_are_none() -> None:
    there = torch.empty(2**20, 2**20, device="meta")
    assert calls(lambda: (there + 1, torch.empty_like(there), there.sum())) == []


def test_what_is_written_and_not_said_is_known() -> None:
    """Statistics of batch norms over several processes, states of cuDNN's dropout."""
    aten = torch.ops.aten
    for op in (aten.batch_norm_update_stats.default, aten.batch_norm_gather_stats.default, aten._cudnn_rnn.default):
        named = {op._schema.arguments[i].name for i in kind_of(op).undeclared_positions}
        assert named and named <= {"running_mean", "running_var", "dropout_state"}
    call = call_of(aten.batch_norm_update_stats.default, (X, Y[0], Y[1], 0.1), {}, "cpu")
    assert call is not None and [x is y for x, y in zip(call.written, (Y[0], Y[1]))] and len(call.written) == 2


def test_only_pytorchs_own_ops_are_called_again() -> None:
    assert kind_of(torch.ops.aten.mm.default).repeatable
    assert not kind_of(OWN.twice_like.default).repeatable
    assert not kind_of(torch.ops.aten._cudnn_rnn.default).repeatable
