"""Recomputation: ops are recorded as they are called, and called a second time to make bytes that were dropped.

`record_call` writes down a call that is about to run; with what it touched that is a `RecordedCall`. A `StorageRecipe`
has the calls, in order, that recompute the bytes of one storage; while it stands, what they read is kept as it was.
`recompute_values` calls them. Two ask for that: `RecomputingFollower` where a plan says so, and `recompute_cell` where
an op finds that the bytes of an operand were dropped.

Values are a plan's (`swap.plan.replay.Value`: a buffer, and which of its versions); cells are the storages that they
have in this iteration, `RecordedCall.cells` leads from one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from gpumem.runtime.residency.follower import LOST, Follower
from gpumem.runtime.residency.hints import Hints, keys_of
from gpumem.runtime.residency.limited_memory import DEVICE, RECIPE
from gpumem.swap.plan.replay import ON_DEVICE, RecomputedOp, Replay, Value
from gpumem.torch.internals import hidden_from_modes, storage_without_memory, torch
from gpumem.torch.run.memory import Memory
from gpumem.torch.step.ops import (
    RUNNING,
    TRAINING,
    WRITTEN_AS,
    Call,
    kind_of,
    mapped,
    out_of_place,
    results,
    tensors,
)
from gpumem.torch.step.storages import Cell

# Bytes up to which a tensor on the host, as a counter, is copied into the recorded call: not tuned.
SMALL = 4096


class NotRepeatable(Exception):
    """A call that cannot be repeated as it was."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor among the arguments of a recorded call: a view of a cell's storage, by its geometry alone.

    For recomputation it is made over whichever storage has the bytes then, or over one without memory where the call
    reads its shape only.
    """

    cell: Cell
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    def on(self, storage: torch.UntypedStorage | None) -> torch.Tensor:
        """Return the view of a storage."""
        if storage is None:
            storage = storage_without_memory(self.cell.size, self.device)
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that can be repeated.

    Parameters
    ----------
    func : OpOverload
    args, kwargs
        Its arguments, with an `_Operand` in the place of each tensor of the device.
    state, generator
        What it drew random numbers from, and its state before; None of an op that draws none.
    gradients : bool
        Whether gradients were enabled.
    versions : dict of Cell to int
        Of its operands, when it was called.
    sources : list of Cell
        What a recomputation reads, each once: a batch norm's running statistics, say, are none.
    cells : mapping of int to Cell
        The cells that it touched by buffer: operands, then results.
    fresh : int
        Bytes of its results.
    ns : int
        How long it takes, where somebody asks.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: Any
    generator: Any
    gradients: bool
    versions: dict[Cell, int]
    sources: list[Cell]
    cells: Mapping[int, Cell]
    fresh: int
    ns: int = 0

    def run(self, storages: Mapping[Cell, torch.UntypedStorage]) -> Any:
        """Call it on the storages that stand in for those of its cells; return what it returns."""

        def tensor_of(value: Any) -> Any:
            return value.on(storages.get(value.cell)) if isinstance(value, _Operand) else value

        args = mapped(self.args, tensor_of)
        kwargs = {name: mapped(value, tensor_of) for name, value in self.kwargs.items()}
        if self.state is None:
            return self.func(*args, **kwargs)
        before = self.generator.get_state()
        self.generator.set_state(self.state)
        try:
            return self.func(*args, **kwargs)
        finally:
            self.generator.set_state(before)


class PendingCall(Protocol):
    """A recorded call that is still to run."""

    def __call__(self, *, cells: Mapping[int, Cell], fresh: int, ns: int = 0) -> RecordedCall:
        """Complete it by what it touched, the bytes that it made, and how long it takes, once it has run."""


def record_call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], memory: Memory) -> PendingCall:
    """Write down a call that is about to run.

    Raises
    ------
    NotRepeatable
        It has tensors that may change unseen, or does more than its schema says, as a user's own op may.
    """
    kind = kind_of(func)
    if not kind.repeatable:
        raise NotRepeatable(f"{func} may do something else when it is called a second time")
    operands = memory.of(tensors((*args, *kwargs.values()), memory.device))
    versions = {cell: cell.version for cell in operands}
    if kind.updates_statistics and args[TRAINING]:
        # A recomputation must not update running statistics a second time, so it runs without them.
        args = [None if position in RUNNING else value for position, value in enumerate(args)]
        operands = memory.of(tensors((*args, *kwargs.values()), memory.device))
    recorded = partial(_recorded_argument, memory=memory)
    generator = _generator(args, kwargs, memory.device) if kind.rng else None
    return partial(
        RecordedCall,
        func=func,
        args=mapped(tuple(args), recorded),
        kwargs={name: mapped(value, recorded) for name, value in kwargs.items()},
        state=None if generator is None else generator.get_state(),
        generator=generator,
        gradients=torch.is_grad_enabled(),
        versions=versions,
        sources=operands if kind.reads_values else [],
    )


def _generator(args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> Any:
    """The generator that a call draws from: its argument, else the device's."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
    if given:
        return given[0]
    return torch.cuda.default_generators[torch.cuda.current_device()] if device == "cuda" else torch.default_generator


