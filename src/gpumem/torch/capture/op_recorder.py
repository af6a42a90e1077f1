"""The recorder: it writes down every op of the device, over storages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from itertools import count
from typing import Any, cast

from gpumem.torch.internals import no_function_modes, torch
from gpumem.torch.step.ops import Call, amount, flops_of, results
from gpumem.torch.step.refusals import check_layout
from gpumem.torch.step.signature import signature_of
from gpumem.torch.step.step_context import ARRIVAL, BACKWARD, OPTIMIZER, StepContext, engine_references, seeds_gradients
from gpumem.torch.step.storages import NOTHING, Cell, Storages
from gpumem.torch.step.timing import Timed
from gpumem.trace import THE_HOST, UNKNOWN
from gpumem.trace.kinds import GRADIENT
from gpumem.trace.record.recorder import Exec, Recorder
from gpumem.trace.signature import SIGNATURE

malloc = unwrap(Recorder.malloc)  # its arguments are ours, so right
_RECORDINGS = count(1)  # numbers, and not the recorders themselves: cells outlive them


@cache
def name_of_type(dtype: torch.dtype) -> str:
    """What a column calls a type: `float32`."""
    return str(dtype).removeprefix("torch.")


@dataclass(slots=True)
class _Begun:
    """An op that is about to run: the blocks that it reads and writes, the bytes that it moves, how it is written down.

    `name` is another one than the op's where it is written down in place. `signature` is what it is called with, before
    it changes any of that.
    """

    name: str
    reads: list[int]
    writes: list[int]
    moved: int
    signature: str


class OpRecorder:
    """Writes down every op of a device, over the blocks that storages are.

    Parameters
    ----------
    storages : Storages
        Which it numbers.
    device : str
        Type of the device whose memory is meant.
    step_context : StepContext
        Tells where in the step an op stands.
    timed : Timed, optional
        Says at the end of an iteration how long the ops took that are recorded.
    as_bare : bool
        Whether a backward pass is written down as it is where nobody watches, with its sums in place, instead of as it
        is under a mode. What runs is the same.
    """

    def __init__(
        self,
        storages: Storages,
        device: str,
        step_context: StepContext,
        timed: Timed | None = None,
        *,
        as_bare: bool = True,
    ) -> None:
        self.storages, self.device, self.step_context, self.timed, self.as_bare = (
            storages,
            device,
            step_context,
            timed,
            as_bare,
        )
        self.recorder = Recorder()
        self.number = next(_RECORDINGS)
        self.recording = False
        self.owners: list[int] = []  # of each block: how many storages are it
        self.size: list[int] = []
        self.maker: list[int] = []  # the op that made it, or -1
        self.early: list[int] = []  # blocks that were gone before the first op
        self.roles: dict[int, tuple[str, str]] = {}  # of blocks of which more is known: kind and name
        self.phase: list[str] = []  # of each op
        self.node: dict[int, int] = {}  # of a block: the backward node whose evaluation wrote it last
        self.resized: list[str] = []
        self.unknown: dict[str, None] = {}  # ops whose formula for flops fails
        self.ns: list[int] = []  # of each op, where measured
        self._begun: _Begun | None = None
        if as_bare:
            engine_references()
        step_context.on_gradients = self._mark_gradients

    # which storage is which block

    def block_of(self, tensor: torch.Tensor) -> int:
        """Return the block of a tensor's storage, a new one for one not seen before; NOTHING where it has no bytes."""
        cell = self.storages.known(tensor)
        if cell is None:
            cell = next(iter(self.storages.made(tensor)), None)
            if cell is None:
                return NOTHING
        if cell.recording != self.number:
            self._number(cell, self._malloc(tensor, cell))
        return cell.block

    def blocks_of(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """Return the blocks of tensors that have bytes."""
        return [block for tensor in tensors if (block := self.block_of(tensor)) != NOTHING]

    def _number(self, cell: Cell, block: int) -> None:
        cell.recording, cell.block = self.number, block
        self.owners[block] += 1

    def _malloc(self, tensor: torch.Tensor, cell: Cell) -> int:
        shape, dtype = tuple(tensor.size()), name_of_type(tensor.dtype)
        size = int(tensor.untyped_storage().nbytes())
        self.maker.append(len(self.phase) if self.recording else -1)
        self.owners.append(0)
        self.size.append(size)
        return cast(int, malloc(self.recorder, size, shape=shape, dtype=dtype))

    def on_reaped(self, cell: Cell) -> None:
        """A storage is no block any more; it may outlive that: others may be it as well."""
        if cell.recording == self.number and self._parted(cell):
            if not self.phase:
                self.early.append(cell.block)
            self.recorder.free(cell.block)

    def _parted(self, cell: Cell) -> bool:
        """A storage is its block no longer; return whether none is."""
        cell.recording = 0
        self.owners[cell.block] -= 1
        return not self.owners[cell.block]

    # around an op

    def before(self, call: Call) -> None:
        """Look at an op that is about to run."""
        self.storages.reap()
        kind = call.kind
        check_layout(kind.name, call.operands, "takes")
        operands, writes = self.blocks_of(call.operands), self.blocks_of(call.written)
        reads = [*self.blocks_of(call.read), *writes] if kind.overwrites else operands if kind.reads_values else []
        grows = self.as_bare and kind.sums_in_place and operands
        name = (
            self.step_context.in_place(call.func, call.args, call.kwargs, self.node.get(operands[0])) if grows else ""
        )
        called = signature_of(call.args, call.kwargs) if self.recording else ""
        self._begun = _Begun(
            name or kind.name, reads, writes, moved=amount(call.read) + amount(call.written), signature=called
        )

    def after(self, call: Call) -> None:
        """Write down an op that has run, and what it returned."""
        kind, begun, result = call.kind, self._begun, call.result
        assert begun is not None
        writes, made = begun.writes, results(result, self.device)
        check_layout(kind.name, made)
        if begun.name != kind.name and not self._seen(result):
            self._succeeds(call.args[0], result)
            writes.append(begun.reads[0])
        if call.written:
            made = [tensor for tensor in made if not any(tensor is written for written in call.written)]
        fresh = amount(made)
        if kind.gathers:
            begun.moved -= max(amount([call.args[0]]) - fresh, 0)
        begun.moved += fresh
        left = self._resized(begun.name, call.written) if kind.resizes else []
        if kind.resizes:
            writes += self.blocks_of(call.written)
        begun.writes = [*self.blocks_of(made), *writes]
        self._note(begun, call)
        for block in left:  # both were there while it ran
            self.recorder.free(block)

    def _seen(self, tensor: torch.Tensor) -> bool:
        cell = self.storages.known(tensor)
        return cell is not None and cell.recording == self.number

    def _succeeds(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Let a fresh storage be the block of an older one: a sum that is out of place only as somebody watches."""
        for cell in self.storages.made(new):
            self._number(cell, self.block_of(old))

    def _resized(self, name: str, written: Sequence[torch.Tensor]) -> list[int]:
        """Let what has another size by now be another block; return those that it was."""
        left = []
        for tensor in written:
            cell = self.storages.known(tensor)
            if cell is None or cell.recording != self.number:
                continue
            if int(tensor.untyped_storage().nbytes()) != self.size[cell.block]:
                self.resized.append(name)
                if self._parted(cell):
                    left.append(cell.block)
        return left

    def _note(self, begun: _Begun, call: Call) -> None:
        here, phase, module = self.step_context.here()
        name, reads, writes, moved, kind = begun.name, begun.reads, begun.writes, begun.moved, call.kind
        for block in writes:
            self.node[block] = here
        if not self.recording:
            return
        if name == "ones_like.default" and seeds_gradients():
            phase = BACKWARD
        if (flops := flops_of(call)) is None:
            self.unknown[call.name] = None
        self.phase.append(phase)
        if kind.leaves_uninitialised and phase != ARRIVAL:  # there the batch arrives in it
            moved = 0
        convolution = {what: call.args[i] for i, what in kind.attributes if i < len(call.args)}
        attributes = {"phase": phase, **convolution, SIGNATURE: begun.signature}
        once = list(dict.fromkeys(reads)), list(dict.fromkeys(writes))
        self.recorder.append(
            Exec(
                name, *once, "compute", UNKNOWN, flops or 0, moved, kind.rng, None, attributes, module, THE_HOST, False
            )
        )

    def _mark_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            grad = parameter.grad
            if grad is not None and grad.layout is torch.strided and self._is_here(grad) and self._seen(grad):
                self.roles[self.block_of(grad)] = GRADIENT, ""

    def _is_here(self, tensor: torch.Tensor) -> bool:
        """Whether it is on the device: truly, where a mode says that it is on a GPU."""
        with no_function_modes():
            return bool(tensor.device.type == self.device)

    def tensor_of(self, block: int) -> tuple[int, Any, str]:
        """Bytes, shape and dtype of a block."""
        own = self.recorder._blocks[block]
        return own.size, own.shape, own.dtype

    def touched(self, name: str, storages: Iterable[torch.UntypedStorage]) -> None:
        """Record an op of no kernel that reads some storages, those of them that were seen before."""
        self.storages.reap()
        cells = [cell for storage in storages if (cell := self.storages.by_key.get(storage._cdata)) is not None]
        blocks = [cell.block for cell in cells if cell.recording == self.number]
        self.phase.append(OPTIMIZER)
        self.recorder.exec(name, blocks, attributes={"phase": OPTIMIZER})

    def begin(self) -> int:
        """Begin to record an iteration; return its first op."""
        self.recording = True
        self.step_context.begin()
        return len(self.phase)

    def end(self) -> int:
        """End the iteration: note what is dead, and what lasting tensors are for; return the next op."""
        self.recording = False
        if self.timed:
            self.ns += self.timed.read()
        self.storages.reap()
        self._mark_gradients(self.step_context.parameters.values())
        for kind, name, tensor in self.step_context.roles():
            if self._is_here(tensor) and (block := self.block_of(tensor)) != NOTHING:
                self.roles[block] = kind, name
                self.recorder._blocks[block].shape = tuple(tensor.shape)  # and not that of a view seen before
        return len(self.phase)
