"""A step on another device than it names: what is made without saying where, or on a GPU that is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpumem.torch._torch import DeviceContext, torch
from gpumem.torch.scene import Scene


class Elsewhere(DeviceContext):
    """As `with torch.device(...)`, but `cuda` means that device too, and optimizers keep their counters on the host.

    (They do so on a GPU: a default device is what no training script sets, tensors are sent there one by one.)
    """

    def __init__(self, device: str, scene: Scene) -> None:
        super().__init__(torch.device(device))
        self.scene = scene

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self.scene.optimizing:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.cuda:
            return args[0].to(self.device)
        args = tuple(self.device if _cuda(x) else x for x in args)
        kwargs = {name: self.device if _cuda(x) else x for name, x in (kwargs or {}).items()}
        return super().__torch_function__(func, types, args, kwargs)


def _cuda(x: object) -> bool:
    if isinstance(x, torch.device):
        return str(x.type) == "cuda"
    return isinstance(x, str) and x.partition(":")[0] == "cuda"
