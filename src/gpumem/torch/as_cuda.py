"""Let tensors without a device take the path of CUDA tensors, where PyTorch chooses by the device.

Dropout is one op that keeps a mask, scaled-dot-product attention takes the form that `attention.py` chooses, optimizers
work on all parameters at once (`foreach`) unless told not to, autocast casts. There seems to be one GPU
(`torch.cuda.is_available()`), so that scripts choose it. Batch norm, LSTM cells and losses stay the generic ops: what
cuDNN's would keep is not known without it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from gpumem.torch._torch import Library, torch
from gpumem.torch.attention import attention
from gpumem.torch.autocast import Autocast

aten = torch.ops.aten
FUSED = [f"_fused_{name}_{of}" for name in ("sgd", "adagrad", "adam", "adamw") for of in ("", ".tensor_lr")]
MEMORY = 80 * 2**30
THERE: dict[str, Any] = {  # what `torch.cuda` answers
    "is_available": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": "meta",
    "get_device_capability": (8, 0),
    "is_bf16_supported": True,
    "is_current_stream_capturing": False,
    "get_device_properties": SimpleNamespace(
        name="meta", total_memory=MEMORY, major=8, minor=0, multi_processor_count=108, warp_size=32
    ),
    "mem_get_info": (MEMORY, MEMORY),
    "memory_stats": Counter(),  # 0 of everything
    "memory_summary": "",
    **dict.fromkeys(("synchronize", "set_device", "reset_peak_memory_stats", "manual_seed", "manual_seed_all")),
    **dict.fromkeys(("ipc_collect", "set_per_process_memory_fraction")),
}


@contextmanager
def as_cuda() -> Iterator[None]:
    """Let what runs inside dispatch on `meta` as it would on a GPU."""
    with ExitStack() as world:
        library = Library("aten", "IMPL")
        world.callback(library._destroy)
        library.impl("dropout", _dropout, "AutogradMeta")
        library.impl("scaled_dot_product_attention", attention, "AutogradMeta")
        library.impl("softmax.int", partial(_softmax, aten._softmax, aten.softmax.int), "AutogradMeta")
        library.impl("log_softmax.int", partial(_softmax, aten._log_softmax, aten.log_softmax.int), "AutogradMeta")
        for name in FUSED:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
                library.impl(name, lambda *args, **kwargs: None, "Meta")
        world.enter_context(there())
        for where, name, stand_in in _stand_ins():
            world.enter_context(patch.object(where, name, stand_in))
        world.enter_context(Autocast().on_meta())
        world.enter_context(warnings.catch_warnings())
        warnings.filterwarnings(
            "ignore", "for .*: copying from a non-meta parameter"
        )  # a checkpoint's values are no matter
        yield


@contextmanager
def there() -> Iterator[None]:
    """Let there seem to be one GPU."""
    with ExitStack() as world:
        for name in ("Stream", "Event", "current_stream", "default_stream", "stream", "device"):
            world.enter_context(patch.object(torch.cuda, name, Still))
        for name, answer in THERE.items():
            world.enter_context(patch.object(torch.cuda, name, lambda *args, _answer=answer, **kwargs: _answer))
        yield


def _stand_ins() -> Iterator[tuple[Any, str, Any]]:
    """What asks for the type of a device, or for the device itself: where, name, what to put there."""
    optimizers = import_module("torch.optim.optimizer")  # the package hides its module
    for name in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
        yield optimizers, name, partial(_and_meta, getattr(optimizers, name))
    checkpoints = import_module("torch.utils.checkpoint")
    yield checkpoints, "_infer_device_type", partial(_or_cuda, checkpoints._infer_device_type)
    yield torch, "Generator", Hosted
    yield torch.Tensor, "__format__", partialmethod(_format, torch.Tensor.__format__)


class Hosted(torch.Generator):
    """A generator of whatever device, on the host: ops on meta take it, and draw nothing."""

    def __new__(cls, device: object = None) -> Hosted:
        made: Hosted = super().__new__(cls, "cpu")
        return made


class Still:
    """A stream or an event where nothing ever runs, or a context that changes neither."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Still:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None

    def query(self) -> bool:
        """All is done."""
        return True

    def elapsed_time(self, other: object) -> float:
        """No time has passed."""
        return 0.0


def _and_meta(known: Callable[[], list[str]]) -> list[str]:
    return [*known(), "meta"]


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


def _softmax(op: Any, whole: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if x.dtype == torch.float16 and dtype == torch.float32:
        return op(x, dim, True)  # one kernel converts
    return whole.decompose(x, dim, dtype)
