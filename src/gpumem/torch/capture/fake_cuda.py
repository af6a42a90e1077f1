"""Let tensors without a device take the path of CUDA tensors, where PyTorch chooses by the device.

Dropout is one op that keeps a mask, RMS norm one that keeps a number for each row, scaled-dot-product attention takes
the form that a GPU would choose, optimizers work on all parameters at once (`foreach`) unless told not to, autocast
casts. There seems to be one GPU (`torch.cuda.is_available()`, `torch.accelerator`), so that scripts choose it, and what
they or PyTorch's optimizers ask of it is answered. Batch norm, LSTM cells and losses stay the generic ops: what cuDNN's
would keep is not known without it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any

from gpumem.torch.capture.autocast import Autocast
from gpumem.torch.internals import has_kernel, import_dynamo, kernels, torch, unguarded
from gpumem.torch.internals.redirected import (
    BY_DEVICE,
    CALLED,
    CHECKPOINTED,
    INITIALIZED,
    PROFILED,
    TABLE,
    original,
    redirected,
)

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
WHOLE = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy")  # their sum keeps the storage of all that is summed
MEMORY = 80 * 2**30
THERE: dict[str, Any] = {  # what `torch.cuda` answers
    "is_available": True,
    "is_initialized": True,
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
    **dict.fromkeys(("init", "synchronize", "set_device", "set_stream", "reset_peak_memory_stats")),
    **dict.fromkeys(("ipc_collect", "set_per_process_memory_fraction")),
}
ACCELERATOR: dict[str, Any] = {  # what `torch.accelerator` answers, each from some version on
    "is_available": True,
    "device_count": 1,
    "current_accelerator": torch.device("cuda"),
    **dict.fromkeys(("current_device_index", "current_device_idx"), 0),
    "get_memory_info": (MEMORY, MEMORY),
    "memory_stats": Counter(),
    **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
    **dict.fromkeys(("synchronize", "set_stream", "set_device_index", "set_device_idx", "empty_cache")),
    **dict.fromkeys(("empty_host_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats")),
}
UNTRACED = SimpleNamespace(  # what NVTX answers where no profiler listens
    rangePushA=lambda message: -2,
    rangePop=lambda: -2,
    markA=lambda message: None,
    rangeStartA=lambda message: 0,
    rangeEnd=lambda handle: None,
    deviceRangeStart=lambda message, stream=0: 0,
    deviceRangeEnd=lambda handle, stream=0: None,
)


@contextmanager
def as_cuda() -> Iterator[None]:
    """Let what runs inside dispatch on `meta` as it would on a GPU."""
    with ExitStack() as world:
        library = world.enter_context(kernels())
        library.impl("dropout", _dropout, "AutogradMeta")
        library.impl("scaled_dot_product_attention", attention, "AutogradMeta")
        library.impl("softmax.int", partial(_softmax, aten._softmax, aten.softmax.int), "AutogradMeta")
        library.impl("log_softmax.int", partial(_softmax, aten._log_softmax, aten.log_softmax.int), "AutogradMeta")
        unguarded(library, "_fused_rms_norm", "Meta", _rms_norm)  # elsewhere than on a GPU it decomposes
        for name in WHOLE:
            library.impl(name, partial(_reduced, getattr(aten, name).default), "Meta")
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


@contextmanager
def there() -> Iterator[None]:
    """Let there seem to be one GPU."""
    import_dynamo()  # imported in here it would keep what stands in, for good
    with redirected(_one_gpu()):
        yield


def _one_gpu() -> Iterator[tuple[str, Any]]:
    """What asks for a GPU, and what stands in.

    Not `torch.cuda._lazy_init`: C++ calls it for a tensor on a GPU, and takes CUDA to be initialized ever after.
    """
    for name in ("Stream", "Event", "current_stream", "default_stream", "stream", "device"):
        yield f"torch.cuda.{name}", Still
    for name, answer in THERE.items():
        yield f"torch.cuda.{name}", _answering(answer)
    for name in ("accelerator.current_stream", "accelerator.device_index", "Stream", "Event"):
        yield f"torch.{name}", Still
    for name, answer in ACCELERATOR.items():
        for where in (f"torch.accelerator.{name}", f"torch.accelerator.memory.{name}"):
            if where in TABLE:
                yield where, _answering(answer)
    types = {x for x in vars(torch).values() if isinstance(x, torch.dtype)}
    yield "torch.accelerator.get_device_capability", _answering({"supported_dtypes": types})
    yield "torch.get_device_module", partial(_module_of, torch.get_device_module)
    yield PROFILED, UNTRACED
    # the functions for seeds and states are PyTorch's own, with a generator that is there
    yield "torch.cuda.default_generators", (Hosted("cuda"),)
    yield INITIALIZED, _answering(None)
    yield CALLED, lambda call, **kwargs: call()
    for name in ("is_initialized", "current_device", "device_count"):
        yield f"torch.cuda.random.{name}", _answering(THERE[name])
    for name in ("initial_seed", "get_rng_state", "get_rng_state_all"):
        yield f"torch.accelerator.random.{name}", getattr(torch.cuda.random, name)


def _stand_ins() -> Iterator[tuple[str, Any]]:
    """What asks for the type of a device, or for the device itself, and what stands in."""
    for name in BY_DEVICE:
        yield name, partial(_and_meta, original(name))
    yield CHECKPOINTED, partial(_or_cuda, original(CHECKPOINTED))
    yield "torch.Generator", Hosted
    yield "torch.Tensor.__format__", partialmethod(_format, torch.Tensor.__format__)


class Hosted(torch.Generator):
    """A generator of whatever device, on the host: ops on meta take it, and draw nothing.

    Its state is that of a generator there: on a GPU 8 bytes of the seed, and 8 of how much was drawn.
    """

    of_host: bool

    def __new__(cls, device: Any = None) -> Hosted:
        made: Hosted = super().__new__(cls, "cpu")
        made.of_host = device is None or str(device).partition(":")[0] == "cpu"
        return made

    def get_state(self) -> torch.Tensor:
        """The state as bytes."""
        if self.of_host:
            return super().get_state()
        state = self.initial_seed().to_bytes(8, "little") + bytes(8)
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> Hosted:
        """Take a state; one without values is as good as any."""
        if self.of_host:
            super().set_state(state)
        elif not state.is_meta:
            if state.dtype != torch.uint8:
                raise TypeError("RNG state must be a torch.ByteTensor")
            if state.numel() not in (8, 16):
                raise RuntimeError("RNG state is wrong size")
            self.manual_seed(int.from_bytes(bytes(state.tolist()[:8]), "little"))
        return self


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

    def is_capturing(self) -> bool:
        """No graph is made."""
        return False

    def record_event(self, event: Any = None) -> Any:
        """An event of what was done."""
        return Still() if event is None else event

    def elapsed_time(self, other: object) -> float:
        """No time has passed."""
        return 0.0


def _known(name: str) -> bool:
    """Whether this version has the op."""
    packet, _, overload = name.partition(".")
    return hasattr(getattr(aten, packet, None), overload or "default")


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


def _module_of(asked: Callable[..., Any], device: Any = None) -> Any:
    """As with a GPU: where none is named, or the one that `make` was told, its module."""
    return torch.cuda if device is None or str(device).partition(":")[0] == "meta" else asked(device)


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


def _reduced(op: Any, x: torch.Tensor, y: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A loss as ATen's kernels make it, where they reduce: as large as before, then made a number in place."""
    whole = x.new_empty(torch.broadcast_shapes(x.shape, y.shape), dtype=torch.result_type(x, y))
    told = dict(zip((a.name for a in op._schema.arguments[2:]), args)) | kwargs
    return whole if told.get("reduction", 1) == 0 else whole.resize_(())


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
