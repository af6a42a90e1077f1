"""Let tensors without a device take the path of CUDA tensors, where PyTorch chooses by the device.

Dropout is one op that keeps a mask, RMS norm one that keeps a number for each row, scaled-dot-product attention takes
the form that a GPU would choose, optimizers work on all parameters at once (`foreach`) unless told not to, autocast
casts. There seems to be one GPU, see `one_gpu`. Batch norm, LSTM cells and losses stay the generic ops: what cuDNN's
would keep is not known without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from typing import Any

from gpumem.torch.capture.autocast import Autocast
from gpumem.torch.capture.one_gpu import Hosted, there
from gpumem.torch.internals import has_kernel, kernels, torch, unguarded
from gpumem.torch.internals.redirected import BY_DEVICE, CHECKPOINTED, original, redirected

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


aten = torch.ops.aten
FUSED = [
    f"{name}{of}"
    for name in ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")
    for of in ("", ".tensor_lr")
]
ALIGNED = 16  # bytes: what rows of a grouped product begin at
MEAN = 1  # of reductions, as ATen counts them
WHOLE = (
    "mse_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "binary_cross_entropy",
)  # their sum keeps the storage of all that is summed


@contextmanager
def as_cuda() -> Iterator[None]:
    """Let what runs inside dispatch on `meta` as it would on a GPU."""
    with ExitStack() as world:
        library = world.enter_context(kernels())
        library.impl("dropout", _dropout, "AutogradMeta")
        library.impl("scaled_dot_product_attention", attention, "AutogradMeta")
        library.impl("softmax.int", partial(_softmax, aten._softmax, aten.softmax.int), "AutogradMeta")
        library.impl("log_softmax.int", partial(_softmax, aten._log_softmax, aten.log_softmax.int), "AutogradMeta")
        library.impl("one_hot", _one_hot, "AutogradMeta")
        unguarded(library, "_fused_rms_norm", "Meta", _rms_norm)  # elsewhere than on a GPU it decomposes
        library.impl("ctc_loss.Tensor", _ctc_loss, "AutogradMeta")
        for name in ("_ctc_loss_backward", "_ctc_loss_backward.Tensor"):
            library.impl(name, _ctc_loss_backward, "Meta")
        for name in WHOLE:
            library.impl(name, partial(_reduced, getattr(aten, name).default), "Meta")
        library.impl("_grouped_mm", _grouped_mm, "Meta")  # PyTorch's own takes bfloat16 alone
        library.impl("native_layer_norm_backward", _layer_norm_backward, "Meta")
        library.impl("im2col", _columns, "Meta")
        library.impl("col2im", _image, "Meta")
        for name in FUSED:
            if _known(name) and not has_kernel(f"aten::{name}", "Meta"):
                library.impl(name, lambda *args, **kwargs: None, "Meta")
        world.enter_context(there())
        world.enter_context(redirected(_stand_ins()))
        world.enter_context(Autocast().on_meta())
        world.enter_context(warnings.catch_warnings())
        warnings.filterwarnings(
            "ignore", "for .*: copying from a non-meta parameter"
        )  # a checkpoint's values are no matter
        yield


def _stand_ins() -> Iterator[tuple[str, Any]]:
    """What asks for the type of a device, or for the device itself, and what stands in."""
    for name in BY_DEVICE:
        yield name, partial(_and_meta, original(name))
    yield CHECKPOINTED, partial(_or_cuda, original(CHECKPOINTED))
    yield "torch.Generator", Hosted
    yield "torch.Tensor.__format__", partialmethod(_format, torch.Tensor.__format__)


def _known(name: str) -> bool:
    """Whether this version has the op."""
    packet, _, overload = name.partition(".")
    return hasattr(getattr(aten, packet, None), overload or "default")


def _and_meta(known: Callable[..., list[str]], *args: Any, **kwargs: Any) -> list[str]:
    return [*known(*args, **kwargs), "meta"]


def _or_cuda(kind_of: Callable[..., str], *args: Any) -> str:
    kind = kind_of(*args)
    return "cuda" if kind == "meta" else kind


def _format(x: torch.Tensor, plain: Callable[[torch.Tensor, str], str], spec: str) -> str:
    """As of a tensor with values: a number is written as one."""
    return format(x.item(), spec) if spec and x.is_meta and x.dim() == 0 else plain(x, spec)


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if p == 0 or not train or not x.numel():
        return x
    if p == 1:
        return x * x.new_zeros(())
    return aten.native_dropout(x, p, train)[0]


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A product by groups: of rows, of columns, of what is summed, or one for each group; its rows are aligned."""
    groups = [] if a.dim() != b.dim() else [a.size(0) if offs is None else offs.numel()]
    dtype = out_dtype or a.dtype
    width = ALIGNED // dtype.itemsize
    row = (b.size(-1) + width - 1) // width * width
    strides = [a.size(-2) * row] * len(groups)
    return a.new_empty_strided([*groups, a.size(-2), b.size(-1)], [*strides, row, 1], dtype=dtype)


