"""Scaled-dot-product attention in the form that PyTorch chooses on a GPU."""

from __future__ import annotations

from gpumem.torch.internals import torch

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
WIDEST = 256  # head that flash takes


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
    Simpler than on a GPU, as the recorder of the reference traces had it: heads and masks are not padded to multiples
    of 8 and 16. cuDNN's form, which some versions prefer, is not taken.
    """
    grouped = enable_gqa and query.size(-3) != key.size(-3)
    fused, square = query.dim() == 4, not is_causal or query.size(-2) == key.size(-2)
    flash = fused and query.dtype in HALVES and attn_mask is None and square and query.size(-1) <= WIDEST
    if flash and torch.backends.cuda.flash_sdp_enabled():
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(
            attn_mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=query.device)
        )
    efficient = fused and not grouped and query.dtype in (*HALVES, torch.float32)
    if efficient and torch.backends.cuda.mem_efficient_sdp_enabled():
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


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
        mask = mask.expand(*query.shape[:-1], key.size(-2))
    return aten._scaled_dot_product_efficient_attention(query, key, value, mask, needs, dropout, causal, scale=scale)[0]
