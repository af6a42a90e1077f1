"""The graph that `torch.compile` splits: what its halves hold and run again, whichever values are saved."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gpumem.torch.internals import flop_registry, has_storage, pytree, torch
from gpumem.torch.internals.partitioner import functorch_config, halves_of, impure, partitioner


def storages_of(node: Any) -> Iterator[tuple[int, int]]:
    """Yield a key and the bytes of each storage that a node's value has. Fake tensors share them as real ones will."""
    for x in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(x, torch.Tensor) and has_storage(x):
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
    args, kwargs = pytree.tree_map_only(torch.fx.Node, lambda x: x.meta.get("val"), (node.args, node.kwargs))
    return max(float(formula(*args, **kwargs, out_val=node.meta.get("val"))), 1.0)


@dataclass(frozen=True, slots=True)
class Split:
    """What some saved values come to: bytes held at most, runtime of what runs again, the nodes that hold the most."""

    peak: int
    again: float
    held: frozenset[int]


class JointGraph:
    """A joint graph by the positions of its nodes.

    `halves` follows `torch._functorch.partitioners`: both halves are cut out of the joint graph in its order, what
    nobody asks for goes, the backward half runs each op of the forward as late as it can, and items of a tuple are
    taken at once. `split` says which storages live when these run one after the other, each value being let go after
    its last use; parameters, inputs and results belong to the caller and stay.
    """

    def __init__(self, graph: Any, info: Any) -> None:
        nodes = [node for node in graph.nodes if node.op != "output"]
        self.nodes = nodes
        self.of = {node: i for i, node in enumerate(nodes)}
        self.inputs = [[self.of[x] for x in node.all_input_nodes] for node in nodes]
        self.called = [node.op == "call_function" for node in nodes]
        self.getitem = [node.target is operator.getitem for node in nodes]
        self.impure = [called and impure(node) for node, called in zip(nodes, self.called)]
        halves = [halves_of(node) for node in nodes]
        self.only_forward, self.only_backward = ([half[k] for half in halves] for k in (0, 1))
        self.arguments = [self.of[node] for node in info.inputs]
        self.tangents = [i for i, node in enumerate(nodes) if node.op == "placeholder" and "tangents" in node.target]
        self._storages(nodes)
        self._returned(graph)
        self.runtime = [
            runtime_of(node) if called and self.made[i] and info.is_required_fw(node) else 0.0
            for i, (node, called) in enumerate(zip(nodes, self.called))
        ]

    def _storages(self, nodes: Sequence[Any]) -> None:
        """Number the storages; `made` are those of a node that none of its inputs has: the others are views."""
        numbers: dict[Any, int] = {}
        self.size: list[int] = []
        self.storages: list[list[int]] = []
        for node in nodes:
            found = []
            for key, size in storages_of(node):
                if key not in numbers:
                    numbers[key] = len(self.size)
                    self.size.append(size)
                found.append(numbers[key])
            self.storages.append(found)
        self.made = [
            [s for s in found if not any(s in self.storages[x] for x in self.inputs[i])]
            for i, found in enumerate(self.storages)
        ]

    def _returned(self, graph: Any) -> None:
        """Tell what the halves return (the backward one gradients), and which arguments are overwritten.

        What an argument becomes is returned, and copied into it after the forward half, or the forward half does so.
        """
        output = next(iter(graph.find_nodes(op="output")))
        returned = pytree.arg_tree_leaves(*output.args)
        told = output.meta.get("desc") or [None] * len(returned)
        kinds = [type(d).__name__ for d in told]
        first = kinds.index("GradAOTOutput") if "GradAOTOutput" in kinds else len(returned) - len(self.arguments)
        outputs = [(self.of[x], d) for x, d in zip(returned[:first], told) if isinstance(x, torch.fx.Node)]
        changes = [getattr(d, "mutated_input", None) for _, d in outputs]
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
        backward = [i for i in needed if i not in given]
        used = sorted({x for i in backward for x in self.inputs[i]} & given | given.intersection(self.gradients))
        saved = [i for i in used if i not in self.tangents]
        start = set(self.arguments)
        possible = self._possible(start, self.only_backward)
        forward = [i for i in self._needed([*self.outputs, *saved], start, possible, self.impure) if i not in start]
        return self._items_first(forward), self._items_first(self._late(backward)), saved

    def _possible(self, given: set[int], not_here: Sequence[bool]) -> list[bool]:
        """Whether each node can be had from the given ones."""
        possible: list[bool] = []
        for i, inputs in enumerate(self.inputs):
            runs = not not_here[i] and (self.called[i] or self.nodes[i].op == "get_attr")
            possible.append(i in given or (runs and all(possible[x] for x in inputs)))
        return possible

    def _needed(self, of: Iterable[int], given: set[int], possible: list[bool], impure: Sequence[bool]) -> list[int]:
        """Return what some nodes need, in order."""
        stack = [*of, *(i for i, keep in enumerate(impure) if keep and possible[i])]
        seen: set[int] = set()
        while stack:
            i = stack.pop()
            if i not in seen:
                seen.add(i)
                if i not in given:
                    stack.extend(self.inputs[i])
        return sorted(seen)

    def _late(self, backward: list[int]) -> list[int]:
        """Order the backward half as PyTorch does: what stands before the first use of a tangent runs when needed."""
        tangents = set(self.tangents)
        first = next((k for k, i in enumerate(backward) if not tangents.isdisjoint(self.inputs[i])), None)
        if first is None:
            return backward
        inside, done, order = set(backward), set[int](), list[int]()
        copies = [i for i in backward[:first] if self.nodes[i].target is torch.ops.aten.copy_.default]
        for i in [*copies, *backward[first:]]:
            stack, batch = [i], set[int]()
            while stack:
                x = stack.pop()
                if x in inside and x not in done and x not in batch:
                    batch.add(x)
                    stack.extend(self.inputs[x])
            done |= batch
            order.extend(sorted(batch))
        return order

    def _items_first(self, order: list[int]) -> list[int]:
        """Take items of tuples right where the tuple is made."""
        items: dict[int, list[int]] = {}
        inside = set(order)
        for i in order:
            if self.getitem[i] and self.inputs[i][0] in inside:
                items.setdefault(self.inputs[i][0], []).append(i)
        taken = {i for of in items.values() for i in of}
        return [y for x in order if x not in taken for y in self._with_items(x, items)]

    def _with_items(self, node: int, items: dict[int, list[int]]) -> list[int]:
        return [node, *(y for x in items.get(node, ()) for y in self._with_items(x, items))]

    def split(self, saved: Iterable[int]) -> Split | None:
        """Say what a step holds at most, and what it runs again, with these values saved. O(nodes + edges).

        None where the backward half would read what the forward half overwrites.
        """
        forward, backward, saved = self.halves(saved)
        if any(not self.overwritten.isdisjoint(self.storages[i]) for i in saved):
            return None
        both = set(forward)
        lives = _Lives(self, len(forward), len(backward))
        for i in [*self.arguments, *self.lasting]:
            lives.use(i, lives.end)
        for i in self.outputs:
            lives.use(i, lives.turn)
        for i in self.arguments:
            lives.place(i, 0)
        lives.run(forward, 0)
        for i in saved:
            lives.use(i, lives.turn)
        for i in self.tangents:
            lives.place(i, lives.turn)
            if self.nodes[i].meta["val"].numel() == 1:  # a loss: who calls backward() holds what it starts from
                lives.use(i, lives.end)
        lives.run(backward, lives.turn)
        for i in self.gradients:
            lives.use(i, lives.end)
        peak, held = lives.peak()
        again = sum(self.runtime[i] for i in backward if i in both)
        return Split(peak, again, frozenset(held))