def _one_hot(x: torch.Tensor, classes: int = -1) -> torch.Tensor:
    if classes == -1:
        classes = int(x.max().item()) + 1
    return torch.zeros([*x.shape, classes], dtype=x.dtype, device=x.device).scatter_(-1, x.unsqueeze(-1), 1)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """As ATen's, but that lengths may be on the host: so they may on a GPU where no mode is on."""
    found = aten._ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        nothing = torch.zeros((), dtype=found.dtype, device=found.device)
        found = torch.where(found == float("inf"), nothing, found)
    if reduction != MEAN:
        return found.sum() if reduction else found
    return (found / target_lengths.to(found.device).clamp_min(1)).mean()


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, *others: Any, **more: Any) -> torch.Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _reduced(op: Any, x: torch.Tensor, y: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A loss as ATen's kernels make it, where they reduce: as large as before, then made a number in place."""
    whole = x.new_empty(torch.broadcast_shapes(x.shape, y.shape), dtype=torch.result_type(x, y))
    told = dict(zip((a.name for a in op._schema.arguments[2:]), args)) | kwargs
    return whole if told.get("reduction", 1) == 0 else whole.resize_(())


def _layer_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, shape: Sequence[int], mean: Any, rstd: Any, *weights: Any
) -> tuple[torch.Tensor | None, ...]:
    """As ATen's kernels lay it out: in rows, whatever the gradient's strides are."""
    *parameters, wanted = weights
    made = [x, *parameters]
    return tuple(
        torch.empty_like(y, memory_format=torch.contiguous_format) if want and y is not None else None
        for y, want in zip(made, wanted)
    )


def _image(x: torch.Tensor, size: Sequence[int], kernel: Sequence[int], *how: Any) -> torch.Tensor:
    return _in_storage_of(x, x.size(-2) // (kernel[0] * kernel[1]), *size)


def _columns(x: torch.Tensor, kernel: Sequence[int], *how: Sequence[int]) -> torch.Tensor:
    places = 1
    for length, size, dilation, padding, stride in zip(x.shape[-2:], kernel, *how):
        places *= (length + 2 * padding - dilation * (size - 1) - 1) // stride + 1
    return _in_storage_of(x, x.size(-3) * kernel[0] * kernel[1], places)


def _in_storage_of(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """A result as `im2col` and `col2im` make it: as large as what they read, and then resized, which never shrinks."""
    batch = x.shape[: -2 if len(shape) == 3 else -3]
    return torch.empty_like(x, memory_format=torch.contiguous_format).resize_((*batch, *shape))


def _softmax(op: Any, whole: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if x.dtype == torch.float16 and dtype == torch.float32:
        return op(x, dim, True)  # one kernel converts
    return whole.decompose(x, dim, dtype)


def _rms_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype  # in which is summed
    rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(rows, dtype=dtype)
