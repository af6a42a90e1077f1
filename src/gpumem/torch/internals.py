"""The only importer of PyTorch, so that its absence is told once; what others need of its modules goes through here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import torch as torch
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.autograd.function import BackwardCFunction as BackwardCFunction
    from torch.library import Library as Library
    from torch.nn.modules.module import (
        register_module_forward_hook as register_module_forward_hook,
        register_module_forward_pre_hook as register_module_forward_pre_hook,
    )
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook as register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook as register_optimizer_step_pre_hook,
    )
    from torch.overrides import TorchFunctionMode as TorchFunctionMode
    from torch.utils import _python_dispatch as _python_dispatch
    from torch.utils._device import _device_constructors as _device_constructors
    from torch.utils._python_dispatch import (
        TorchDispatchMode as TorchDispatchMode,
        _disable_current_modes as _disable_current_modes,
        _get_current_dispatch_mode_stack as _get_current_dispatch_mode_stack,
        _pop_mode as _pop_mode,
        _push_mode as _push_mode,
    )
    from torch.utils.flop_counter import flop_registry as flop_registry
    from torch.utils.weak import WeakIdKeyDictionary as WeakIdKeyDictionary
except ImportError as error:
    raise ImportError(f"gpumem.torch needs PyTorch 2.6 or later: pip install 'gpumem[torch]' ({error})") from error


def scripted_as(original: Any, stand_in: Any) -> None:
    """Let `torch.jit.script` take something for the builtin that it stands in for: it knows builtins by identity.

    It has a table, made when somebody scripts first, which takes long. It may be made with a stand-in in it, so when a
    stand-in goes, the original takes its place.
    """
    table = torch.jit._builtins._builtin_table
    if table is not None and id(original) in table:
        table[id(stand_in)] = table[id(original)]


def python_kernels() -> set[str]:
    """Return the kernels in Python that `torch.library` knows of, each as `namespace/name/dispatch key`."""
    return getattr(torch.library, "_impls", set())


class NoSolver(ImportError):
    """This version of PyTorch cannot be asked to split a graph as the solver would have it."""


def functorch_config() -> Any:
    """Return `torch._functorch.config`, where the solver's place is."""
    import torch._functorch.config as config

    if not hasattr(config, "activation_memory_budget_solver"):
        raise NoSolver(f"PyTorch {torch.__version__} has no activation_memory_budget_solver; 2.6 and later have")
    return config


def partitioner() -> Any:
    """Return `torch._functorch.partitioners`, of which the solver needs what is private; loaded when it is needed."""
    functorch_config()
    import torch._functorch.partitioners as partitioners

    needed = ("solve_min_cut", "MinCutOptions", "estimate_runtime", "_must_be_in_forward", "_must_be_in_backward")
    missing = [name for name in needed if not hasattr(partitioners, name)]
    if missing:
        raise NoSolver(f"PyTorch {torch.__version__} splits graphs another way: no partitioners.{', '.join(missing)}")
    return partitioners


def knapsack_solver() -> Any:
    """Return the class whose instances PyTorch takes for solvers; earlier ones take any callable, and have none."""
    functorch_config()
    try:
        from torch._inductor.custom_graph_pass import CustomKnapsackSolver
    except ImportError:
        from abc import ABC as CustomKnapsackSolver
    return CustomKnapsackSolver


def impure(node: Any) -> bool:
    """Whether a node stays although nobody asks for it, as where PyTorch splits a graph."""
    from torch._guards import TracingContext

    try:
        return bool(node.is_impure(not TracingContext.try_get() or torch._inductor.config.fallback_random))
    except TypeError:  # before 2.8 or so, random ops are not told apart
        return bool(node.is_impure())


def dp_knapsack(memory: list[float], runtime: list[float], most: float) -> tuple[float, list[int], list[int]]:
    """Return runtime saved, positions saved and positions that run again, as PyTorch's own solver does."""
    from torch._functorch._activation_checkpointing.knapsack import dp_knapsack as theirs

    found: tuple[float, list[int], list[int]] = theirs(memory, runtime, most)
    return found


class _Network(Exception):
    """Carries the network out of the function that would go on to cut it."""


def networks(graph: Any, info: Any, options: Any) -> list[tuple[str, str, float]]:
    """Return the edges and capacities of the network that PyTorch cuts to split a graph."""
    import networkx

    def keep(network: Any, *_: Any, **__: Any) -> None:
        raise _Network([(a, b, data["capacity"]) for a, b, data in network.edges(data=True)])

    where: Any = partitioner() if hasattr(partitioner(), "minimum_cut") else networkx  # 2.15 has one of its own
    theirs, where.minimum_cut = where.minimum_cut, keep
    try:
        partitioner().solve_min_cut(graph, info, options)
    except _Network as found:
        return list(found.args[0])
    finally:
        where.minimum_cut = theirs
    raise NoSolver(f"PyTorch {torch.__version__} does not split graphs by a minimum cut")


# Methods of storages that nobody has patched; pointers can be swapped since PyTorch 2.8 (else None).
pointer, resize = torch._C.StorageBase.data_ptr, torch._C.StorageBase.resize_
swap: Any = getattr(torch._C.StorageBase, "_swap_data_ptr_", None)
SWAPS = swap is not None


def hollow(size: int, device: torch.device) -> torch.UntypedStorage:
    """A storage of a size, without memory."""
    return torch._C._construct_storage_from_data_pointer(0, device, size)


@contextmanager
def quietly(gradients: bool = False) -> Iterator[None]:
    """Run ops of our own, which no mode of the user's is to see; some do more where gradients are enabled."""
    with torch._C.DisableTorchFunction(), torch.set_grad_enabled(gradients):
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes():
                yield
        else:
            yield
