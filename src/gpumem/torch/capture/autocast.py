"""Autocast of CUDA tensors, for tensors without a device: what runs in half precision, what in full.

PyTorch has a kernel for each such op, which casts and calls the op again, but it casts CUDA tensors alone. These take
its place, with the policies of `ATen/autocast_mode.h`: what has a kernel and stands in none of the lists below runs in
half precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

from gpumem.torch.internals import (
    AUTOCAST,
    DispatchKeySet,
    WeakIdKeyDictionary,
    kernels,
    kernels_of,
    torch,
    with_key,
    without_key,
)
from gpumem.torch.internals.redirected import CAST, original, redirected
from gpumem.torch.step.ops import mapped


def _these(names: str) -> frozenset[str]:
    return frozenset(names.split())


FULL = _these(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim "
    "nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits "
    "dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
FULL_BESIDE = frozenset({"linalg_matrix_sqrth"})  # in full, too, by PyTorch's kernel; it stands in none of its lists
FULL_RESULT = _these(  # they take the dtype of the result as an argument
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
    "linalg_matrix_norm.str_ord sum sum.dim_IntList "
    # up to PyTorch 2.12, whose tensors have names for their dimensions
    "prod.dim_Dimname softmax.Dimname log_softmax.Dimname cumprod.dimname cumsum.dimname sum.dim_DimnameList"
)
OTHER_RESULT = {
    "norm.Scalar": "ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype",
    "norm.names_ScalarOpt_dim": "names_ScalarOpt_dim_dtype",  # up to PyTorch 2.12
}
WIDEST = _these("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
BEGINS = "torch.amp.autocast_mode.autocast.__init__"
ASKED = (  # what a device's type is handed to
    *(BEGINS, "torch.is_autocast_enabled", "torch.get_autocast_dtype"),
    *("torch.amp.is_autocast_available", "torch.amp.autocast_mode.is_autocast_available"),
)
LEFT = frozenset({"binary_cross_entropy"})  # refused by PyTorch, with a sentence


class Autocast:
    """Casts, and the casts of parameters that are kept until the outermost region ends."""

    def __init__(self) -> None:
        self.kept: Any = WeakIdKeyDictionary()

    @contextmanager
    def on_meta(self) -> Iterator[None]:
        """Let `torch.autocast("cuda")` cast tensors without a device."""
        with ExitStack() as ends, kernels() as library:
            ends.callback(self.kept.clear)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a kernel is replaced
                for name in kernels_of(AUTOCAST.name):
                    name = name.removeprefix("aten::")
                    if name not in LEFT and "::" not in name:
                        library.impl(name, self._kernel(name), AUTOCAST.name)
            # autocast leaves the key out again where it is off, so ops cost nothing there
            with with_key(AUTOCAST), redirected(self._stand_ins()):
                yield

    def _stand_ins(self) -> Iterator[tuple[str, Any]]:
        clear, cast = torch.clear_autocast_cache, original(CAST)
        yield "torch.clear_autocast_cache", lambda: (self.kept.clear(), clear())
        yield CAST, lambda x, on, to: cast(x, "meta" if on == "cuda" else on, to)
        for name in ASKED:
            yield name, _of_cuda(original(name))

    def _kernel(self, name: str) -> Callable[..., Any]:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if name in FULL_RESULT:
            return partial(_full_result, op, [a.name for a in op._schema.arguments].index("dtype"))
        if name in OTHER_RESULT:
            return partial(_other_result, op, getattr(torch.ops.aten.norm, OTHER_RESULT[name]))
        return partial(self._run, op, _full if name in FULL | FULL_BESIDE else _widest if name in WIDEST else _half)

    def _run(self, op: Any, policy: Callable[[Sequence[Any]], torch.dtype], *args: Any, **kwargs: Any) -> Any:
        with _off():
            dtype = policy((*args, *kwargs.values()))
            # the last one first, as the compiler of PyTorch's wheels orders it
            cast = partial(self._cast, dtype=dtype)
            kwargs = {what: mapped(x, cast) for what, x in reversed(kwargs.items())}
            return op(*[mapped(x, cast) for x in reversed(args)][::-1], **kwargs)

    def _cast(self, tensor: Any, dtype: torch.dtype) -> Any:
        if not _eligible(tensor) or tensor.dtype == dtype:
            return tensor
        weight = (
            dtype == _half()
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
        )
        if not (weight and torch.is_autocast_cache_enabled()):
            return torch.ops.aten.to.dtype(tensor, dtype)
        if tensor not in self.kept:  # with its gradient, whoever asks first
            with torch.enable_grad():
                self.kept[tensor] = torch.ops.aten.to.dtype(tensor, dtype)
        return self.kept[tensor]


@contextmanager
def left_enabled() -> Iterator[None]:
    """Let `torch.autocast("cuda")` not switch itself off where there is no GPU; tensors of a host it leaves alone."""
    begin = torch.autocast.__init__
    as_if_there = [
        ("torch.cuda.is_bf16_supported", lambda *args, **kwargs: True),
        ("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
    ]

    @wraps(begin)
    def enabled(*args: Any, **kwargs: Any) -> None:
        with redirected(as_if_there):
            begin(*args, **kwargs)

    with redirected([(BEGINS, enabled)]):
        yield


def _full_result(op: Any, position: int, *args: Any, **kwargs: Any) -> Any:
    given = args[position] if position < len(args) else kwargs.get("dtype")
    with _off():
        if given is None and _eligible(args[0]):
            args, kwargs = args[:position], kwargs | {"dtype": torch.float32}
        return op(*args, **kwargs)


def _other_result(op: Any, with_dtype: Any, *args: Any) -> Any:
    with _off():
        if not _eligible(args[0]):
            return op(*args)
        if len(args) == 1:  # the exponent has a default in one of the two only
            args = (*args, 2)
        return with_dtype(*args, dtype=torch.float32)


def _off() -> Any:
    return without_key(DispatchKeySet(AUTOCAST))


def _of_cuda(asked: Callable[..., Any]) -> Callable[..., Any]:
    """Let a question about the type of a tensor's device, `meta`, be one about CUDA."""

    @wraps(asked)
    def called(*args: Any, **kwargs: Any) -> Any:
        args = tuple("cuda" if isinstance(x, str) and x == "meta" else x for x in args)
        if kwargs.get("device_type") == "meta":
            kwargs["device_type"] = "cuda"
        return asked(*args, **kwargs)

    return called


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.is_meta and value.is_floating_point() and value.dtype != torch.float64
    )


def _half(values: Sequence[Any] = ()) -> torch.dtype:
    return torch.get_autocast_dtype("cuda")


def _full(values: Sequence[Any]) -> torch.dtype:
    return torch.float32


def _widest(values: Sequence[Any]) -> torch.dtype:
    operands = [
        operand for x in values for operand in (x if isinstance(x, (list, tuple)) else (x,)) if _eligible(operand)
    ]
    for x in operands:
        if x.dtype not in (torch.float32, _half()):
            raise RuntimeError(f"autocast to {_half()}: an operand is {x.dtype}, which PyTorch does not promote")
    return torch.float32 if any(x.dtype == torch.float32 for x in operands) else _half()
