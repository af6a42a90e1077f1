"""Threads that a run starts: what they do to its storages nobody would see, so they may not touch them."""

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

START = "_bootstrap_inner"  # what every thread begins with, whatever its class makes of `run`
ITEM = import_module("concurrent.futures.thread")._WorkItem  # what a pool's threads run, whenever they were started


class ForeignThreadMode(TorchDispatchMode):
    """Refuses ops on tensors that are managed elsewhere, for as long as they are."""

    def __init__(self, managed: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self.managed = managed

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for x in tensors((*args, *kwargs.values()), None):
            if x.layout is torch.strided and self.managed(x):
                raise WorkloadError(
                    f"{func} in thread {threading.current_thread().name!r}: a tensor of shape {tuple(x.shape)} is "
                    "managed by another thread, which may send it away at any time; let one thread do the step"
                )
        return func(*args, **kwargs)


@contextmanager
def refused(managed: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Refuse managed tensors to threads that are started from now on, and to what pools of threads run from now on.

    What other threads do that run already is not seen.
    """
    start, run = getattr(threading.Thread, START), ITEM.run

    def watched(thread: threading.Thread) -> None:
        with ForeignThreadMode(managed):
            start(thread)

    def ran(item: Any, *args: Any) -> Any:
        with ForeignThreadMode(managed):
            return run(item, *args)

    with patch.object(threading.Thread, START, watched), patch.object(ITEM, "run", ran):
        yield
