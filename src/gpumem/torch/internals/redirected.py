"""The functions of PyTorch that others stand in for while a step is recorded or run, each with why.

Modules are handed what stands in; which functions these may be stands here, so that a test can look for all of them in
the PyTorch that is installed. What bytes are read and written by is another list, `byte_access`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from gpumem.torch.internals.names import FLOOR, NEWEST, Private, find

# The private ones, by what they do.
_LISTS = ("utils._foreach_utils", "optim.optimizer", "optim.swa_utils")
_OPTIMIZERS = ("optimizer", "adadelta", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop")
DRAWN = tuple(f"torch.utils.data.dataloader._BaseDataLoaderIter.{name}" for name in ("__init__", "_next_index"))
COUNTED = "torch.optim.Adagrad.__init__"
LOADED = "torch.utils.data.dataloader.DataLoader._get_iterator"
PARAMETER, OPTIMIZER, SAVED = "torch.nn.Parameter.__new__", "torch.optim.Optimizer.__init__", "torch.save"
BACKWARD = "torch.autograd._engine_run_backward"
CAST = "torch.amp.autocast_mode._cast"
BY_DEVICE = (
    *(f"torch.{place}._get_foreach_kernels_supported_devices" for place in _LISTS),
    *(f"torch.{place}._get_fused_kernels_supported_devices" for place in _LISTS[:2]),
    *(f"torch.optim.{place}._get_capturable_supported_devices" for place in _OPTIMIZERS),
)
CHECKPOINTED = "torch.utils.checkpoint._infer_device_type"
RECOMPUTED = "torch.utils.checkpoint._allowed_determinism_checks_to_fns"
GRAPHS = (
    *(f"torch.cuda.{name}" for name in ("CUDAGraph", "graph", "make_graphed_callables")),
    "torch.accelerator.Graph",
)
CUDNN = "torch.backends.cudnn.is_acceptable"
PROFILED = "torch.cuda.nvtx._nvtx"
QUIET = (
    *(f"torch.cuda.memory.{name}" for name in ("_record_memory_history", "_dump_snapshot", "_snapshot")),
    "torch.cuda._sleep",
)
INITIALIZED, CALLED = "torch.cuda.random._lazy_init", "torch.cuda.random._lazy_call"
WITHOUT_MODES = "torch.utils._python_dispatch._disable_current_modes"

SEEDS = "seeds and states are PyTorch's own, of a generator that is there"
FAMILIES = ("torch.cuda", "torch.accelerator")  # a GPU's: whatever is public in there may be stood in for
GPU = "scripts choose a GPU where there is one, and ask it this"


def _all(why: str, names: Iterable[str], since: str = FLOOR, until: str = NEWEST) -> tuple[Private, ...]:
    return tuple(Private(f"torch.{name}", why, since, until) for name in names)


ONE_GPU: tuple[Private, ...] = (
    *_all(GPU, ("Stream", "Event", "get_device_module")),
    *(
        Private(name, "what a debugger asks of the allocator, or of the device's time, is nothing here")
        for name in QUIET
    ),
    Private(PROFILED, "a binding, of which builds without CUDA have none"),
    *(Private(name, SEEDS) for name in ("torch.cuda.default_generators", INITIALIZED, CALLED)),
)
AS_CUDA: tuple[Private, ...] = (
    *(
        Private(name, "optimizers and clipping work on all parameters at once on a GPU, and keep counters there")
        for name in BY_DEVICE
    ),
    Private(CHECKPOINTED, "checkpoints keep the random state of a GPU"),
    Private(RECOMPUTED, "on saving and on recomputing they ask for a tensor's device, with a mode and without"),
    Private(CUDNN, "recurrent layers ask whether cuDNN takes a tensor; what it would keep is not known"),
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
    Private(COUNTED, "it makes its counters at once, on the host as others do in their step"),
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
    *(Private(name, "a graph replays what no recorder sees") for name in GRAPHS),
)
MODES: tuple[Private, ...] = (Private(WITHOUT_MODES, "ops run where PyTorch switches all modes off, to print"),)
TABLE = {row.name: row for row in (*ONE_GPU, *AS_CUDA, *AUTOCAST, *DEVICE, *REFUSED, *SCRIPTS, *MODES)}


def row_of(name: str) -> Private:
    """Return the row of a function, which is in the table, or public in one of the families.

    >>> row_of("torch.cuda.synchronize").why
    'scripts choose a GPU where there is one, and ask it this'
    """
    of_gpu = name.startswith(tuple(f"{family}." for family in FAMILIES)) and "._" not in name
    return Private(name, GPU) if name not in TABLE and of_gpu else TABLE[name]


def of_families() -> Iterator[tuple[str, Any]]:
    """All that is public in the families and their public modules, as far as these are loaded: name and value."""
    modules = [name for name in sys.modules if name.startswith(FAMILIES) and "._" not in name]
    for module in modules:
        for name, value in [*vars(sys.modules[module]).items()]:
            if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith(FAMILIES):
                yield f"{module}.{name}", value


def place_of(row: Private) -> tuple[Any, str] | None:
    """Return the owner of a function and the function's name in there; None where this PyTorch has none.

    Nobody calls a public function that there is not, so it is passed over. A private one is how PyTorch does something:
    where it is expected and missing that is done another way, which is told.
    """
    owner, _, name = row.name.rpartition(".")
    try:
        owner_ = find(owner)
        find(row.name)
    except AttributeError as error:
        if row.expected and any(part.startswith("_") for part in row.name.split(".")):
            raise AttributeError(f"{error}; it is needed as {row.why}") from error
        return None
    return owner_, name


def original(name: str) -> Any:
    """Return what something is to stand in for; None where this PyTorch has no such thing."""
    place = place_of(row_of(name))
    return None if place is None else getattr(*place)


@contextmanager
def redirected(stand_ins: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Let others stand in for functions of the table, where this PyTorch has them; a name that it has not is an error.

    >>> with redirected([("torch.compile", None)]):
    ...     print(original("torch.compile"))
    None
    """
    with ExitStack() as contexts:
        for name, stand_in in stand_ins:
            if (place := place_of(row_of(name))) is not None:
                contexts.enter_context(patch.object(*place, stand_in))
        yield
