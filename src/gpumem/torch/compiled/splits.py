"""Splits of a joint graph by PyTorch's minimum cut: the values saved, given the ops that may be recomputed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpumem.torch.compiled.joint import JointGraph, Split
from gpumem.torch.compiled.mincut import FlowNetwork
from gpumem.torch.internals import torch
from gpumem.torch.internals.partitioner import functorch_config, networks, partitioner


class Splits:
    """Splits of a joint graph by the costly ops that may be recomputed, as positions in `ops`, on one of several bases.

    A base is a set of cheap ops that may not: what PyTorch itself would not recompute at budget 1, where it asks for
    less, and where for the least. They are tagged to be saved, as PyTorch's partitioner tags collectives. So is, on any
    base, what must not run twice: ops that would draw other random numbers, and those that read what the forward half
    overwrites (batch norm's running statistics). `given` are the splits that PyTorch makes on these bases by itself.
    """

    def __init__(self, graph: Any, info: Any, ops: Sequence[Any]) -> None:
        self.joint = JointGraph(graph, info)
        self.ops = [self.joint.of[op] for op in ops]
        self._name = [f"{op.name}_in" for op in ops]
        self._at = {f"{node.name}_in": position for position, node in enumerate(self.joint.nodes)}
        self._known: dict[tuple[int, ...], Split | None] = {}
        own = [FlowNetwork(networks(graph, info, options)) for options in _options()]
        self.given = [self._split(network, ()) for network in own]
        once = {
            position
            for position, node in enumerate(self.joint.nodes)
            if info.is_required_fw(node) and self._once(position)
        }
        self.allowed = frozenset(choice for choice, position in enumerate(self.ops) if position not in once)
        free = {position for position, node in enumerate(self.joint.nodes) if "recompute" not in node.meta}
        self._tags = [
            (once | ({self._at[name] for name in base_network.kept} - set(self.ops))) & free for base_network in own
        ]
        self._bases = []
        for base in range(len(own)):
            self.tag(base)
            self._bases.append(FlowNetwork(networks(graph, info, _options()[-1])))

    @property
    def bases(self) -> range:
        """The bases, that of budget 1 first."""
        return range(len(self._tags))

    @property
    def tried(self) -> int:
        """How many splits were evaluated."""
        return len(self._known)

    def tag(self, base: int) -> None:
        """Tag the graph so that PyTorch cuts it on this base."""
        for position in set().union(*self._tags):
            self.joint.nodes[position].meta.pop("recompute", None)
        for position in self._tags[base]:
            self.joint.nodes[position].meta["recompute"] = torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE

    def of(self, base: int, recomputed: Iterable[int]) -> Split | None:
        """Return the split where some ops may be recomputed; None where there is none that is right."""
        return self._split(self._bases[base], [self._name[choice] for choice in recomputed])

    def _split(self, network: FlowNetwork, opened: Iterable[str]) -> Split | None:
        cut = network.cut(opened)
        if cut is None:
            return None
        saved = tuple(sorted(self._at[name] for name in cut))
        if saved not in self._known:
            self._known[saved] = self.joint.split(saved)
        return self._known[saved]

    def _once(self, position: int) -> bool:
        """Whether a node must not run twice."""
        node = self.joint.nodes[position]
        if any(
            not self.joint.overwritten.isdisjoint(self.joint.storages[source]) for source in self.joint.inputs[position]
        ):
            return bool(self.joint.made[position])
        return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and _draws(node)


def _draws(node: Any) -> bool:
    """Whether an op that may draw random numbers does: attention does where its dropout is not 0."""
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name in ("dropout_p", "p"):
            given = (
                node.args[position]
                if position < len(node.args)
                else node.kwargs.get(argument.name, argument.default_value)
            )
            return bool(given != 0)
    return True


def _options() -> tuple[Any, Any, Any]:
    """Return the options of PyTorch's cut at budget 1, and where it asks for less and less."""
    config = functorch_config()
    dear = not config.aggressive_recomputation
    fastest = partitioner().MinCutOptions(
        ban_if_used_far_apart=dear and config.ban_recompute_used_far_apart,
        ban_if_long_fusible_chains=dear and config.ban_recompute_long_fusible_chains,
        ban_if_materialized_backward=dear and config.ban_recompute_materialized_backward,
        ban_if_not_in_allowlist=dear and config.ban_recompute_not_in_allowlist,
        ban_if_reduction=config.ban_recompute_reductions,
    )
    fewer = replace(
        fastest, ban_if_used_far_apart=False, ban_if_long_fusible_chains=False, ban_if_materialized_backward=False
    )
    return fastest, fewer, replace(fewer, ban_if_not_in_allowlist=False)
