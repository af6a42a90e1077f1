"""Each private name of PyTorch that is used, why, and which versions have it.

These may change without a word with any PyTorch: `tests/pytorch/internals/test_names.py` says which one did. A name is
the way to it from `torch`. What stands in `ATTRIBUTES` and `OPS` others use by that name, as a call in between would
cost time with each op; all else is used in `gpumem.torch.internals` alone.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NamedTuple

from gpumem.torch.internals import torch

FLOOR, NEWEST = "2.12", "2.15"  # the oldest and the newest version that the tests ran on


class Private(NamedTuple):
    """A private name, why it is used, and the first and last version that have it."""

    name: str
    why: str
    since: str = FLOOR
    until: str = NEWEST

    @property
    def expected(self) -> bool:
        """Whether this PyTorch is to have it; one that is newer than all that were tried is to have what lasted."""
        return later(VERSION, self.since) and (self.until == NEWEST or not later(VERSION, self.until, strictly=True))


def later(version: str, other: str, strictly: bool = False) -> bool:
    """Whether a version is another one or a later one, by its first two numbers.

    >>> later("2.13.0+cpu", "2.6"), later("2.13.1", "2.13", strictly=True), later("2.15.0a0", "3.0")
    (True, False, False)
    """
    ours, theirs = ([int(x) for x in re.findall(r"\d+", text)[:2]] for text in (version, other))
    return ours > theirs if strictly else ours >= theirs


VERSION = str(torch.__version__)


def find(name: str) -> Any:
    """What a name stands for: modules on the way are imported, an `AttributeError` names what there is not.

    >>> find("torch.UntypedStorage._cdata").__name__
    '_cdata'
    """
    first, *parts = name.split(".")
    owner: Any = import_module(first)
    for k, part in enumerate(parts, 2):
        if hasattr(owner, part):
            owner = getattr(owner, part)
            continue
        try:  # one that is not loaded yet, or that its package hides, as `torch.optim.optimizer`
            owner = import_module(".".join([first, *parts][:k]))
        except ImportError:
            raise AttributeError(f"PyTorch {VERSION} has no {name}: {part} is not there") from None
    return owner


def _of(owner: str, names: dict[str, str], since: str = FLOOR, until: str = NEWEST) -> tuple[Private, ...]:
    return tuple(Private(f"{owner}.{name}", why, since, until) for name, why in names.items())


# Others may read these of any object, by name.
ATTRIBUTES: tuple[Private, ...] = (
    *_of("torch.UntypedStorage", {"_cdata": "by which a storage is known, whichever object Python has for it"}),
    *_of(
        "torch.Tensor",
        {
            "_use_count": "whether the engine alone holds a gradient",
            "_is_zerotensor": "forward gradients begin with tensors that have a size and no bytes",
            "_is_view": "autocast keeps the cast of a weight, not of a view of one",
            "_indices": "what a sparse tensor is made of; the public one refuses uncoalesced tensors",
            "_values": "likewise",
        },
    ),
    *_of(
        "torch.ops.aten.add.Tensor",
        {
            "_schema": "what an op writes, returns, and calls its arguments",
            "_overloadname": "which form of an op in place belongs to one out of place",
            "_op_dk": "runs an op by the kernel of one key",
        },
    ),
    *_of(
        "torch.utils._python_dispatch.TorchDispatchMode",
        {"_should_skip_dynamo": "modes say by it that nothing is compiled under them, which saves a wrapper each op"},
    ),
    *_of("torch.autograd.graph.Node", {"_sequence_nr": "which forward op a backward node is of"}),
)

# Ops that others call or name.
OPS: tuple[Private, ...] = (
    *_of(
        "torch.ops.aten",
        {
            "_softmax": "what CUDA runs for softmax of a half precision into a full one",
            "_log_softmax": "likewise",
            "_scaled_dot_product_flash_attention": "the form that a GPU would choose",
            "_scaled_dot_product_efficient_attention": "likewise",
            "_scaled_dot_product_attention_math": "likewise",
            "_to_copy": "what moves a tensor from the host to the device",
            "_fused_sgd_": "optimizers' steps as one op; the meta device has none",
            "_fused_adagrad_": "likewise",
            "_fused_adam_": "likewise",
            "_fused_adamw_": "likewise",
            "_fused_rms_norm": "one op on a GPU, which keeps a number for each row",
            "_local_scalar_dense": "what `item` and `bool` of a tensor ask",
            "_amp_foreach_non_finite_check_and_unscale_": "what a scaler of gradients asks",
            "_pack_padded_sequence": "how large it is depends on lengths",
            "_ctc_loss": "likewise",
            "_ctc_loss_backward": "the meta device has none",
            "_grouped_mm": "products of experts; the meta device takes half precision alone",
            "_neg_view": "a tensor that is seen with its sign changed",
        },
    ),
)

# Used here alone.
INSIDE: tuple[Private, ...] = (
    *_of(
        "torch._C",
        {
            "StorageBase.data_ptr": "an address without what stands in for `data_ptr` meanwhile",
            "StorageBase._swap_data_ptr_": "a storage gives back its memory and keeps its size",
            "StorageBase.resize_": "a storage gives back its memory, where pointers cannot be swapped",
            "StorageBase.copy_": "a storage's bytes from another one, past what stands in for `copy_`",
            "_construct_storage_from_data_pointer": "a storage of a size, without memory",
            "_has_storage": "whether a fake tensor has one",
            "_storage_Use_Count": "whether the engine alone holds a gradient",
            "_to_dlpack": "hands out addresses, and is imported by name",
            "_current_graph_task_id": "whether a backward pass is under way, asked with each op",
            "_current_autograd_node": "the node of a backward pass that runs now, asked with each op",
            "_functorch.is_functorch_wrapped_tensor": "transforms of `torch.func` wrap tensors, for a while",
            "_functorch.get_unwrapped": "the tensor in there has the storage",
            "DisableTorchFunction": "ops of our own run past function modes",
            "_len_torch_dispatch_stack": "whether there are modes to switch off, which takes long",
            "_disabled_torch_dispatch_impl": "tells subclasses that decide what an op does from those that do not",
            "DispatchKey.AutocastCUDA": "where autocast's kernels are",
            "DispatchKey.CompositeImplicitAutograd": "where the kernels of ops that are made of others are",
            "DispatchKey.CPU": "by which an op of somebody's own runs its kernel in Python",
            "DispatchKey.CUDA": "likewise",
            "DispatchKeySet": "likewise",
            "_IncludeDispatchKeyGuard": "autocast's kernels are asked for tensors without a device",
            "_ExcludeDispatchKeyGuard": "an op under autocast calls itself, without",
            "_dispatch_has_kernel_for_dispatch_key": "which ops are made of others, which lack a kernel for `meta`",
            "_dispatch_get_registrations_for_dispatch_key": "which ops autocast casts",
            "ScriptModule": "its methods write files from C++",
            "ScriptFunction": "likewise",
            "PyTorchFileWriter": "writes the storages of a checkpoint",
        },
    ),
    *_of(
        "torch",
        {
            "_VF": "recurrent layers call these, which read lengths before any op",
            "_meta_registrations.meta_conv": "how large a convolution's result is",
            "_prims_common.suggest_memory_format": "whether a tensor has its channels last, and is no ambiguous one",
            "_subclasses.fake_tensor.FakeTensorMode": "tensors in there have no bytes",
            "autograd._get_sequence_nr": "the number that the next backward node gets",
            "autograd._make_grads": "the function whose first gradient, of ones, is no op of the step's",
            "library._impls": "which ops have kernels in Python, which may touch tensors that are no arguments",
            "library._scoped_library": "kernels that stand in go again",
            "jit._builtins._builtin_table": "`torch.jit.script` knows builtins by identity, so what stands in as well",
            "nn.Module._compiled_call_impl": "whether a module was compiled",
            "utils._device._device_constructors": "the functions that take the default device",
            "utils._pytree.tree_leaves": "the tensors of a value in a graph",
            "utils._pytree.tree_map_only": "the arguments of a node in a graph",
            "utils._pytree.arg_tree_leaves": "the results of a graph",
            "utils._python_dispatch.TorchDispatchMode": "what sees each op",
            "utils._python_dispatch._disable_current_modes": "ops of our own run past the user's modes",
            "utils._python_dispatch._get_current_dispatch_mode_stack": "whether a mode is entered, and in which place",
            "utils._python_dispatch._pop_mode": "a mode may be left before those that were entered later",
            "utils._python_dispatch._push_mode": "likewise",
            "_functorch.config": "where compiled models find the solver",
            "_functorch.config.activation_memory_budget_solver": "the solver's place",
            "_functorch.config.activation_memory_budget_runtime_estimator": "what an op costs that is recomputed",
            "_functorch.partitioners.solve_min_cut": "makes the network that is cut",
            "_functorch.partitioners.MinCutOptions": "which ops may be recomputed",
            "_functorch.partitioners.estimate_runtime": "what an op costs that is recomputed",
            "_functorch._activation_checkpointing.knapsack.dp_knapsack": "PyTorch's own solver: where to start",
            "_functorch.partitioners._must_be_in_forward": "nodes that the forward half alone may run",
            "_functorch.partitioners._must_be_in_backward": "likewise, the backward half",
            "_inductor.custom_graph_pass.CustomKnapsackSolver": "the class that a solver must be of",
            "_guards.TracingContext": "whether random ops in a graph are told apart",
            "_inductor.config.fallback_random": "likewise",
        },
    ),
)


# Used here alone, and there only where PyTorch was built for CUDA.
OF_CUDA = (Private("torch._C._cuda_getCurrentStream", "which stream is current, asked with each op without an object"),)


def known() -> tuple[Private, ...]:
    """All of them."""
    return (*ATTRIBUTES, *OPS, *INSIDE, *OF_CUDA)
