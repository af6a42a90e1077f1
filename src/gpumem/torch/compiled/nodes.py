"""What a node of an fx graph makes, and how long it takes by the estimate that PyTorch is told to use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpumem.torch.internals import flop_registry, functorch_config, partitioner, torch


def storages_of(node: Any) -> Iterator[tuple[int, int]]:
    """Yield a key and the bytes of each storage that a node's value has. Fake tensors share them as real ones will."""
    for x in torch.utils._pytree.tree_leaves(node.meta.get("val")):
        if isinstance(x, torch.Tensor) and torch._C._has_storage(x):
            storage = x.untyped_storage()
            size = storage.nbytes()
            yield storage._cdata, size if isinstance(size, int) else _hint(size)


def _hint(size: Any) -> int:
    """Return the bytes of a size that has symbols, as they were when it was traced."""
    hint = size.node.hint
    return 4096 if hint is None else int(hint)


def runtime_of(node: Any) -> float:
    """Return PyTorch's estimate for a node: flops, unless told otherwise; 1 where there are none.

    Flops are looked up here: the solver is called where fake tensors cannot be computed with.
    """
    if functorch_config().activation_memory_budget_runtime_estimator != "flops":
        return float(partitioner().estimate_runtime(node))
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 1.0
    args, kwargs = torch.utils._pytree.tree_map_only(
        torch.fx.Node, lambda x: x.meta.get("val"), (node.args, node.kwargs)
    )
    return max(float(formula(*args, **kwargs, out_val=node.meta.get("val"))), 1.0)
