"""What of PyTorch splits the graphs of compiled models, as far as the solver needs it; loaded when it is needed."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from gpumem.torch.internals import torch


class NoSolver(ImportError):
    """This version of PyTorch cannot be asked to split a graph as the solver would have it."""


def functorch_config() -> Any:
    """Return `torch._functorch.config`, where the solver's place is."""
    import torch._functorch.config as config

    return config


def partitioner() -> Any:
    """Return `torch._functorch.partitioners`, of which the solver needs what is private."""
    import torch._functorch.partitioners as partitioners

    needed = ("solve_min_cut", "MinCutOptions", "estimate_runtime", "_must_be_in_forward", "_must_be_in_backward")
    missing = [name for name in needed if not hasattr(partitioners, name)]
    if missing:
        raise NoSolver(f"PyTorch {torch.__version__} splits graphs another way: no partitioners.{', '.join(missing)}")
    return partitioners


def halves_of(node: Any) -> tuple[bool, bool]:
    """Whether a node must be in the forward half, and whether in the backward half."""
    partitioners = partitioner()
    return partitioners._must_be_in_forward(node), partitioners._must_be_in_backward(node)


def knapsack_solver() -> Any:
    """Return the class whose instances PyTorch takes for solvers."""
    from torch._inductor.custom_graph_pass import CustomKnapsackSolver

    return CustomKnapsackSolver


def impure(node: Any) -> bool:
    """Whether a node stays although nobody asks for it, as where PyTorch splits a graph."""
    from torch._guards import TracingContext

    return bool(node.is_impure(not TracingContext.try_get() or torch._inductor.config.fallback_random))


def dp_knapsack(memory: list[float], runtime: list[float], most: float) -> tuple[float, list[int], list[int]]:
    """Return runtime saved, positions saved and positions recomputed, as PyTorch's own solver does."""
    from torch._functorch._activation_checkpointing.knapsack import dp_knapsack as theirs

    return cast(tuple[float, list[int], list[int]], theirs(memory, runtime, most))


class _Made(BaseException):
    """Carries the network out of the function that would go on to cut it, past what it catches."""


def networks(graph: Any, info: Any, options: Any) -> list[tuple[str, str, float]]:
    """Return the edges and capacities of the network that PyTorch cuts to split a graph."""

    def keep(network: Any, *_: Any, **__: Any) -> None:
        raise _Made([(a, b, data["capacity"]) for a, b, data in network.edges(data=True)])

    try:
        _cutting(partitioner().solve_min_cut, keep)(graph, info, options)
    except _Made as made:
        return list(made.args[0])
    raise NoSolver(f"PyTorch {torch.__version__} does not split graphs by a minimum cut")


def _cutting(function: Any, cut: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of PyTorch that calls another one than its own to cut a network.

    It is its code with globals of its own, so that nothing is swapped that others see: what is `minimum_cut` in there
    (2.15 has one) and, as others import networkx when they run, the networkx that they import.
    """

    def importing(name: str, *how: Any, **more: Any) -> Any:
        module = builtins.__import__(name, *how, **more)
        return _Networkx(module, cut) if name == "networkx" else module

    own = {"__builtins__": vars(builtins) | {"__import__": importing}, "minimum_cut": cut}
    made = FunctionType(
        function.__code__, function.__globals__ | own, None, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class _Networkx:
    """The module, but for its `minimum_cut`."""

    def __init__(self, module: Any, cut: Callable[..., Any]) -> None:
        self.module, self.minimum_cut = module, cut

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)
