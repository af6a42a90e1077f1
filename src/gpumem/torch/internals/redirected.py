"""The functions of PyTorch that others stand in for while a step is recorded or run, each with why.

Modules hand over what stands in; which functions these may be stands here, so that a test can look for all of them in
the PyTorch that is installed. What bytes are read and written by is another list, `byte_access`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from gpumem.torch.internals.names import FLOOR, NEWEST, Private, find

# The private ones, by what they do.
DRAWN = tuple(f"torch.utils.data.dataloader._BaseDataLoaderIter.{name}" for name in ("__init__", "_next_index"))
LOADED = "torch.utils.data.dataloader.DataLoader._get_iterator"
PARAMETER, OPTIMIZER, SAVED = "torch.nn.Parameter.__new__", "torch.optim.Optimizer.__init__", "torch.save"
BACKWARD = "torch.autograd._engine_run_backward"
CAST = "torch.amp.autocast_mode._cast"
BY_DEVICE = tuple(f"torch.optim.optimizer._get_{kind}_kernels_supported_devices" for kind in ("foreach", "fused"))
CHECKPOINTED = "torch.utils.checkpoint._infer_device_type"
PROFILED = "torch.cuda.nvtx._nvtx"
INITIALIZED, CALLED = "torch.cuda.random._lazy_init", "torch.cuda.random._lazy_call"
WITHOUT_MODES = "torch.utils._python_dispatch._disable_current_modes"

SEEDS = "seeds and states are PyTorch's own, of a generator that is there"
GPU = "scripts choose a GPU where there is one, and ask it this"
_CUDA = (
    *("Stream", "Event", "current_stream", "default_stream", "stream", "device", "is_available", "is_initialized"),
    *("device_count", "current_device", "get_device_name", "get_device_capability", "is_bf16_supported"),
    *("is_current_stream_capturing", "get_device_properties", "mem_get_info", "memory_stats", "memory_summary", "init"),
    *("synchronize", "set_device", "set_stream", "reset_peak_memory_stats", "ipc_collect"),
    *("set_per_process_memory_fraction",),
)
_ACCELERATOR = (
    *("current_stream", "is_available", "device_count", "current_accelerator", "current_device_idx", "synchronize"),
    *("set_stream", "set_device_idx", "current_device_index", "set_device_index", "device_index"),
    "get_device_capability",
)
_MEMORY = (
    *("memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    *(
        "get_memory_info",
        "empty_cache",
        "empty_host_cache",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
    ),
)


def _all(why: str, names: Iterable[str], since: str = FLOOR, until: str = NEWEST) -> tuple[Private, ...]:
    return tuple(Private(f"torch.{name}", why, since, until) for name in names)


ONE_GPU: tuple[Private, ...] = (
    *_all(GPU, (f"cuda.{name}" for name in _CUDA)),
    *_all(GPU, (f"accelerator.{name}" for name in _ACCELERATOR)),
    *_all(GPU, (f"accelerator.{name}" for name in _MEMORY)),
    *_all(GPU, (f"accelerator.memory.{name}" for name in _MEMORY)),
    *_all(GPU, ("Stream", "Event", "get_device_module")),
    Private(PROFILED, "a binding, of which builds without CUDA have none"),
    *(Private(name, SEEDS) for name in ("torch.cuda.default_generators", INITIALIZED, CALLED)),
    *_all(SEEDS, ("cuda.random.is_initialized", "cuda.random.current_device", "cuda.random.device_count")),
    *_all(SEEDS, (f"accelerator.random.{name}" for name in ("initial_seed", "get_rng_state")), "2.14"),
    *_all(SEEDS, ("accelerator.random.get_rng_state_all",), "2.14"),
)
AS_CUDA: tuple[Private, ...] = (
    *(Private(name, "optimizers work on all parameters at once on a GPU") for name in BY_DEVICE),
    Private(CHECKPOINTED, "checkpoints keep the random state of a GPU"),
    *_all("PyTorch makes none for `meta`", ("Generator",)),
    *_all("a number without a value is written as one", ("Tensor.__format__",)),
)
AUTOCAST: tuple[Private, ...] = (
    *_all("the casts of weights are kept here, and go with PyTorch's", ("clear_autocast_cache",)),
    Private(CAST, "arguments of custom functions are cast"),
    *_all(
        "asked about a tensor's device it says what holds for CUDA",
        (
            *("amp.autocast_mode.autocast.__init__", "is_autocast_enabled", "get_autocast_dtype"),
            *("amp.is_autocast_available", "amp.autocast_mode.is_autocast_available"),
        ),
    ),
    *_all("without a GPU autocast switches itself off", ("cuda.amp.common.amp_definitely_not_available",)),
)
DEVICE: tuple[Private, ...] = (
    *(Private(name, "what loaders draw by chance stays on the host") for name in DRAWN),
    Private(LOADED, "tensors without values cannot be sent between processes"),
    *_all("the device is chosen already", ("set_default_device",)),
    Private(BACKWARD, "`Tensor.backward` takes function modes off"),
    Private(PARAMETER, "moved to a device of another kind a parameter would be another one"),
)
SCRIPTS: tuple[Private, ...] = (
    Private(OPTIMIZER, "that there is another optimizer is known before it steps"),
    Private(SAVED, "checkpoints of a script that is only looked at are not written"),
)
REFUSED: tuple[Private, ...] = (
    *_all("what is compiled cannot be recorded", ("compile",)),
    *_all("a graph replays what no recorder sees", ("cuda.CUDAGraph", "cuda.graph", "cuda.make_graphed_callables")),
)
MODES: tuple[Private, ...] = (Private(WITHOUT_MODES, "ops run where PyTorch switches all modes off, to print"),)
TABLE = {row.name: row for row in (*ONE_GPU, *AS_CUDA, *AUTOCAST, *DEVICE, *REFUSED, *SCRIPTS, *MODES)}


def place_of(row: Private) -> tuple[Any, str] | None:
    """Return the owner of a function and the function's name in there; None where this PyTorch has none.

    Nobody calls a public function that there is not, so it is passed over. A private one is how PyTorch does something:
    where it is expected and missing that is done another way, which is told.
    """
    owner, _, name = row.name.rpartition(".")
    try:
        found = find(owner)
        find(row.name)
    except AttributeError as error:
        if row.expected and any(part.startswith("_") for part in row.name.split(".")):
            raise AttributeError(f"{error}; it is needed as {row.why}") from error
        return None
    return found, name


def original(name: str) -> Any:
    """Return what something is to stand in for; None where this PyTorch has no such thing."""
    place = place_of(TABLE[name])
    return None if place is None else getattr(*place)


@contextmanager
def redirected(stand_ins: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Let others stand in for functions of the table, where this PyTorch has them; a name that it has not is an error.

    >>> with redirected([("torch.compile", None)]):
    ...     print(original("torch.compile"))
    None
    """
    with ExitStack() as stack:
        for name, stand_in in stand_ins:
            if (place := place_of(TABLE[name])) is not None:
                stack.enter_context(patch.object(*place, stand_in))
        yield
