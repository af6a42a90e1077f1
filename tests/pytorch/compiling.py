"""A step of a compiled net: what it holds, counted by weak references meanwhile, and what it recomputes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config, partitioners

from tests.pytorch.counting import References


@dataclass
class Ran:
    """Bytes held at most, the estimated runtime of what was recomputed, the gradients; the ops of both graphs."""

    peak: int
    recomputed: float
    gradients: list[torch.Tensor]
    graphs: dict[str, list[str]]


def eager(net: torch.nn.Module, x: torch.Tensor, seed: int = 0) -> list[torch.Tensor]:
    """The gradients of the step as it is."""
    torch.manual_seed(seed)
    net(x).square().mean().backward()
    return _gradients(net)


def compiled(net: torch.nn.Module, x: torch.Tensor, settings: dict[str, Any], seed: int = 0) -> Ran:
    """A step of a net, compiled as by `aot_eager` under some settings of `torch._functorch.config`."""
    torch._dynamo.reset()
    counter = References()
    graphs: dict[str, list[str]] = {}
    recomputed: list[float] = []

    def half(name: str) -> Callable[..., Any]:
        def compiler(module: Any, example: Any) -> Any:
            nodes = [node for node in module.graph.nodes if node.op == "call_function"]
            graphs[name] = [node.name for node in nodes]
            if name == "backward":
                twice = [node for node in nodes if node.name in set(graphs["forward"]) and _makes(node)]
                recomputed.append(sum(partitioners.estimate_runtime(node) for node in twice))
            inner = boxed_nop(module, example)

            def run(arguments: Any) -> Any:
                with counter:
                    return inner(arguments)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compiler

    backend = aot_autograd(
        fw_compiler=half("forward"),
        bw_compiler=half("backward"),
        partition_fn=partitioners.min_cut_rematerialization_partition,
    )
    with config.patch(settings):
        counter.see([*net.parameters(), *net.buffers(), x])
        torch.manual_seed(seed)
        y = torch.compile(net, backend=backend, fullgraph=True)(x)
        y.square().mean().backward()
    return Ran(max(held for _, held in counter.curve), sum(recomputed), _gradients(net), graphs)


def _makes(node: Any) -> bool:
    """Whether a node makes a tensor that is no view of its inputs."""
    if node.target is operator.getitem:
        return False
    returns = node.target._schema.returns
    return not returns or (any(r.alias_info is None for r in returns) and "view" not in node.name)


def _gradients(net: torch.nn.Module) -> list[torch.Tensor]:
    found = [p.grad for p in net.parameters() if p.grad is not None]
    for p in net.parameters():
        p.grad = None
    return found
