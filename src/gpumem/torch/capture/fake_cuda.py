"""Let tensors without a device take the path of CUDA tensors, where PyTorch chooses by the device.

Dropout is one op that keeps a mask, RMS norm one that keeps a number for each row, scaled-dot-product attention takes
the form that a GPU would choose, optimizers work on all parameters at once (`foreach`) unless set not to, autocast
casts. There seems to be one GPU, see `one_gpu`. Batch norm, LSTM cells and losses stay the generic ops: what cuDNN's
would keep is not known without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, partialmethod
from typing import Any

from gpumem.torch.capture.autocast import Autocast
from gpumem.torch.capture.meta_kernels import add_kernels
from gpumem.torch.capture.one_gpu import Hosted, there
from gpumem.torch.internals import kernels, no_function_modes, torch
from gpumem.torch.internals.redirected import BY_DEVICE, CHECKPOINTED, CUDNN, RECOMPUTED, original, redirected

HALVES = (torch.float16, torch.bfloat16)
WIDEST = 256  # head dimension that the flash form takes, at most, as in ATen


def attention(  # noqa: PLR0917  PyTorch's signature
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
        return _efficient(query, key, value, mask=attn_mask, dropout=dropout_p, causal=is_causal, scale=scale)
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    needs = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if mask is not None:
        mask = mask.expand(*query.shape[:-1], key.size(-2))
    return aten._scaled_dot_product_efficient_attention(query, key, value, mask, needs, dropout, causal, scale=scale)[0]


aten = torch.ops.aten


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Let what runs inside dispatch on `meta` as it would on a GPU."""
    with kernels() as library:
        add_kernels(library)
        library.impl("scaled_dot_product_attention", attention, "AutogradMeta")
        with there(), redirected(_stand_ins()), Autocast().on_meta(), warnings.catch_warnings():
            # a checkpoint's values are no matter
            warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")
            yield


def _stand_ins() -> Iterator[tuple[str, Any]]:
    """What asks for the type of a device, or for the device itself, and what stands in."""
    for name in BY_DEVICE:
        yield name, partial(_and_meta, original(name))
    yield CHECKPOINTED, partial(_or_cuda, original(CHECKPOINTED))
    yield RECOMPUTED, {name: partial(_truly, kept) for name, kept in original(RECOMPUTED).items()}
    yield CUDNN, lambda tensor: False
    yield "torch.Generator", Hosted
    yield "torch.Tensor.__format__", partialmethod(_format, torch.Tensor.__format__)


def _and_meta(known: Callable[..., list[str]], *args: Any, **kwargs: Any) -> list[str]:
    return [*known(*args, **kwargs), "meta"]


def _or_cuda(kind_of: Callable[..., str], *args: Any) -> str:
    kind = kind_of(*args)
    return "cuda" if kind == "meta" else kind


def _truly(metadata: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    """What a tensor is, and not what it seems to be."""
    with no_function_modes():
        return metadata(x)


def _format(x: torch.Tensor, plain: Callable[[torch.Tensor, str], str], spec: str) -> str:
    """As of a tensor with values: a number is written as one."""
    return format(x.item(), spec) if spec and x.is_meta and x.dim() == 0 else plain(x, spec)
