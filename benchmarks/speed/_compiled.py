"""Compiled steps as the backend `aot_eager` runs them: op by op, with PyTorch's own partition of forward and backward.

Compiled code shuns dispatch modes, so whoever watches it does so graph by graph: see `WATCHING`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config
from torch._functorch._activation_offloading.activation_offloading import CPU_OFFLOAD_PREFIX, GPU_RELOAD_PREFIX
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.speed._peers import COPIES, Host

WATCHING: list[AbstractContextManager[Any]] = [nullcontext()]  # the last of them sees the ops of compiled graphs


def _graph(module: fx.GraphModule, examples: Any) -> Any:
    """Run a graph as the backend `aot_eager` does, op by op; its copies are ours."""
    for node in module.graph.nodes:
        if node.target is torch.ops.prims.device_put.default and node.name.startswith(CPU_OFFLOAD_PREFIX):
            node.target, node.args, node.kwargs = _offload, node.args[:1], {}
        elif node.target is torch.ops.prims.device_put.default and node.name.startswith(GPU_RELOAD_PREFIX):
            node.target, node.args, node.kwargs = _reload, node.args[:1], {}
    run = boxed_nop(module, examples)

    def watched(args: Any) -> Any:
        with WATCHING[-1]:
            return run(args)

    watched._boxed_call = True  # type: ignore[attr-defined]
    return watched


@contextmanager
def watched(watch: AbstractContextManager[Any]) -> Iterator[None]:
    """Let compiled graphs be watched."""
    WATCHING.append(watch)
    try:
        yield
    finally:
        WATCHING.pop()


_BY_ADDRESS: weakref.WeakValueDictionary[int, Host] = weakref.WeakValueDictionary()


def _offload(tensor: torch.Tensor) -> torch.Tensor:
    host = COPIES.out(tensor)
    with _disable_current_modes():
        found = host.tensor
    _BY_ADDRESS[host.bytes.ctypes.data] = host
    weakref.finalize(found.untyped_storage(), lambda kept: None, host)  # which lives as long as the tensor does
    return found


def _reload(tensor: torch.Tensor) -> torch.Tensor:
    return COPIES.back(_BY_ADDRESS[tensor.data_ptr()])


def _partition(joint: fx.GraphModule, inputs: Any, **how: Any) -> Any:
    if config.enable_activation_offloading:  # whoever enables it says which: here all that it can
        for node in joint.graph.nodes:
            node.meta["should_offload"] = node.op == "call_function"
    return min_cut_rematerialization_partition(joint, inputs, **how)


def compiled(
    function: Callable[..., torch.Tensor], options: Mapping[str, Any]
) -> tuple[Callable[..., torch.Tensor], Callable[[], AbstractContextManager[Any]]]:
    """Compile a function, as if nothing had been compiled before; also return what its calls stand in."""
    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=_graph, bw_compiler=_graph, partition_fn=_partition, keep_inference_input_mutations=True
    )
    return torch.compile(function, backend=backend), lambda: config.patch(**options)