class _Lives:
    """Since when and until when each storage is held. One that is made again in the backward half is another one."""

    def __init__(self, joint: JointGraph, forward: int, backward: int) -> None:
        self.joint = joint
        self.turn, self.end = forward, forward + backward
        self.again = len(joint.size)  # is added to the number of what is made again
        self.since: dict[int, int] = {}
        self.until: dict[int, int] = {}
        self.by_node: dict[int, list[int]] = {}

    def place(self, node: int, step: int) -> None:
        """Let a node's storages be there from a step on: its inputs' where it is a view, else its own."""
        joint = self.joint
        made = joint.made[node]
        of_inputs = [s for x in joint.inputs[node] for s in self.by_node.get(x, ())]
        after = self.again if step >= self.turn and joint.called[node] else 0
        mine = []
        for s in joint.storages[node]:
            mine.append(s + after if s in made else next(x for x in of_inputs if x % self.again == s))
            self.since.setdefault(mine[-1], step)
        self.by_node[node] = mine
        self.use(node, step)

    def use(self, node: int, step: int) -> None:
        """Let a node's storages be there in a step."""
        for s in self.by_node.get(node, self.joint.storages[node]):
            self.until[s] = max(self.until.get(s, 0), step)

    def run(self, order: Sequence[int], start: int) -> None:
        """Run nodes one after the other."""
        for step, i in enumerate(order, start):
            self.place(i, step)
            for x in self.joint.inputs[i]:
                self.use(x, step)

    def peak(self) -> tuple[int, set[int]]:
        """Return the bytes held at most, and the nodes that made what is held then."""
        change = [0] * (self.end + 2)
        size = self.joint.size
        for s, since in self.since.items():
            change[since] += size[s % self.again]
            change[self.until[s] + 1] -= size[s % self.again]
        held = list(accumulate(change))
        at = max(range(len(held)), key=held.__getitem__)
        there = {s % self.again for s, since in self.since.items() if since <= at <= self.until[s]}
        return held[at], {i for i, made in enumerate(self.joint.made) if not there.isdisjoint(made)}
