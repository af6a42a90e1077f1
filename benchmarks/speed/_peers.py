"""What else people use to train in less memory, each as a wrapping of one training step; for `torch_peers.py`.

The host's memory is NumPy's here, as in `gpumem.torch.managed`: what PyTorch's allocator holds is the device's alone.
A copy is an op of the device, `peers::out` or `peers::back`, that a recorder sees as any other.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

OUT, BACK = "peers.out.default", "peers.back.default"  # as a trace calls them
COMPUTE, TRANSFER = "compute", "transfer"  # streams of copies


class Host:
    """A tensor's copy on the host: enough of a tensor for `save_on_cpu`, which asks it for no more than `to`."""

    def __init__(self, tensor: torch.Tensor, key: int) -> None:
        self.key = key
        like = torch.empty_like(tensor, device="meta")  # strides as `Tensor.to` keeps them
        self.size, self.stride, self.dtype = like.size(), like.stride(), like.dtype
        self.bytes = np.empty(like.untyped_storage().nbytes(), np.uint8)

    @property
    def tensor(self) -> torch.Tensor:
        """A tensor in this memory."""
        return torch.from_numpy(self.bytes).view(self.dtype).as_strided(self.size, self.stride)

    def to(self, device: Any = None, non_blocking: bool = False) -> torch.Tensor:
        """Copy back to the device."""
        return COPIES.back(self)


class Copies:
    """The copies of one step, in order: which, and how many bytes."""

    def __init__(self) -> None:
        self.hosts: weakref.WeakValueDictionary[int, Host] = weakref.WeakValueDictionary()
        self.log: list[tuple[int, int]] = []
        self.count = 0

    def out(self, tensor: torch.Tensor) -> Host:
        """Copy a tensor to the host."""
        with torch.no_grad():
            self.count += 1
            with _disable_current_modes():
                host = self.hosts[self.count] = Host(tensor, self.count)
            self.log.append((self.count, host.bytes.nbytes))
            torch.ops.peers.out(tensor, self.count)
        return host

    def back(self, host: Host) -> torch.Tensor:
        """Copy it back."""
        self.log.append((host.key, host.bytes.nbytes))
        with torch.no_grad():
            back: torch.Tensor = torch.ops.peers.back(host.key)
        return back


COPIES = Copies()


def _out(tensor: torch.Tensor, copy: int) -> torch.Tensor:
    COPIES.hosts[copy].tensor.copy_(tensor)
    return torch.empty(0)


def _back(copy: int) -> torch.Tensor:
    host = COPIES.hosts[copy]
    tensor = torch.empty_strided(host.size, host.stride, dtype=host.dtype)
    ctypes.memmove(tensor.data_ptr(), host.bytes.ctypes.data, host.bytes.nbytes)
    return tensor


_OPS = torch.library.Library("peers", "DEF")
_OPS.define("out(Tensor tensor, int copy) -> Tensor")
_OPS.define("back(int copy) -> Tensor")
_OPS.impl("out", _out, "CompositeExplicitAutograd")
_OPS.impl("back", _back, "CompositeExplicitAutograd")


@dataclass(frozen=True)
class Peer:
    """A way to train in less memory.

    `prepare(model, blocks)` changes a model, `around()` stands around the forward pass; `stream` is that of its copies;
    with `options`, of `torch._functorch.config`, it is compiled.
    """

    name: str
    prepare: Callable[[nn.Module, list[nn.Module]], object] = lambda model, blocks: None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    stream: str = COMPUTE
    options: dict[str, Any] | None = None


@contextmanager
def saved_on_cpu() -> Iterator[None]:
    """PyTorch's own class; where it asks for a copy on the host, it gets one that is not the device's."""
    with patch.object(torch.Tensor, "cpu", lambda tensor: COPIES.out(tensor)), save_on_cpu():
        yield


class OffloadsAsTorchtune(saved_tensors_hooks):
    """What torchtune's `OffloadActivations` says that it does, stated anew; none of its code.

    Tensors of `least` bytes and more that the forward pass saves are copied to the host on a stream of their own; the
    last `stash` of them stay on the device meanwhile. The backward pass copies them back when it asks for them, unless
    they are still there, and lets go of them once the node after the one that asked is done. Parameters, buffers and
    views of them stay (torchtune looks at the class alone, and copies views of weights as well).
    """

    def __init__(self, stash: int = 5, least: int = 1024) -> None:
        self.stash, self.least, self.count = stash, least, 0
        self.stashed: dict[int, torch.Tensor] = {}
        self.kept: dict[int, torch.Tensor | Host] = {}
        self.brought: dict[int, torch.Tensor] = {}
        self.node: Any = None
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor: torch.Tensor) -> int:
        """Take a tensor that is saved; return its number."""
        self.count += 1
        base = tensor if tensor._base is None else tensor._base
        lasts = isinstance(base, nn.Parameter | nn.Buffer)
        if tensor.nbytes < self.least or lasts:
            self.kept[self.count] = tensor
            return self.count
        for key in [key for key in self.stashed if key <= self.count - self.stash]:
            del self.stashed[key]
        self.kept[self.count] = COPIES.out(tensor)
        self.stashed[self.count] = tensor
        return self.count

    def unpack(self, key: int) -> torch.Tensor:
        """Return the tensor of a number."""
        kept = self.kept.pop(key)
        if not isinstance(kept, Host):
            return kept
        node = torch._C._current_autograd_node()
        if self.node is None:
            torch.autograd.Variable._execution_engine.queue_callback(self.ended)
        before = [*self.brought] if node is not self.node else []
        self.node = node
        tensor = self.stashed.get(key)
        if tensor is None:
            tensor = self.brought[key] = COPIES.back(kept)

        def done(*_: Any) -> None:
            self.stashed.clear()
            for other in before:
                self.brought.pop(other, None)

        node.register_hook(done)
        return tensor

    def ended(self) -> None:
        """The backward pass is over."""
        self.brought.clear()
        self.node = None


def each_block(model: nn.Module, blocks: list[nn.Module]) -> None:
    """Let each block run again in the backward pass."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]


EAGER = Peer("eager")
PEERS = (
    Peer("save_on_cpu", around=saved_on_cpu),
    Peer("checkpoint, each block", each_block),
    Peer("OffloadsAsTorchtune (ours)", around=OffloadsAsTorchtune, stream=TRANSFER),
    Peer("enable_activation_offloading", options={"enable_activation_offloading": True}),
)


def budget(part: float) -> Peer:
    """Compiled, with so much of the activations' memory."""
    return Peer(f"activation_memory_budget {part:g}", options={"activation_memory_budget": part})
