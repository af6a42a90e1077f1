"""Which form of attention is taken, by what is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

from gpumem.torch import capture

FLASH, EFFICIENT = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"


def ops(call: Callable[..., torch.Tensor], dtype: torch.dtype, shape: tuple[int, ...] = (2, 4, 32, 16)) -> list[str]:
    def make() -> Callable[[], None]:
        q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))

        def step() -> None:
            result = call(q, k, v)
            assert result.shape == q.shape and result.dtype == dtype
            torch.autograd.grad(result, (q, k, v), torch.ones_like(result))

        return step

    return [name.partition(".")[0] for name in capture(make).ops.name]


def masked(rows: int, columns: int) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: attend(q, k, v, torch.ones(rows, columns, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_take_flash(dtype: torch.dtype) -> None:
    assert ops(attend, dtype) == [FLASH, "ones_like", f"{FLASH}_backward"]


@pytest.mark.parametrize(
    ("call", "dtype", "shape"),
    [
        (attend, torch.float32, (2, 4, 32, 16)),
        (masked(32, 32), torch.bfloat16, (2, 4, 32, 16)),
        (attend, torch.bfloat16, (2, 4, 32, 264)),
        (lambda q, k, v: sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)(attend)(q, k, v), torch.float16, (2, 4, 32, 16)),
    ],
)
def test_others_take_the_efficient_form(call: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = ops(call, dtype, shape)
    assert EFFICIENT in found and f"{EFFICIENT}_backward" in found


def test_masks_of_truths_become_numbers() -> None:
    found = ops(masked(20, 20), torch.float32, (2, 4, 20, 16))
    assert found[:5] == ["ones", "scalar_tensor", "scalar_tensor", "where", EFFICIENT]  # as PyTorch does on the host


@pytest.mark.parametrize(
    ("call", "dtype", "shape"),
    [
        (attend, torch.float64, (2, 4, 32, 16)),
        (attend, torch.float16, (4, 32, 16)),
        (lambda q, k, v: sdpa_kernel(SDPBackend.MATH)(attend)(q, k, v), torch.float16, (2, 4, 32, 16)),
    ],
)
def test_what_no_form_takes_is_many_ops(call: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = ops(call, dtype, shape)
    assert "bmm" in found and "_safe_softmax" in found and not {FLASH, EFFICIENT} & set(found)


def test_heads_of_keys_are_shared_by_flash_alone() -> None:
    def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k[:, :2], v[:, :2], enable_gqa=True)

    assert ops(grouped, torch.bfloat16)[0] == FLASH
    assert "_safe_softmax" in ops(grouped, torch.float32)
