"""Kernels that tensors without a device have in here: which ops CUDA runs, and what their results keep and look like.

Where PyTorch's own for `meta` differ from CUDA's, or it has none. Losses, columns of images and gradients of layer norm
take the storages of the CPU's kernels, which are CUDA's by reading ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpumem.torch.internals import Library, has_kernel, meta_conv, suggest_memory_format, torch, unguarded

aten = torch.ops.aten
FUSED = [
    f"{name}{of}"
    for name in ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")
    for of in ("", ".tensor_lr")
]
ALIGNED = 16  # bytes: rows of a grouped product begin at multiples, as in ATen
MEAN = 1  # ATen's number of the reduction to a mean
WHOLE = (
    "mse_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "binary_cross_entropy",
)  # their sum keeps the storage of all that is summed


def add_kernels(library: Library) -> None:
    """Register all of them."""
    kernels: dict[str, dict[str, Callable[..., Any]]] = {
        "AutogradMeta": {
            "dropout": _dropout,
            "softmax.int": partial(_softmax, aten._softmax, aten.softmax.int),
            "log_softmax.int": partial(_softmax, aten._log_softmax, aten.log_softmax.int),
            "one_hot": _one_hot,
            "ctc_loss.Tensor": _ctc_loss,
        },
        "Meta": {
            **dict.fromkeys(("_ctc_loss_backward", "_ctc_loss_backward.Tensor"), _ctc_loss_backward),
            **{name: partial(_reduced, getattr(aten, name).default) for name in WHOLE},
            "_grouped_mm": _grouped_mm,  # PyTorch's own takes bfloat16 alone
            "convolution": _convolution,
            "native_layer_norm_backward": _layer_norm_backward,
            "im2col": _columns,
            "col2im": _image,
            **{name: _nothing for name in FUSED if _known(name) and not has_kernel(f"aten::{name}", "Meta")},
        },
    }
    for key, by_name in kernels.items():
        for name, kernel in by_name.items():
            library.impl(name, kernel, key)
    unguarded(library, "_fused_rms_norm", "Meta", _rms_norm)  # elsewhere than on a GPU it decomposes


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Optimizers' steps as one op return nothing."""


def _known(name: str) -> bool:
    """Whether this version has the op."""
    packet, _, overload = name.partition(".")
    return hasattr(getattr(aten, packet, None), overload or "default")


def _convolution(x: torch.Tensor, weight: torch.Tensor, *how: Any) -> torch.Tensor:
    """With channels last, where operands have them so: PyTorch's own for `meta` never has, though its gradients do.

    cuDNN makes an exception of float64, which this one leaves out, as those gradients do.
    """
    made: torch.Tensor = meta_conv(x, weight, *how)
    formats = {suggest_memory_format(operand) for operand in (x, weight)} - {torch.contiguous_format}
    return torch.empty_like(made, memory_format=formats.pop()) if formats else made


def _grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A product by groups: of rows, of columns, of what is summed, or one for each group; its rows are aligned."""
    groups = [] if left.dim() != right.dim() else [left.size(0) if offs is None else offs.numel()]
    dtype = out_dtype or left.dtype
    width = ALIGNED // dtype.itemsize
    row = (right.size(-1) + width - 1) // width * width
    strides = [left.size(-2) * row] * len(groups)
    return left.new_empty_strided([*groups, left.size(-2), right.size(-1)], [*strides, row, 1], dtype=dtype)


def _one_hot(x: torch.Tensor, classes: int = -1) -> torch.Tensor:
    if classes == -1:
        classes = int(x.max().item()) + 1
    return torch.zeros([*x.shape, classes], dtype=x.dtype, device=x.device).scatter_(-1, x.unsqueeze(-1), 1)


def _ctc_loss(  # noqa: PLR0917  PyTorch's signature
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """As ATen's, but that lengths may be on the host: so they may on a GPU where no mode is on."""
    loss = aten._ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        nothing = torch.zeros((), dtype=loss.dtype, device=loss.device)
        loss = torch.where(loss == float("inf"), nothing, loss)
    if reduction != MEAN:
        return loss.sum() if reduction else loss
    return (loss / target_lengths.to(loss.device).clamp_min(1)).mean()


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, *others: Any, **more: Any) -> torch.Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _reduced(op: Any, x: torch.Tensor, y: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A loss as ATen's kernels make it, where they reduce: as large as before, then made a number in place."""
    whole = x.new_empty(torch.broadcast_shapes(x.shape, y.shape), dtype=torch.result_type(x, y))
    arguments = dict(zip((a.name for a in op._schema.arguments[2:]), args)) | kwargs
    return whole if arguments.get("reduction", 1) == 0 else whole.resize_(())


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


def _rms_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype  # in which is summed
    rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(rows, dtype=dtype)


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if p == 0 or not train or not x.numel():
        return x
    if p == 1:
        return x * x.new_zeros(())
    return aten.native_dropout(x, p, train)[0]


def _softmax(op: Any, whole: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if x.dtype == torch.float16 and dtype == torch.float32:
        return op(x, dim, True)  # one kernel converts
    return whole.decompose(x, dim, dtype)
