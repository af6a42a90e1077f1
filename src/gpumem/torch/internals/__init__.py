"""The only importer of PyTorch, so that its absence is told once; what is private there has a name of ours here.

`names` says of each private name why it is used and which versions have it, `redirected` of each function that another
one stands in for, `byte_access` of each that touches bytes past the dispatcher. `partitioner` is what compiled models
need. `tests/pytorch/internals` looks for all of them in the PyTorch that is installed, and finds no private name of
PyTorch outside of this folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any, cast

try:
    import torch as torch
    from torch import _VF as _VF
    from torch._meta_registrations import meta_conv as meta_conv
    from torch._prims_common import suggest_memory_format as suggest_memory_format
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
    from torch.utils import _device, _python_dispatch, _pytree
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils.flop_counter import flop_registry as flop_registry
    from torch.utils.weak import WeakIdKeyDictionary as WeakIdKeyDictionary
except ImportError as error:
    raise ImportError(f"gpumem.torch needs PyTorch 2.12 or later: pip install 'gpumem[torch]' ({error})") from error

C: Any = torch._C
pytree, device_constructors = _pytree, _device._device_constructors

# Modes: of ops, innermost last.
no_function_modes = C.DisableTorchFunction
no_modes, mode_stack = _python_dispatch._disable_current_modes, _python_dispatch._get_current_dispatch_mode_stack
pop_mode, push_mode = _python_dispatch._pop_mode, _python_dispatch._push_mode

# Methods of storages that nobody has patched. Pointers can be swapped since PyTorch 2.12; 2.11 stands in no range.
pointer, resize, copy = C.StorageBase.data_ptr, C.StorageBase.resize_, C.StorageBase.copy_
swap: Any = getattr(C.StorageBase, "_swap_data_ptr_", None)
SWAPS = swap is not None
has_storage, storage_references, to_dlpack = C._has_storage, C._storage_Use_Count, C._to_dlpack
cuda_stream_key: Any = getattr(C, "_cuda_getCurrentStream", None)  # where PyTorch was built for CUDA

# Where a backward pass stands, asked with each op.
graph_task, backward_node = C._current_graph_task_id, C._current_autograd_node
next_sequence_number = torch.autograd._get_sequence_nr
FIRST_GRADIENTS = "_make_grads"  # what `torch.autograd` makes them in

# The dispatcher: its keys, what has kernels, and ops that run with a key or without it.
DispatchKeySet = C.DispatchKeySet
AUTOCAST, COMPOSITE = C.DispatchKey.AutocastCUDA, C.DispatchKey.CompositeImplicitAutograd
BACKENDS = {"cpu": C.DispatchKey.CPU, "cuda": C.DispatchKey.CUDA}
with_key, without_key = C._IncludeDispatchKeyGuard, C._ExcludeDispatchKeyGuard
has_kernel = C._dispatch_has_kernel_for_dispatch_key  # (name of an op, name of a key); raises of an op that it has not
kernels_of = C._dispatch_get_registrations_for_dispatch_key
PLAIN_DISPATCH = C._disabled_torch_dispatch_impl  # of a tensor that decides nothing for itself


def kernels() -> AbstractContextManager[Library]:
    """Kernels for PyTorch's own ops, which go again on leaving."""
    return cast(AbstractContextManager[Library], torch.library._scoped_library("aten", "IMPL"))


def unguarded(library: Library, name: str, key: str, kernel: Any) -> None:
    """Give an op a kernel past `Library.impl`, which refuses one for `Meta` where an op decomposes."""
    library.m.impl(name, key, kernel, False)


def python_kernels() -> set[str]:
    """Return the kernels in Python that `torch.library` knows of, each as `namespace/name/dispatch key`."""
    return cast(set[str], torch.library._impls)


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """What a transform of `torch.func` wraps for a while, as the tensor that has the storage."""
    while C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = C._functorch.get_unwrapped(tensor)
    return tensor


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def uses_dynamo() -> bool:
    """Whether something may be compiled already."""
    return "torch._dynamo" in sys.modules


def import_dynamo() -> None:
    """Import what keeps for good what it finds of `torch.cuda` then."""
    import_module("torch._dynamo.device_interface")


def scripted_as(original: Any, stand_in: Any) -> None:
    """Let `torch.jit.script` take something for the builtin that it stands in for: it knows builtins by identity.

    It has a table, made when somebody scripts first, which takes long. It may be made with a stand-in in it, so when a
    stand-in goes, the original takes its place.
    """
    table = torch.jit._builtins._builtin_table
    if table is not None and id(original) in table:
        table[id(stand_in)] = table[id(original)]


def storage_without_memory(size: int, device: torch.device) -> torch.UntypedStorage:
    """A storage of a size, without memory."""
    return cast(torch.UntypedStorage, C._construct_storage_from_data_pointer(0, device, size))


@contextmanager
def hidden_from_modes(gradients: bool = False) -> Iterator[None]:
    """Run ops of our own, which no mode of the user's is to see; some do more where gradients are enabled."""
    with no_function_modes(), torch.set_grad_enabled(gradients):
        if C._len_torch_dispatch_stack():
            with no_modes():
                yield
        else:
            yield
