"""What a recording, or a run under a memory limit, might change of a process."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

optimizer_hooks = import_module("torch.optim.optimizer")  # the package hides its module


def world() -> list[object]:
    """What a recording changes while it runs."""
    where = (
        hooks._global_forward_hooks,
        hooks._global_forward_pre_hooks,
        optimizer_hooks._global_optimizer_pre_hooks,
        optimizer_hooks._global_optimizer_post_hooks,
    )
    seen: list[str] = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Names():
        F.dropout(torch.empty(3, device="meta"), 0.5)
    return [
        [len(found) for found in where],
        gc.isenabled(),
        len(_get_current_dispatch_mode_stack()),
        torch.overrides._len_torch_function_stack(),
        torch.get_default_device(),
        optimizer_hooks._get_foreach_kernels_supported_devices(),
        seen,
    ]
