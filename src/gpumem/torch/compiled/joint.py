"""The joint graph that `torch.compile` splits: the peak and the recomputation of its halves, by the values saved."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gpumem.torch.internals import flop_registry, has_storage, pytree, torch
from gpumem.torch.internals.partitioner import functorch_config, halves_of, impure, partitioner

UNHINTED = 4096  # bytes of a storage whose size has no hint, as one that depends on values; not tuned


def storages_of(node: Any) -> Iterator[tuple[int, int]]:
    """Yield a key and the bytes of each storage that a node's value has. Fake tensors share them as real ones will."""
    for leaf in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(leaf, torch.Tensor) and has_storage(leaf):
            storage = leaf.untyped_storage()
            size = storage.nbytes()
            yield storage._cdata, size if isinstance(size, int) else _hint(size)


def _hint(size: Any) -> int:
    """Return the bytes of a size that has symbols, as they were when it was traced."""
    hint = size.node.hint
    return UNHINTED if hint is None else int(hint)


def runtime_of(node: Any) -> float:
    """Return PyTorch's estimate for a node: flops, unless its configuration says otherwise; 1 where there are none.

    Flops are looked up here: the solver is called where fake tensors cannot be computed with.
    """
    if functorch_config().activation_memory_budget_runtime_estimator != "flops":
        return float(partitioner().estimate_runtime(node))
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 1.0
    args, kwargs = pytree.tree_map_only(torch.fx.Node, lambda arg: arg.meta.get("val"), (node.args, node.kwargs))
    return max(float(formula(*args, **kwargs, out_val=node.meta.get("val"))), 1.0)


@dataclass(frozen=True, slots=True)
class Split:
    """A split by its saved values: peak live bytes, flops recomputed, the nodes whose storages live at the peak."""

    peak: int
    recomputed: float
    held: frozenset[int]


