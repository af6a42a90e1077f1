"""The oracle of what runs on a GPU: PyTorch's own fake CUDA tensors, which take its kernels' paths, autocast's too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.torch import capture

Seen = list[tuple[str, list[tuple[str, tuple[int, ...]]]]]  # ops: name; dtype and shape of each result
SILENT = ("aten._unsafe_view", "aten.detach", "aten.lift_fresh")


class Log(TorchDispatchMode):
    """Writes down what runs, without what makes a view only."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        found = [x for x in (result if isinstance(result, (list, tuple)) else [result]) if isinstance(x, torch.Tensor)]
        view = not func._schema.is_mutable and any(a.alias_info is not None for a in func._schema.arguments)
        if not view and func.namespace == "aten" and not str(func).startswith(SILENT) and found:
            self.seen.append((str(func), [(str(x.dtype), tuple(x.shape)) for x in found]))
        return result


def _whole(x: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    there = x.is_contiguous(memory_format=memory_format)
    return x if there else x.clone(memory_format=memory_format)


@contextmanager
def a_gpu() -> Iterator[None]:
    """Let PyTorch believe in a GPU, and make every tensor there."""
    with ExitStack() as world:
        world.enter_context(patch.object(torch.cuda, "is_available", lambda: True))
        world.enter_context(patch.object(torch.cuda, "is_bf16_supported", lambda *args: True))
        world.enter_context(patch.object(torch.cuda, "synchronize", lambda *args: None))
        for name in ("uniform_", "normal_", "copy_"):  # PyTorch wants a real GPU for them
            world.enter_context(patch.object(torch.Tensor, name, lambda self, *args, **kwargs: self))
        world.enter_context(patch.object(torch.Tensor, "contiguous", _whole))  # its binding wants one, too
        world.enter_context(torch.backends.cudnn.flags(enabled=False))  # builds for GPUs choose it; see `fake_cuda.py`
        world.enter_context(FakeTensorMode())
        world.enter_context(torch.device("cuda"))
        yield


def faked(make: Callable[[], Callable[[], object]]) -> Seen:
    """The ops of a step on fake CUDA tensors, its second one."""
    with a_gpu():
        step = make()
        step()
        with Log() as log:
            step()
    return log.seen


def on_meta(make: Callable[[], Callable[[], object]]) -> Seen:
    """The ops of a step on meta, its second one, as the recorder sees them."""
    seen: Seen = []

    def logged() -> Callable[[], object]:
        step = make()

        def run() -> None:
            with Log() as log:
                step()
            seen[:] = log.seen

        return run

    capture(logged, iterations=1)
    return seen
