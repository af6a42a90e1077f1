"""What the recorder says that ops read, write and move, where PyTorch's schemas do not say it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gpumem.torch import capture, record


def ops_of(step: Callable[[], object]) -> list[tuple[str, list[int], list[int], int]]:
    """Name, bytes of operands and bytes moved of each op of the last iteration."""
    trace = record(lambda: step).trace
    size, ops = trace.buffers.size, trace.ops
    return [
        (op.name, *([int(size[i]) for i in ids] for ids in (op.reads, op.writes)), int(moved))
        for op, moved in zip(ops, ops.moved)
    ]


def test_what_goes_over_what_was_there_is_not_read_and_empty_memory_is_not_written() -> None:
    net: list[torch.nn.Module] = []

    def step() -> None:
        net[:] = net or [torch.nn.Linear(2, 2)]
        net[0](torch.empty(1, 2))  # the batch arrives
        x, y = torch.empty(4), torch.ones(4)
        x.copy_(y)
        x[:2].zero_()

    assert ops_of(step) == [
        ("empty.memory_format", [], [8], 8),
        ("addmm.default", [8, 8, 16], [8], 40),
        ("empty.memory_format", [], [16], 0),
        ("ones.default", [], [16], 16),
        ("copy_.default", [16, 16], [16], 32),
        ("zero_.default", [16], [16], 8),
    ]


def test_a_copy_from_the_host_is_an_op_and_pieces_of_a_tensor_are_none() -> None:
    def step() -> None:
        x = torch.ones(4, 2, device="cpu").to("cuda")
        a, b = torch.unsafe_split(x, 2)
        a + b

    assert ops_of(step) == [("_to_copy.default", [], [32], 32), ("add.Tensor", [32], [16], 48)]


def test_a_tensor_of_no_bytes_is_no_buffer() -> None:
    def step() -> None:
        q = torch.ones(1, 2, 8, 4, dtype=torch.bfloat16)
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    trace = record(lambda: step).trace
    assert trace.buffers.size.min() > 0
    assert len(trace.ops[1].writes) == 4  # and not what only debugging fills


@pytest.mark.parametrize(
    "p, ops", [(0.0, []), (0.5, ["native_dropout.default"]), (1.0, ["new_zeros.default", "mul.Tensor"])]
)
def test_dropout_is_what_it_is_on_a_gpu(p: float, ops: list[str]) -> None:
    names = [name for name, *_ in ops_of(lambda: torch.nn.functional.dropout(torch.ones(4), p))]
    assert names == ["ones.default", *ops]


def test_gradients_add_up_in_place_in_any_order_of_the_dimensions() -> None:
    def step() -> None:
        x = torch.ones(2, 3, 4, requires_grad=True)
        y = (x * 2).transpose(1, 2)
        (y.exp() + y.sin()).sum().backward()

    assert "add_.Tensor" in [name for name, *_ in ops_of(step)]


def test_of_a_table_no_more_rows_are_read_than_come_out() -> None:
    def step() -> None:
        table, which = torch.ones(100, 4), torch.zeros(3, dtype=torch.int64)
        torch.nn.functional.embedding(which, table)
        table[which]

    moved = {name: moved for name, *_, moved in ops_of(step)}
    assert moved["embedding.default"] == moved["index.Tensor"] == 2 * 3 * 4 * 4 + 3 * 8


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm_backward"), reason="PyTorch without that kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_is_one_kernel_each_way_and_keeps_a_number_for_each_row(dtype: torch.dtype) -> None:
    def make() -> Callable[[], None]:
        norm = nn.RMSNorm(64).to(dtype)
        return lambda: norm(torch.randn(8, 64, dtype=dtype, requires_grad=True)).sum().backward()

    trace = capture(make)
    ops = {op.name: op for op in trace.ops}
    forth, back = ops["_fused_rms_norm.default"], ops["_fused_rms_norm_backward.default"]
    made, kept = forth.writes
    assert (trace.buffers.size[made], trace.buffers.size[kept]) == (8 * 64 * dtype.itemsize, 8 * 4)
    assert kept in back.reads and made not in back.reads