class JointGraph:
    """A joint graph by the positions of its nodes.

    `halves` follows `torch._functorch.partitioners`: both halves are cut out of the joint graph in its order, what
    is not used is removed, the backward half recomputes each op of the forward as late as it can, and items of a tuple
    are taken at once. `split` says which storages live when these run one after the other, each value being freed after
    its last use; parameters, inputs and results belong to the caller and stay.
    """

    def __init__(self, graph: Any, info: Any) -> None:
        nodes = [node for node in graph.nodes if node.op != "output"]
        self.nodes = nodes
        self.of = {node: position for position, node in enumerate(nodes)}
        self.inputs = [[self.of[source] for source in node.all_input_nodes] for node in nodes]
        self.called = [node.op == "call_function" for node in nodes]
        self.getitem = [node.target is operator.getitem for node in nodes]
        self.impure = [called and impure(node) for node, called in zip(nodes, self.called)]
        halves = [halves_of(node) for node in nodes]
        self.only_forward, self.only_backward = ([half[half_index] for half in halves] for half_index in (0, 1))
        self.arguments = [self.of[node] for node in info.inputs]
        self.tangents = [
            position for position, node in enumerate(nodes) if node.op == "placeholder" and "tangents" in node.target
        ]
        self._storages(nodes)
        self._returned(graph)
        self.runtime = [
            runtime_of(node) if called and self.made[position] and info.is_required_fw(node) else 0.0
            for position, (node, called) in enumerate(zip(nodes, self.called))
        ]

    def _storages(self, nodes: Sequence[Any]) -> None:
        """Number the storages; `made` are those of a node that none of its inputs has: the others are views."""
        numbers: dict[Any, int] = {}
        self.size: list[int] = []
        self.storages: list[list[int]] = []
        for node in nodes:
            storages = []
            for key, size in storages_of(node):
                if key not in numbers:
                    numbers[key] = len(self.size)
                    self.size.append(size)
                storages.append(numbers[key])
            self.storages.append(storages)
        self.made = [
            [
                storage
                for storage in storages
                if not any(storage in self.storages[source] for source in self.inputs[position])
            ]
            for position, storages in enumerate(self.storages)
        ]

    def _returned(self, graph: Any) -> None:
        """Find what the halves return (the backward one gradients), and which arguments are overwritten.

        What an argument becomes is returned, and copied into it after the forward half, or the forward half does so.
        """
        output = next(iter(graph.find_nodes(op="output")))
        returned = pytree.arg_tree_leaves(*output.args)
        descs = output.meta.get("desc") or [None] * len(returned)
        kinds = [type(desc).__name__ for desc in descs]
        first = kinds.index("GradAOTOutput") if "GradAOTOutput" in kinds else len(returned) - len(self.arguments)
        outputs = [(self.of[x], desc) for x, desc in zip(returned[:first], descs) if isinstance(x, torch.fx.Node)]
        changes = [getattr(desc, "mutated_input", None) for _, desc in outputs]
        self.outputs = [i for i, _ in outputs]
        self.lasting = [i for (i, _), change in zip(outputs, changes) if change is None]
        self.gradients = [self.of[x] for x in returned[first:] if isinstance(x, torch.fx.Node)]
        changed = {i for i in self.arguments if self.nodes[i].meta.get("desc", self) in changes}
        changed |= {x for i, inputs in enumerate(self.inputs) if self.only_forward[i] for x in inputs[:1]}
        self.overwritten = frozenset(s for i in changed for s in self.storages[i])

    def halves(self, saved: Iterable[int]) -> tuple[list[int], list[int], list[int]]:
        """Return what the forward and the backward half run, in order, and the values saved between them."""
        given = set(saved) | set(self.tangents)
        possible = self._possible(given, self.only_forward)
        needed = self._needed(self.gradients, given, possible, self.impure)
        backward = [node for node in needed if node not in given]
        used = sorted(
            {source for node in backward for source in self.inputs[node]} & given | given.intersection(self.gradients)
        )
        saved = [node for node in used if node not in self.tangents]
        start = set(self.arguments)
        possible = self._possible(start, self.only_backward)
        forward = [
            node for node in self._needed([*self.outputs, *saved], start, possible, self.impure) if node not in start
        ]
        return self._items_first(forward), self._items_first(self._late(backward)), saved

    def _possible(self, given: set[int], not_here: Sequence[bool]) -> list[bool]:
        """Whether each node can be had from the given ones."""
        possible: list[bool] = []
        for node, inputs in enumerate(self.inputs):
            runs = not not_here[node] and (self.called[node] or self.nodes[node].op == "get_attr")
            possible.append(node in given or (runs and all(possible[source] for source in inputs)))
        return possible

    def _needed(self, of: Iterable[int], given: set[int], possible: list[bool], impure: Sequence[bool]) -> list[int]:
        """Return what some nodes need, in order."""
        stack = [*of, *(node for node, keep in enumerate(impure) if keep and possible[node])]
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                if node not in given:
                    stack.extend(self.inputs[node])
        return sorted(seen)

    def _late(self, backward: list[int]) -> list[int]:
        """Order the backward half as PyTorch does: what stands before the first use of a tangent runs when needed."""
        tangents = set(self.tangents)
        first = next(
            (position for position, node in enumerate(backward) if not tangents.isdisjoint(self.inputs[node])), None
        )
        if first is None:
            return backward
        inside, done, order = set(backward), set[int](), list[int]()
        copies = [node for node in backward[:first] if self.nodes[node].target is torch.ops.aten.copy_.default]
        for node in [*copies, *backward[first:]]:
            stack, batch = [node], set[int]()
            while stack:
                needed = stack.pop()
                if needed in inside and needed not in done and needed not in batch:
                    batch.add(needed)
                    stack.extend(self.inputs[needed])
            done |= batch
            order.extend(sorted(batch))
        return order

    def _items_first(self, order: list[int]) -> list[int]:
        """Take items of tuples right where the tuple is made."""
        items: dict[int, list[int]] = {}
        inside = set(order)
        for node in order:
            if self.getitem[node] and self.inputs[node][0] in inside:
                items.setdefault(self.inputs[node][0], []).append(node)
        taken = {node for of in items.values() for node in of}
        return [item for maker in order if maker not in taken for item in self._with_items(maker, items)]

    def _with_items(self, node: int, items: dict[int, list[int]]) -> list[int]:
        return [node, *(inner for item in items.get(node, ()) for inner in self._with_items(item, items))]

    def split(self, saved: Iterable[int]) -> Split | None:
        """Return the peak of a step, and what it recomputes, with these values saved. O(nodes + edges).

        None where the backward half would read what the forward half overwrites.
        """
        forward, backward, saved = self.halves(saved)
        if any(not self.overwritten.isdisjoint(self.storages[node]) for node in saved):
            return None
        both = set(forward)
        lives = _Lives(self, len(forward), len(backward))
        for node in [*self.arguments, *self.lasting]:
            lives.use(node, lives.end)
        for node in self.outputs:
            lives.use(node, lives.turn)
        for node in self.arguments:
            lives.place(node, 0)
        lives.run(forward, 0)
        for node in saved:
            lives.use(node, lives.turn)
        for node in self.tangents:
            lives.place(node, lives.turn)
            if self.nodes[node].meta["val"].numel() == 1:  # a loss: who calls backward() holds what it starts from
                lives.use(node, lives.end)
        lives.run(backward, lives.turn)
        for node in self.gradients:
            lives.use(node, lives.end)
        peak, held = lives.peak()
        recomputed = sum(self.runtime[node] for node in backward if node in both)
        return Split(peak, recomputed, frozenset(held))


