"""The recorder: a dispatch mode that writes down every op of the device, over storages."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from typing import Any

from gpumem.torch.internals import torch
from gpumem.torch.step.op_mode import OpMode
from gpumem.torch.step.ops import Call, amount, results
from gpumem.torch.step.refusals import check_layout, without_values
from gpumem.torch.step.step_context import ARRIVAL, BACKWARD, OPTIMIZER, Scene, engine_references, seeds_gradients
from gpumem.torch.step.storages import NOTHING, Storages
from gpumem.torch.step.timing import Timed
from gpumem.torch.step.workload import line_of
from gpumem.trace import THE_HOST, UNKNOWN
from gpumem.trace.kinds import GRADIENT
from gpumem.trace.record.recorder import Exec, Recorder

aten = torch.ops.aten
malloc = unwrap(Recorder.malloc)  # its arguments are ours, so right
FINITE = "_amp_foreach_non_finite_check_and_unscale_.default"  # a scaler asks: are gradients not finite?
# what is asked of these is whether all is well; of others, whether it is not
TRUE = frozenset({"all", "isfinite", "_is_all_true"})


@cache
def name_of_type(dtype: torch.dtype) -> str:
    """What a column calls a type: `float32`."""
    return str(dtype).removeprefix("torch.")


@dataclass(slots=True)
class Begun:
    """An op that is about to run: the blocks that it reads and writes, the bytes that it moves, how it is written down.

    `name` is another one than the op's where it is written down in place.
    """

    call: Call
    name: str
    reads: list[int]
    writes: list[int]
    moved: int


class Watch(OpMode):
    """Records what runs under it.

    Parameters
    ----------
    device : str
        Type of the device whose memory is meant.
    scene : Scene
        Tells where in the step an op stands.
    timed : Timed, optional
        Runs the ops that are recorded, and says at the end of an iteration how long they took.
    chunk : int, optional
        Calls on lists of tensors are split into ops that touch at most so many bytes each, see `pieces`.
    as_bare : bool
        Whether a backward pass is written down as it is where nobody watches, with its sums in place, instead of as it
        is under a mode. What runs is the same.
    """

    alone = "a capture"

    def __init__(
        self,
        device: str,
        scene: Scene,
        timed: Timed | None = None,
        chunk: int | None = None,
        *,
        as_bare: bool = True,
    ) -> None:
        super().__init__(device, chunk)
        self.scene, self.timed, self.as_bare = scene, timed, as_bare
        self.recorder = Recorder()
        self.storages = Storages(self._block)
        self.recording = False
        self.maker: list[int] = []  # of each block: the op that made it, or -1
        self.roles: dict[int, tuple[str, str]] = {}  # of blocks of which more is known: kind and name
        self.phase: list[str] = []  # of each op
        self.node: dict[int, int] = {}  # of a block: the backward node whose evaluation wrote it last
        self.asked: dict[str, None] = {}  # where values were asked for that the device has not
        self.source: dict[int, str] = {}  # of a block of one value: the op that wrote it
        self.resized: list[str] = []
        self.ns: list[int] = []  # of each op, where measured
        if as_bare:
            engine_references()
        scene.on_gradients = self._gradients

    def op(self, call: Call, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op of the device and write it down; return what it returns."""
        begun = self.before(call, func, args, kwargs)
        asked = call.kind.blocks and self.device == "meta"
        result = self._answer(call.kind.name, args[0]) if asked else self._do(func, args, kwargs)
        self.after(begun, args, kwargs, result)
        return result

    def before(self, call: Call, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Begun:
        """Look at an op that is about to run."""
        self.bury()
        kind, storages = call.kind, self.storages
        check_layout(kind.name, call.operands, "takes")
        operands, writes = storages.all_of(call.operands), storages.all_of(call.written)
        reads = [*storages.all_of(call.read), *writes] if kind.overwrites else operands if kind.reads else []
        grows = self.as_bare and kind.grows and operands
        name = self.scene.in_place(func, args, kwargs, self.node.get(operands[0])) if grows else ""
        return Begun(call, name or kind.name, reads, writes, amount(call.read) + amount(call.written))

    def after(self, begun: Begun, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Write down an op that has run, and what it returned."""
        call, writes, storages = begun.call, begun.writes, self.storages
        kind, made = call.kind, results(result, self.device)
        check_layout(kind.name, made)
        if begun.name != kind.name and not storages.known(result):
            storages.succeed(args[0], result)
            writes.append(begun.reads[0])
        if call.written:
            made = [x for x in made if not any(x is y for y in call.written)]
        fresh = amount(made)
        if kind.gathers:
            begun.moved -= max(amount([args[0]]) - fresh, 0)
        begun.moved += fresh
        if kind.resizes:
            writes += self._resized(begun.name, call.written)
        begun.writes = [*storages.all_of(made), *writes]
        self._note(begun, self._flops(kind, args, kwargs, result), args)

    def _resized(self, name: str, written: Sequence[torch.Tensor]) -> list[int]:
        """The blocks of what was written, new ones where a storage has another size by now."""
        for x in written:
            if self.storages.resized(x):
                self.resized.append(name)
                self.storages.forget(x)
        return self.storages.all_of(written)

    def _do(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.device != "meta":
            return self.timed(func, args, kwargs) if self.timed and self.recording else func(*args, **kwargs)
        if func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            self._asks("a copy on the host")
            return torch.zeros_like(args[0], dtype=kwargs.get("dtype"), device="cpu")
        if func is aten.copy_.default and args[0].device.type == "cpu":
            self._asks("a copy on the host")
            return args[0].zero_()
        return without_values(func, args, kwargs, self.scene.module or "the step")

    def _answer(self, name: str, asked: torch.Tensor) -> Any:
        """Answer what would need values: nothing is known of them here, so all is well, and numbers are 0."""
        source = self.source.get(self.storages.of(asked), "")
        if source == FINITE:
            return 0.0
        self._asks(source or name)
        if name.startswith("equal") or asked.dtype == torch.bool:
            return source.partition(".")[0] in TRUE
        return 0j if asked.dtype.is_complex else 0.0 if asked.dtype.is_floating_point else 0

    def _asks(self, what: str) -> None:
        place = line_of(traceback.extract_stack())
        self.asked[f"{what} in {self.scene.module or 'the step'}" + (f", {place}" if place else "")] = None

    def _flops(self, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
        if kind.flops is None or not self.recording:
            return 0
        return int(kind.flops(*args, **kwargs, out_val=result))

    def _note(self, begun: Begun, flops: int, args: Sequence[Any]) -> None:
        here, phase, module = self.scene.here()
        name, reads, writes, moved, kind = begun.name, begun.reads, begun.writes, begun.moved, begun.call.kind
        for block in writes:
            self.node[block] = here
            if self.device == "meta" and self.storages.size[block] <= 8:
                self.source[block] = name
        if not self.recording:
            return
        if name == "ones_like.default" and seeds_gradients():
            phase = BACKWARD
        self.phase.append(phase)
        if kind.empty and phase != ARRIVAL:  # there the batch arrives in it
            moved = 0
        attributes = {"phase": phase, **{what: args[i] for i, what in kind.attributes if i < len(args)}}
        once = list(dict.fromkeys(reads)), list(dict.fromkeys(writes))
        self.recorder.append(
            Exec(name, *once, "compute", UNKNOWN, flops, moved, kind.rng, None, attributes, module, THE_HOST, False)
        )

    def _block(self, tensor: torch.Tensor, size: int) -> int:
        shape, dtype = tuple(tensor.size()), name_of_type(tensor.dtype)
        self.maker.append(len(self.phase) if self.recording else -1)
        block: int = malloc(self.recorder, size, shape=shape, dtype=dtype)
        return block

    def bury(self) -> None:
        """Let what died since the last op be freed after it."""
        dead = self.storages.dead
        while dead:
            self.recorder.free(dead.pop(0))

    def _gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            grad = parameter.grad
            if grad is None or grad.device.type != self.device or grad.layout is not torch.strided:
                continue
            if self.storages.known(grad):
                self.roles[self.storages.of(grad)] = GRADIENT, ""

    def tensor_of(self, block: int) -> tuple[int, Any, str]:
        """Bytes, shape and dtype of a block."""
        mine = self.recorder._blocks[block]
        return mine.size, mine.shape, mine.dtype

    def touched(self, name: str, storages: Iterable[torch.UntypedStorage]) -> None:
        """Record an op of no kernel that reads some storages, those of them that were seen before."""
        self.bury()
        blocks = [block for s in storages if (block := self.storages.block.get(s._cdata, NOTHING)) != NOTHING]
        self.phase.append(OPTIMIZER)
        attributes = {"phase": OPTIMIZER}
        self.recorder.append(
            Exec(name, blocks, [], "compute", UNKNOWN, 0, 0, False, None, attributes, "", THE_HOST, False)
        )

    def begin(self) -> int:
        """Begin to record an iteration; return its first op."""
        self.recording = True
        self.scene.begin()
        return len(self.phase)

    def end(self) -> int:
        """End the iteration: note what is dead, and what lasting tensors are for; return the next op."""
        self.recording = False
        if self.timed:
            self.ns += self.timed.read()
        self.bury()
        self._gradients(self.scene.parameters.values())
        for kind, name, tensor in self.scene.roles():
            if tensor.device.type == self.device and (block := self.storages.of(tensor)) != NOTHING:
                self.roles[block] = kind, name
                self.recorder._blocks[block].shape = tuple(tensor.shape)  # and not that of a view seen before
        return len(self.phase)