def _recorded_argument(value: Any, memory: Memory) -> Any:
    """What stands for an argument in a recorded call."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        raise NotRepeatable(f"a tensor of layout {value.layout}")
    cell = memory.known(value) if memory.manages(value) else None
    if cell is not None:
        return _Operand(
            cell,
            size=tuple(value.size()),
            stride=value.stride(),
            offset=value.storage_offset(),
            dtype=value.dtype,
            device=value.device,
        )
    if value.nbytes > SMALL:
        raise NotRepeatable(f"a tensor of {value.nbytes} bytes off the device")
    return value.clone()


class StorageRecipe:
    """How the bytes of one cell, which has none now, are recomputed: recorded calls, in order.

    While it stands, the storages that these calls read are kept alive, and whoever is about to write one of them
    recomputes the cell first (its `dependents`). It `needs` so many bytes on the device at once, even
    where all else is evicted.
    """

    def __init__(self, cell: Cell, steps: Replay, calls: Mapping[int, RecordedCall]) -> None:
        self.cell, self.steps = cell, steps
        self.calls: dict[int, RecordedCall] = {}  # by op; the recordings of this iteration
        self.sources: dict[Cell, torch.UntypedStorage] = {}
        for step in steps.recomputed_ops:
            call = calls.get(step.op)
            if call is None:
                raise NotRepeatable(f"op {step.op} was not recorded")
            self.calls[step.op] = call
            for value in step.reads:
                if value.whole == ON_DEVICE:
                    self._add_source(step, call, call.cells[value.buffer])
        self.needs = self._needs()
        for source in self.sources:
            source.dependents = [*source.dependents, cell]

    def _add_source(self, step: RecomputedOp, call: RecordedCall, source: Cell) -> None:
        """Keep the storage of a cell that a call reads; NotRepeatable where it has other bytes by now, or may have."""
        storage = source.storage
        if storage is None or source is self.cell or source.version != call.versions.get(source, -1):
            raise NotRepeatable(f"what op {step.op} read has been freed or written")
        if source.pinned:
            raise NotRepeatable(f"what op {step.op} read has an address that somebody may write to unseen")
        self.sources[source] = storage

    def _needs(self) -> int:
        """The most bytes that one of the calls holds: values recomputed before it, its sources, its results."""
        needs, scratch = 0, dict[Value, int]()
        for position, step in enumerate(self.steps.recomputed_ops):
            call = self.calls[step.op]
            sources = {call.cells[value.buffer] for value in step.reads if value.whole == ON_DEVICE}
            needs = max(needs, sum(scratch.values()) + sum(cell.size for cell in sources) + call.fresh)
            scratch |= {value: call.cells[value.buffer].size for value in step.writes}
            scratch = {
                value: size
                for value, size in scratch.items()
                if self.steps.spans[value].touch > position or value in self.steps.wanted
            }
        return needs

    def done(self) -> None:
        """Give it up: its cell has bytes, or is dead."""
        for source in self.sources:
            source.dependents = [cell for cell in source.dependents if cell is not self.cell]
        self.sources = {}
        self.cell.recipe = None


class _Scratch:
    """Recomputed values whose storages no cell has as yet; their bytes count against the limit all the same."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.storages: dict[Value, torch.UntypedStorage] = {}

    def put(self, value: Value, storage: torch.UntypedStorage) -> None:
        """Take in a value."""
        self.storages[value] = storage
        self.memory.charge(storage.nbytes())

    def take(self, value: Value) -> torch.UntypedStorage:
        """Give a value's storage out: to a cell, or to be freed."""
        storage = self.storages.pop(value)
        self.memory.charge(-storage.nbytes())
        return storage


