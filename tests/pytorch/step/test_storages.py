"""Storages under management: which of them are held, and which stay where they are."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from gpumem.torch import managed
from tests.pytorch.small_runs import HOW, nested


@pytest.mark.filterwarnings("ignore:.*prototype stage")
def test_what_a_nested_tensor_knows_its_sizes_by_stays() -> None:
    with managed("64KiB", **HOW) as run:
        x = nested([torch.ones(2, 3), torch.ones(4, 3)])
        sizes = x._nested_tensor_size()  # type: ignore[attr-defined]
        assert run.memory.of([sizes])[0].pinned
    with (
        warnings.catch_warnings(),
        managed(300, **HOW, on_exit="host"),
    ):  # within less than that there is nothing to throw
        warnings.filterwarnings("ignore", "runs on demand")
        parts = [torch.ones(2, 3, requires_grad=True)]
        nested(parts)


def test_a_profilers_mark_is_an_object() -> None:
    with managed("64KiB", **HOW) as run:
        mark = torch.ops.profiler._record_function_enter("a part", None)
        assert run.memory.of([mark])[0].pinned
        torch.ops.profiler._record_function_exit(mark)


def test_tensors_of_no_device_are_not_held() -> None:
    with managed("64KiB", **HOW) as run:
        there = torch.empty(2**20, 2**20, device="meta")
        assert (there + 1).is_meta and nn.Linear(8, 8).to("meta").weight.is_meta
        assert run.memory.held < 4096


def test_nothing_that_a_program_drops_lives_on() -> None:
    storage = torch.UntypedStorage(64)
    dead = weakref.ref(storage)
    with managed("64KiB", **HOW):
        x = torch.empty(0, dtype=torch.uint8).set_(storage)
        del storage, x
        assert dead() is None


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_is_within_objects_and_quantized_tensors_stays() -> None:
    def convolved() -> Any:
        weight = torch.quantize_per_channel(
            torch.ones(2, 3, 3, 3), torch.tensor([0.1, 0.2]), torch.zeros(2, dtype=torch.int64), 0, torch.qint8
        )
        packed = torch.ops.quantized.conv2d_prepack(weight, torch.ones(2) + 1, [1, 1], [0, 0], [1, 1], 1)
        x = torch.quantize_per_tensor(torch.ones(1, 3, 3, 3), 0.1, 0, torch.quint8)
        torch.ones(900).add(1)
        return torch.ops.quantized.conv2d(x, packed, 1.0, 0).dequantize(), weight.dequantize()

    bare = convolved()
    with managed(10_000, **HOW, on_exit="host"):
        assert all(map(torch.equal, convolved(), bare))


def test_a_zero_that_has_a_size_and_no_bytes_is_not_held() -> None:
    with managed("64KiB", **HOW) as run:
        zero = torch._efficientzerotensor((64,))
        before = run.memory.held
        assert (zero + torch.ones(64)).sum().item() == 64
        assert zero.untyped_storage()._cdata not in run.memory.by_key and before < 600