class _Lives:
    """The lifetimes of storages, by steps. One that is recomputed in the backward half is another one."""

    def __init__(self, joint: JointGraph, forward: int, backward: int) -> None:
        self.joint = joint
        self.turn, self.end = forward, forward + backward
        self.offset = len(joint.size)  # is added to the number of a storage that is recomputed
        self.since: dict[int, int] = {}
        self.until: dict[int, int] = {}
        self.by_node: dict[int, list[int]] = {}

    def place(self, node: int, step: int) -> None:
        """Let a node's storages be there from a step on: its inputs' where it is a view, else its own."""
        joint = self.joint
        made = joint.made[node]
        of_inputs = [storage for source in joint.inputs[node] for storage in self.by_node.get(source, ())]
        after = self.offset if step >= self.turn and joint.called[node] else 0
        numbers = []
        for storage in joint.storages[node]:
            numbers.append(
                storage + after
                if storage in made
                else next(source for source in of_inputs if source % self.offset == storage)
            )
            self.since.setdefault(numbers[-1], step)
        self.by_node[node] = numbers
        self.use(node, step)

    def use(self, node: int, step: int) -> None:
        """Let a node's storages be there in a step."""
        for storage in self.by_node.get(node, self.joint.storages[node]):
            self.until[storage] = max(self.until.get(storage, 0), step)

    def run(self, order: Sequence[int], start: int) -> None:
        """Run nodes one after the other."""
        for step, node in enumerate(order, start):
            self.place(node, step)
            for source in self.joint.inputs[node]:
                self.use(source, step)

    def peak(self) -> tuple[int, set[int]]:
        """Return the peak live bytes, and the nodes that made the storages that live then."""
        change = [0] * (self.end + 2)
        size = self.joint.size
        for storage, since in self.since.items():
            change[since] += size[storage % self.offset]
            change[self.until[storage] + 1] -= size[storage % self.offset]
        held = list(accumulate(change))
        at = max(range(len(held)), key=held.__getitem__)
        there = {storage % self.offset for storage, since in self.since.items() if since <= at <= self.until[storage]}
        return held[at], {node for node, made in enumerate(self.joint.made) if not there.isdisjoint(made)}