def recompute_values(
    memory: Memory, steps: Replay, calls: Mapping[int, RecordedCall], wanted: Mapping[Value, Cell]
) -> None:
    """Call the recorded ops of a replay, in order; the wanted values become the bytes of their cells."""
    scratch = _Scratch(memory)
    try:
        for position, step in enumerate(steps.recomputed_ops):
            _recompute_op(memory, step, calls[step.op], scratch)
            # After its last use a value is freed at once, as `StorageRecipe.needs` counts on that.
            for value in [value for value in scratch.storages if steps.spans[value].touch == position]:
                if value not in wanted:
                    scratch.take(value)
        for value, cell in wanted.items():
            storage = cell.storage
            if storage is not None and cell.where is not DEVICE:
                memory.pointers.adopt(storage, scratch.take(value))
                memory.landed(cell)
    finally:
        memory.charge(-sum(storage.nbytes() for storage in scratch.storages.values()))


def _recompute_op(memory: Memory, step: RecomputedOp, call: RecordedCall, scratch: _Scratch) -> None:
    """Call one op a second time, on what it read: sources on the device, and values recomputed before it."""
    sources = [call.cells[value.buffer] for value in step.reads if value.whole == ON_DEVICE]
    memory.recomputing = True  # evict to the host only: a policy could drop what this recomputation made or reads
    try:
        memory.ensure_resident(sources, call.fresh, f"{call.func}, recomputed,")
    finally:
        memory.recomputing = False
    inputs = {}
    for value in step.reads:
        cell = call.cells[value.buffer]
        storage = cell.storage if value.whole == ON_DEVICE else scratch.storages[value]
        assert storage is not None  # its recipe keeps what it reads
        inputs[cell] = storage
    tensors_made = results(_run(memory, call, inputs, sources), memory.device)
    fresh = _new_storages(tensors_made, {storage._cdata for storage in inputs.values()})
    values = {value.buffer: value for value in step.writes}
    made = [buffer for buffer, cell in call.cells.items() if cell not in call.versions]  # its results, not operands
    for buffer, storage in zip(made, fresh):
        if buffer in values:  # nobody reads the other results: they are freed at once
            scratch.put(values[buffer], storage)
    memory.counts.recomputed += 1


def _run(memory: Memory, call: RecordedCall, inputs: Mapping[Cell, torch.UntypedStorage], keep: Sequence[Cell]) -> Any:
    """Repeat a call; where the device has no memory left for it, once more for each storage that could be evicted.

    A call that writes its operands may have done so in part before it failed, and is not tried twice.
    """
    while True:
        try:
            with hidden_from_modes(call.gradients):
                return call.run(inputs)
        except memory.no_memory:
            if kind_of(call.func).written_positions or not memory.evict_one(keep):
                raise


def _new_storages(tensors_made: Sequence[torch.Tensor], known: set[int]) -> list[torch.UntypedStorage]:
    """The storages of tensors that are not known already, each once, in order."""
    fresh: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors_made:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage._cdata not in known:
            fresh.setdefault(storage._cdata, storage)
    return [*fresh.values()]


