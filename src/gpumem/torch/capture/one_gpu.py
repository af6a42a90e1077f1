"""A fake GPU: functions that ask about it are answered from one table, those that would call its driver do nothing.

Every public function of `torch.cuda` and `torch.accelerator` stands in for itself by doing nothing, so that one which a
new PyTorch adds does so too; `ANSWERS` has what is to be said instead of nothing. Contexts change nothing, streams and
events are `Still`. What only computes with what others answer is left as it is (`OWN`).
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

from gpumem.base.work import setting
from gpumem.torch.internals import import_dynamo, torch
from gpumem.torch.internals.redirected import CALLED, INITIALIZED, PROFILED, QUIET, of_families, redirected

MEMORY = 80 * 2**30  # bytes of the GPU that seems to be there: those of an A100, whose capability 8.0 is below
SIZE: ContextVar[tuple[str, int, int]] = ContextVar(
    "SIZE", default=("meta", MEMORY, MEMORY)
)  # name, bytes free, in all
PROPERTIES = {"major": 8, "minor": 0, "multi_processor_count": 108, "warp_size": 32, "max_threads_per_block": 1024}
NOTHING: Counter[str] = Counter()  # 0 of everything
ANSWERS: dict[str, Any] = {  # by the last part of a name, whichever module has it
    # there is a device
    **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported", "is_tf32_supported"), True),
    **dict.fromkeys(("current_device", "current_device_index", "current_device_idx"), 0),
    "device_count": 1,
    "current_accelerator": torch.device("cuda"),
    # of which kind
    "get_arch_list": ["sm_80"],
    "get_gencode_flags": "-gencode compute=compute_80,code=sm_80",
    "can_device_access_peer": False,
    # with memory of which nothing is taken; how much there is, see `of_size`
    **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
    **dict.fromkeys(("memory_cached", "max_memory_cached", "device_memory_used", "caching_allocator_alloc"), 0),
    **dict.fromkeys(("memory_stats", "host_memory_stats"), NOTHING),
    **dict.fromkeys(("memory_stats_as_nested_dict", "host_memory_stats_as_nested_dict"), NOTHING),
    "memory_snapshot": (),
    **dict.fromkeys(("memory_summary", "list_gpu_processes"), ""),
    "get_per_process_memory_fraction": 1.0,
    "get_allocator_backend": "native",
    # which does nothing
    **dict.fromkeys(("memory_usage", "utilization", "temperature", "power_draw", "clock_rate"), 0),
    **dict.fromkeys(("current_blas_handle", "current_solver_handle", "get_sync_debug_mode"), 0),
    "graph_pool_handle": (0, 0),
    **dict.fromkeys(("is_current_stream_capturing", "is_enabled", "tuning_is_enabled"), False),
    "record_untuned_is_enabled": False,
    **dict.fromkeys(("get_results", "get_validators"), ()),
}
ANSWERS_OF = {  # where the same word means two things
    "torch.cuda.get_device_capability": (8, 0),
    "torch.accelerator.get_device_capability": {
        "supported_dtypes": {x for x in vars(torch).values() if type(x) is type(torch.float32)}
    },
    "torch.cuda.nccl.version": (2, 21, 5),
    "torch.cuda.gds.is_available": False,
    "torch.cuda.graph_annotations.is_available": False,
}
STILL = frozenset(  # what is or gives a stream, an event, or a context
    (
        *("Stream", "Event", "ExternalStream", "StreamContext", "GreenContext", "MemPool", "CUDAPluggableAllocator"),
        *("device", "device_of", "device_index", "stream", "current_stream", "default_stream"),
        *("get_stream_from_external", "cudart"),
    )
)
OF_STILL = {"query": True, "is_capturing": False, "elapsed_time": 0.0}  # all is done, in no time, and no graph is made
# These ask only what is answered here, or have another stand-in: seeds, ranges, autocast, graphs, which are refused.
OWN = tuple(f"torch.cuda.{name}." for name in ("amp", "random", "nvtx", "sparse", "jiterator", "comm"))
GRAPHS = frozenset({"make_graphed_callables", "export_dot", "export_graph_data"})
SEEDING = frozenset(
    (
        *("get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all", "manual_seed", "manual_seed_all"),
        *("seed", "seed_all", "initial_seed"),
    )
)
UNTRACED = SimpleNamespace(  # what NVTX answers where no profiler listens
    rangePushA=lambda message: -2,
    rangePop=lambda: -2,
    markA=lambda message: None,
    rangeStartA=lambda message: 0,
    rangeEnd=lambda handle: None,
    deviceRangeStart=lambda message, stream=0: 0,
    deviceRangeEnd=lambda handle, stream=0: None,
)


def of_size(name: str, free: int, total: int) -> AbstractContextManager[None]:
    """Let the GPU that seems to be there be a machine, with bytes for a program, and in all."""
    return setting(SIZE, (name, free, total))


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
    answers = ANSWERS | _sizes()
    for name, value in of_families():
        if (stand_in := stand_in_for(name, value, answers)) is not None:
            yield name, stand_in
    for name in ("torch.Stream", "torch.Event"):
        yield name, Still
    yield "torch.get_device_module", partial(_module_of, torch.get_device_module)
    for name in QUIET:
        yield name, _answering(None)
    yield PROFILED, UNTRACED
    # the functions for seeds and states are PyTorch's own, with a generator that is there
    yield "torch.cuda.default_generators", (Hosted("cuda"),)
    yield INITIALIZED, _answering(None)
    yield CALLED, lambda call, **kwargs: call()
    for name in ("is_initialized", "current_device", "device_count"):
        yield f"torch.cuda.random.{name}", _answering(ANSWERS[name])


def _sizes() -> dict[str, Any]:
    name, free, total = SIZE.get()
    return {
        "get_device_name": name,
        "get_device_properties": SimpleNamespace(name=name, total_memory=total, **PROPERTIES),
        **dict.fromkeys(("mem_get_info", "get_memory_info"), (free, total)),
    }


def stand_in_for(name: str, value: Any, answers: Mapping[str, Any]) -> Any:
    """What stands in for something public of `torch.cuda` or `torch.accelerator`; None where it is left as it is."""
    module, _, last = name.rpartition(".")
    if last in STILL:
        return Still
    if last in SEEDING:
        return getattr(torch.cuda.random, last) if module.startswith("torch.accelerator") else None
    if name.startswith(OWN) or last in GRAPHS or inspect.isclass(value) or not callable(value):
        return None
    if inspect.isgeneratorfunction(inspect.unwrap(value)):  # a context
        return Still
    return _answering(ANSWERS_OF.get(name, answers.get(last)))


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


class Idle:
    """Made of anything, and a context that changes nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Still(Idle):
    """A stream or an event where nothing ever runs, or a context that changes neither."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _answering(OF_STILL.get(name))

    def record_event(self, event: Any = None) -> Any:
        """An event of what was done."""
        return Still() if event is None else event


def _answering(answer: Any) -> Callable[..., Any]:
    """A function that answers so, whatever it is asked with; what can be changed is made anew each time."""
    return lambda *args, **kwargs: copy(answer) if isinstance(answer, (dict, list, set)) else answer


def _module_of(asked: Callable[..., Any], device: Any = None) -> Any:
    """As with a GPU: where none is named, or the one that `make` was told, its module."""
    return torch.cuda if device is None or str(device).partition(":")[0] == "meta" else asked(device)
