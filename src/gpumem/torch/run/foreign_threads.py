"""Foreign threads: a dispatch mode is one thread's, so what others do to managed storages is not seen, and refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from gpumem.torch.internals import TorchDispatchMode, torch
from gpumem.torch.step.ops import tensors
from gpumem.torch.step.workload import WorkloadError

START = "_bootstrap_inner"  # the method that every thread begins with, also where a class overrides `run`
# What a pool's threads run, also those that were started before the run.
ITEM = import_module("concurrent.futures.thread")._WorkItem


class ForeignThreadMode(TorchDispatchMode):
    """Refuses ops of a foreign thread on tensors that a run manages, as long as it does."""

    def __init__(self, managed: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self.managed = managed

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in tensors((*args, *kwargs.values()), None):
            if tensor.layout is torch.strided and self.managed(tensor):
                raise WorkloadError(
                    f"{func} in thread {threading.current_thread().name!r}: a tensor of shape {tuple(tensor.shape)} "
                    "is managed by another thread, which may evict it at any time; let one thread do the step"
                )
        return func(*args, **kwargs)


@contextmanager
def refuse_foreign_threads(managed: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Refuse managed tensors to threads that are started from now on, and to what pools of threads run from now on.

    Threads that run already are not seen.
    """
    start, run = getattr(threading.Thread, START), ITEM.run

    def start_refusing(thread: threading.Thread) -> None:
        with ForeignThreadMode(managed):
            start(thread)

    def run_refusing(item: Any, *args: Any) -> Any:
        with ForeignThreadMode(managed):
            return run(item, *args)

    with patch.object(threading.Thread, START, start_refusing), patch.object(ITEM, "run", run_refusing):
        yield