class RecomputingFollower(Follower[Cell]):
    """A follower of plans that recompute values: `calls` are the recorded ones of this iteration, by op."""

    memory: Memory

    def __init__(self, memory: Memory, hints: Hints) -> None:
        self.calls: dict[int, RecordedCall] = {}
        self._pending: PendingCall | None = None  # of the op that runs now
        ops = hints.trace.ops
        as_run = replace(hints.trace, ops=replace(ops, name=tuple(map(out_of_place, ops.name))))
        hints.keys = keys_of(as_run)[0]  # a capture may have written down another form of an op than the one that runs
        super().__init__(memory, hints)
        rows = zip(ops.name, ops.reads.tolist(), ops.writes.tolist())
        # Of each op: whether the capture has it in place, while under a mode it may run out of place.
        self.in_place = [name in WRITTEN_AS and {*writes} <= {*reads} for name, reads, writes in rows]

    def before(self, call: Call) -> int:  # type: ignore[override]  # who follows a step passes its calls
        """Do what is due before an op, and record the call if the plan may recompute it."""
        index = super().before(call)
        self._pending = None
        if index == LOST:
            return index
        due = self.at[index]
        # a call out of place is not the planned one, whose result has another buffer
        if due is not None and due.keep and not self._runs_out_of_place(index, call):
            with suppress(NotRepeatable):
                self._pending = record_call(call.func, call.args, call.kwargs, self.memory)
        return index

    def _runs_out_of_place(self, index: int, call: Call) -> bool:
        """Whether an op that is planned in place runs out of place."""
        return self.in_place[index] and not call.written

    def expected(self, index: int, call: Call) -> int:
        """The bytes that op `index` of the plan will make."""
        return self.hints.fresh[index] + (call.reads[0].size if self._runs_out_of_place(index, call) else 0)

    def after(self, call: Call) -> bool:  # type: ignore[override]
        """Do what is due after the op; the recorded calls end with the iteration."""
        index, pending = self.position, self._pending
        if index != LOST:
            if pending is not None and len(buffers := self.hints.rows[index]) == len(call.touched):
                self.calls[index] = pending(cells=dict(zip(buffers, call.touched)), fresh=self.hints.fresh[index])
            if self.in_place[index] and not call.writes and len(call.touched) > 1:
                # out of place: the result is the plan's first operand from here on
                call.touched = [call.touched[-1], *call.touched[1:-1]]
        ended = super().after(call)
        if ended:
            self.calls = {}
        return ended

    def restart(self) -> None:
        """Stand before the first op."""
        super().restart()
        self.calls = {}

    def _drop(self, k: int, cell: Cell) -> None:
        """Drop bytes that can be recomputed; where they cannot, they stay.

        Where recomputing them would hold more than the limit, as it may where a step leaves the plan, they go to the
        host instead.
        """
        if cell.pinned or cell.storage is None:
            return
        if cell.copy is None:
            try:
                recipe = StorageRecipe(cell, self.hints.alone[k], self.calls)
            except NotRepeatable:
                return
            if recipe.needs + self.memory.pinned <= self.memory.limit:
                self.memory.drop(cell, recipe)
                return
            recipe.done()
        self.memory.release(cell)

    def _recompute(self, replay: Replay, ks: list[int]) -> None:
        """Recompute all values that are due before an op, together.

        One that was dropped before this plan was followed comes back by its own recipe.
        """
        wanted = {}
        by_buffer = {self.hints.buffer(k): (self.bound[k], self.hints.alone.get(k)) for k in ks}
        for value in replay.wanted:
            cell, alone = by_buffer[value.buffer]
            if cell is None or cell.recipe is None or cell.storage is None:
                continue
            if cell.recipe.steps is alone:
                wanted[value] = cell
            else:  # its recipe is another plan's: nothing keeps what this plan's calls would read
                self.memory.bring(cell)
        if len(wanted) == len(replay.wanted) and all(step.op in self.calls for step in replay.recomputed_ops):
            recompute_values(self.memory, replay, self.calls, wanted)
        else:
            for cell in wanted.values():
                self.memory.bring(cell)


def recompute_cell(memory: Memory, cell: Cell) -> None:
    """Recompute a cell's bytes by its own recipe, and before it what that reads, one cell at a time.

    A stack and no recursion: chains of recipes may be as long as the program. O(sources of all recipes on the way).
    """
    stack = [cell]
    while stack:
        recipe: StorageRecipe | None = stack[-1].recipe
        if recipe is None or stack[-1].where is not RECIPE:  # recomputed meanwhile, for another
            stack.pop()
        elif missing := [source for source in recipe.sources if source.where is RECIPE]:
            stack += missing
        else:
            (value,) = recipe.steps.wanted
            recompute_values(memory, recipe.steps, recipe.calls, {value: stack.pop()})
