"""The step context: phase, module and backward node of the op that runs now, and the roles of lasting tensors."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from itertools import chain, count, islice
from traceback import walk_stack
from typing import Any
from unittest.mock import patch

from gpumem.runtime.residency.observing import forgets
from gpumem.torch.internals import (
    FIRST_GRADIENTS,
    BackwardCFunction,
    TorchDispatchMode,
    WeakIdKeyDictionary,
    backward_node,
    graph_task,
    next_sequence_number,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
    storage_references,
    torch,
    unwrapped,
)
from gpumem.torch.step.ops import IN_PLACE
from gpumem.torch.step.refusals import check_module
from gpumem.trace.kinds import OPT_STATE, PARAM, STATISTICS

ARRIVAL, FORWARD, BACKWARD, AGAIN, OPTIMIZER = "input", "forward", "backward", "recompute", "optimizer"
NONE = -1  # the number of no backward node
# Frames, at most, from an op up to the function that calls it, the modes' own included: not tuned.
FRAMES = 9
aten = torch.ops.aten


class StepContext:
    """Follows a step by the global hooks of modules and optimizers.

    All references are weak: modules and tensors that a step builds and drops die as they would without it.
    """

    def __init__(self) -> None:
        self.models: Any = weakref.WeakValueDictionary()  # by the prefix of their modules' names
        self.names: Any = WeakIdKeyDictionary()  # of modules
        self.owners: Any = WeakIdKeyDictionary()  # of parameters: the module
        self.parameters: Any = weakref.WeakValueDictionary()  # by name
        self.buffers: Any = weakref.WeakValueDictionary()
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.by_node: dict[int, str] = {}  # modules of forward ops, by the sequence numbers of their backward nodes
        self.stack: list[str] = []  # modules whose forward passes have begun and not ended
        self.entered = self.returned = self.optimizing = False
        self.on_gradients: Callable[[Iterable[torch.Tensor]], None] = lambda parameters: None
        # called with the tensors of a model that was not seen before
        self.on_model: Callable[[Iterable[torch.Tensor]], None] = lambda tensors: None

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Register the hooks while a step runs."""
        with (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._optimize),
            register_optimizer_step_post_hook(self._optimized),
        ):
            yield

    def begin(self) -> None:
        """Start an iteration."""
        self.stack, self.entered, self.returned, self.optimizing = [], False, False, False
        self.by_node.clear()

    @property
    def module(self) -> str:
        """The module whose forward pass is under way."""
        return self.stack[-1] if self.stack else ""

    @property
    def node(self) -> int:
        """The number of the backward node that is evaluated; -1 outside of a backward pass."""
        if graph_task() < 0:
            return NONE
        node = backward_node()
        return NONE if node is None else int(node._sequence_nr())

    def here(self) -> tuple[int, str, str]:
        """Return the backward node, phase and module of the op that runs now; call it with every op, as it notes both
        that a backward pass has begun and which module the next backward node is of.

        The module of a backward op is that of the forward op whose gradient it computes.
        """
        if graph_task() < 0:
            return NONE, self._before_or_after(), self._forward()
        self.returned = True
        phase = OPTIMIZER if self.optimizing else AGAIN if torch.is_grad_enabled() else BACKWARD
        node = backward_node()
        if node is None:
            return NONE, phase, self._forward() if self.stack else ""
        number = node._sequence_nr()
        if self.stack:
            return number, phase, self._forward()
        if node.name() == "torch::autograd::AccumulateGrad":
            return number, phase, self.owners.get(node.variable, "")
        return number, phase, self.by_node.get(number, "")

    def _before_or_after(self) -> str:
        """The phase of an op outside of backward passes."""
        if self.optimizing or (self.returned and not self.stack and not torch.is_grad_enabled()):
            return OPTIMIZER  # also what is done to gradients before the step, as clipping
        return FORWARD if self.entered else ARRIVAL

    def _forward(self) -> str:
        """Return the module whose forward pass runs; note that the newest backward node (made before its op) is its."""
        module = self.stack[-1] if self.stack else ""
        if not self.optimizing:
            self.by_node.setdefault(next_sequence_number() - 1, module)
        return module

    def roles(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """The roles of models' and optimizers' tensors: kind, name, tensor."""
        called = {id(tensor): name for name, tensor in self.parameters.items()}
        for name, tensor in self.buffers.items():
            yield STATISTICS, name, tensor
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                held = state.items() if isinstance(state, Mapping) else ()  # some optimizers keep a plain counter there
                for what, value in held:
                    if isinstance(value, torch.Tensor):
                        yield OPT_STATE, f"{called.get(id(parameter), 'parameter')}.{what}", value
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    called.setdefault(id(parameter), "")
                    yield PARAM, called[id(parameter)], parameter
        for name, tensor in self.parameters.items():
            yield PARAM, name, tensor

    def in_place(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], last: int | None) -> str:
        """The op in place that a backward pass would run instead of this one if no mode were on; "" where it is this.

        A guess, for a recording only: what runs is what was asked for. `last` is the node that wrote the first operand
        last.
        """
        current, adds = self.node, func is aten.add.Tensor
        if NONE in (current, last) or last is None or (torch.is_grad_enabled() and (adds or self.stack)):
            return ""
        node = backward_node()
        if adds:
            return "add_.Tensor" if (last != current or _meets_itself(node)) and _adds_up(args, kwargs) else ""
        name = IN_PLACE[func.overloadpacket]
        same = last == current and not isinstance(node, BackwardCFunction) and name.endswith(f".{func._overloadname}")
        return name if same else ""

    @forgets
    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        outermost = not self.stack
        self.stack.append(type(module).__name__)  # first: `_leave` pops it whatever fails below
        if outermost:
            self.entered = True
            if module not in self.names:
                self._meet(module)
        self.stack[-1] = self.names.get(module, self.stack[-1])

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        if self.stack:
            self.stack.pop()

    def _meet(self, root: torch.nn.Module) -> None:
        """Learn the names in a model that was not seen before."""
        begin = self._begin(root)
        for name, module in root.named_modules():
            check_module(name, module)
            full = self.names.setdefault(module, ".".join(filter(None, (begin, name))))
            for parameter in module.parameters(recurse=False):
                self.owners.setdefault(parameter, full)
        for table, named in ((self.parameters, root.named_parameters()), (self.buffers, root.named_buffers())):
            for name, tensor in named:
                table.setdefault(".".join(filter(None, (begin, name))), unwrapped(tensor))
        self.on_model(
            unwrapped(seen) for seen in chain(root.parameters(), root.buffers()) if not torch.nn.parameter.is_lazy(seen)
        )

    def _begin(self, root: torch.nn.Module) -> str:
        """The prefix of a model's names: none for the first with parameters; else its class, numbered if taken."""
        called = type(root).__name__
        names = [""] * any(True for _ in root.parameters()) + [called]
        begin = next(
            name for name in chain(names, (f"{called}_{number}" for number in count(2))) if name not in self.models
        )
        self.models[begin] = root
        return begin

    @forgets
    def _optimize(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        self.on_gradients(parameter for group in optimizer.param_groups for parameter in group["params"])
        self.optimizing = True
        self.optimizers.add(optimizer)
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._closure(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._closure(kwargs["closure"])}
        return None

    def _closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap an optimizer's closure, which computes the loss: forward and backward passes, no optimizer phase."""

        @wraps(closure)
        def called() -> Any:
            with patch.object(self, "optimizing", False):
                return closure()

        return called

    def _optimized(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.optimizing = False


def seeds_gradients() -> bool:
    """Whether the op that runs now makes the first gradient of `backward`, of ones."""
    return any(frame.f_code.co_name == FIRST_GRADIENTS for frame, _ in islice(walk_stack(sys._getframe(1)), FRAMES))


def _adds_up(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this addition is the engine's, of two gradients.

    Then the engine has the only references to the first one: as many as `engine_references` has measured.
    """
    old, new = args
    if kwargs.get("alpha", 1) != 1 or not isinstance(new, torch.Tensor):
        return False
    if old.shape != new.shape or old.dtype != new.dtype or not aten.is_non_overlapping_and_dense(old):
        return False
    return references(old) == engine_references()


def _meets_itself(node: Any) -> bool:
    """Whether two of the gradients that a node makes go to the same next node, as those of `x * x`."""
    following = [edge for edge in node.next_functions if edge[0] is not None]
    return len(set(following)) < len(following)


def references(tensor: torch.Tensor) -> tuple[int, int]:
    """The reference counts of a tensor and of its storage, this function's included."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), storage_references(storage._cdata)


@cache
def engine_references() -> tuple[int, int]:
    """The reference counts of a gradient that only the engine holds, as it adds another one to it under a mode.

    Measured, once, as it depends on PyTorch's version: the gradient of `leaf` in `2 leaf + 3 leaf`.
    """
    counts = []

    class Ask(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is aten.add.Tensor:
                counts.append(references(args[0]))
            return func(*args, **(kwargs or {}))

    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(2, requires_grad=True)
        total = (leaf * 2).sum() + (leaf * 3).sum()
    with Ask():
        total.backward()
    return counts[-1]
