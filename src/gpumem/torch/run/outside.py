"""Reads that no dispatch mode sees: of the bytes themselves. What is read so is brought back first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from gpumem.torch._torch import torch

READS: tuple[str, ...] = ("__repr__", "tolist", "__deepcopy__", "__reduce_ex__")  # they look, and are done
KEEPS: tuple[str, ...] = (
    "numpy",
    "__array__",
    "data_ptr",
    "const_data_ptr",
    "mutable_data_ptr",
    "__dlpack__",
    "share_memory_",
)  # somebody has the address from then on
STORAGE_READS: tuple[str, ...] = (
    "__getitem__",
    "__setitem__",
    "tolist",
    "_write_file",
    "cpu",
    "clone",
    "copy_",
    "fill_",
    "__deepcopy__",
    "byteswap",
)
STORAGE_KEEPS: tuple[str, ...] = (
    "data_ptr",
    "share_memory_",
    "_share_fd_cpu_",
    "_share_filename_cpu_",
    "_share_cuda_",
    "resize_",
    "pin_memory",
)
Reach = Callable[[torch.UntypedStorage, bool], None]


@contextmanager
def reading(reach: Reach) -> Iterator[None]:
    """Let `reach(storage, for_good)` know of each storage that is about to be read."""

    def of_tensor(x: torch.Tensor, for_good: bool) -> None:
        if x.layout is torch.strided:
            reach(x.untyped_storage(), for_good)

    def patched(owner: Any, name: str, see: Callable[[Any, bool], None], for_good: bool) -> Any:
        original = getattr(owner, name)

        @wraps(original)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            see(self, for_good)
            for x in args:
                if isinstance(x, torch.UntypedStorage):
                    reach(x, False)
            return original(self, *args, **kwargs)

        return patch.object(owner, name, called)

    with ExitStack() as world:
        for owner, see, looks, keeps in (
            (torch.Tensor, of_tensor, READS, KEEPS),
            (torch.UntypedStorage, reach, STORAGE_READS, STORAGE_KEEPS),
        ):
            for name in (*looks, *keeps):
                if hasattr(owner, name):
                    world.enter_context(patched(owner, name, see, name in keeps))
        for module, name in ((torch._C, "_to_dlpack"), (torch, "to_dlpack"), (torch.utils.dlpack, "to_dlpack")):
            if hasattr(module, name):
                world.enter_context(patch.object(module, name, _first(getattr(module, name), of_tensor)))
        writer = torch._C.PyTorchFileWriter
        world.enter_context(patch.object(writer, "write_record", _record(writer.write_record, reach)))
        yield


def _first(original: Callable[..., Any], see: Callable[[Any, bool], None]) -> Callable[..., Any]:
    @wraps(original)
    def called(x: Any, *args: Any, **kwargs: Any) -> Any:
        see(x, True)
        return original(x, *args, **kwargs)

    return called


def _record(original: Callable[..., Any], reach: Reach) -> Callable[..., Any]:
    @wraps(original)
    def called(self: Any, name: str, data: Any, *args: Any) -> Any:
        if isinstance(data, torch.UntypedStorage):
            reach(data, False)
        return original(self, name, data, *args)

    return called
