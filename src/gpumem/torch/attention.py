"""Scaled-dot-product attention in the form that PyTorch chooses on a GPU."""

from __future__ import annotations

from gpumem.torch._torch import torch

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
HEAD, MASK, WIDEST = 8, 16, 256  # heads and rows of masks are padded to multiples; flash takes heads up to that wide


def attention(
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
    """As `torch.nn.functional.scaled_dot_product_attention` of CUDA tensors.

    The flash form is for half precision without a mask, the memory-efficient one for whatever else has four dimensions
    and as many heads of keys as of queries, unless `torch.nn.attention.sdpa_kernel` forbids it; else it is many ops.
    (cuDNN's form, which some versions prefer on some GPUs, is not taken.)
    """
    fused, square = query.dim() == 4, not is_causal or query.size(-2) == key.size(-2)
    flash = fused and query.dtype in HALVES and attn_mask is None and square and query.size(-1) <= WIDEST
    if flash and torch.backends.cuda.flash_sdp_enabled():
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), float("-inf"))
    grouped = enable_gqa and query.size(-3) != key.size(-3)
    efficient = fused and not grouped and query.dtype in (*HALVES, torch.float32)
    if efficient and torch.backends.cuda.mem_efficient_sdp_enabled():
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    unfused: torch.Tensor = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return unfused


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, causal: bool, scale: float | None
) -> torch.Tensor:
    width = query.size(-1)
    if scale is None:
        scale = width**-0.5
    if more := -width % HEAD:
        query, key, value = (torch.nn.functional.pad(x, (0, more)) for x in (query, key, value))
    result: torch.Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, causal, False, scale=scale
    )[0]
    return result[..., :width] if more else result


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    needs = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if mask is not None:
        length = mask.size(-1)
        if mask.stride(-1) != 1 or any(stride % MASK for stride in mask.stride()[:-1]):
            mask = torch.nn.functional.pad(mask, (0, MASK - length % MASK))[..., :length]
        mask = mask.expand(*query.shape[:-1], key.size(-2))
    result: torch.Tensor = aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, needs, dropout, causal, scale=scale
    )[0]
    return result
