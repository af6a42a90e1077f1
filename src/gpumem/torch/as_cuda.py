"""Let tensors without a device take the path of CUDA tensors, where PyTorch chooses by the device.

Dropout is one op that keeps a mask, scaled-dot-product attention the flash form for half precision without a mask and
the memory-efficient form otherwise, optimizers work on all parameters at once (`foreach`) unless told not to. Batch
norm, LSTM cells and losses stay the generic ops: what cuDNN's would keep is not known without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from unittest.mock import patch

from gpumem.torch._torch import Library, torch

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)


@contextmanager
def as_cuda() -> Iterator[None]:
    """Let what runs inside dispatch on `meta` as it would on a GPU."""
    library = Library("aten", "IMPL")
    library.impl("dropout", _dropout, "AutogradMeta")
    library.impl("scaled_dot_product_attention", _attention, "AutogradMeta")
    optimizers = import_module("torch.optim.optimizer")  # the package hides its module
    supported = optimizers._get_foreach_kernels_supported_devices
    with patch.object(optimizers, supported.__name__, lambda: [*supported(), "meta"]):
        try:
            yield
        finally:
            library._destroy()


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or not 0 < p < 1 or not x.numel():
        return aten.dropout.default.decompose(x, p, train)
    return aten.native_dropout(x, p, train)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if enable_gqa and query.size(-3) != key.size(-3):
        repeat = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(repeat, -3), value.repeat_interleave(repeat, -3)
    if query.dtype in HALVES and attn_mask is None:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), float("-inf"))
    needs = any(x.requires_grad for x in (query, key, value))
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, torch.is_grad_enabled() and needs, dropout_p, is_causal, scale=scale
    )[0]
