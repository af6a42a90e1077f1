"""Calls that run again: what was called, on what, and how a storage's bytes are made once more from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from gpumem.runtime.residency.follower import LOST, Follower
from gpumem.runtime.residency.hints import Hints, keys_of
from gpumem.runtime.residency.limited_memory import DEVICE, RECIPE
from gpumem.swap.plan.replay import ON_DEVICE, Replay, Rerun, Value
from gpumem.torch.internals import storage_without_memory, hidden_from_modes, torch
from gpumem.torch.run.memory import Memory
from gpumem.torch.step.ops import (
    BATCH_NORMS,
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

SMALL = 4096  # bytes: tensors elsewhere, as counters on the host, are kept up to this size


class NotRepeatable(Exception):
    """A call that cannot be repeated as it was."""


@dataclass(frozen=True, slots=True)
class _Argument:
    """A tensor of a call: a view of a storage, which has another one's bytes when it runs again.

    Where the call looks at no more than its shape, it has no bytes at all.
    """

    cell: Cell
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    def on(self, storage: torch.UntypedStorage | None) -> torch.Tensor:
        """Make the tensor anew."""
        if storage is None:
            storage = storage_without_memory(self.cell.size, self.device)
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)


@dataclass(frozen=True, slots=True)
class Kept:
    """A call as it was: its arguments, what it drew, the cells that it touched (operands, then results) by buffer."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: Any
    generator: Any
    gradients: bool  # whether they were enabled
    versions: dict[Cell, int]  # of its operands, when it was called
    sources: list[Cell]  # what it reads when it runs again, each once: batch norm's statistics, say, are none
    cells: Mapping[int, Cell]
    fresh: int  # bytes of its results
    ns: int = 0  # what it takes, where somebody wants to know

    def run(self, where: Mapping[Cell, torch.UntypedStorage]) -> Any:
        """Run again on the storages that stand in for those it had; return what it returns."""

        def placed(x: Any) -> Any:
            return x.on(where.get(x.cell)) if isinstance(x, _Argument) else x

        args, kwargs = mapped(self.args, placed), {name: mapped(x, placed) for name, x in self.kwargs.items()}
        if self.state is None:
            return self.func(*args, **kwargs)
        before = self.generator.get_state()
        self.generator.set_state(self.state)
        try:
            return self.func(*args, **kwargs)
        finally:
            self.generator.set_state(before)


class PendingCall(Protocol):
    """A call that is under way: it is told the cells touched, the bytes made, and what it takes in ns, after that."""

    def __call__(self, cells: Mapping[int, Cell], fresh: int, ns: int = 0) -> Kept:
        """Return the call as it was."""


def keep(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], memory: Memory) -> PendingCall:
    """Write down a call that is about to be made.

    Raises
    ------
    NotRepeatable
        It has tensors that may change unseen, or does more than its schema says, as an op of somebody's own may.
    """
    kind = kind_of(func)
    if not kind.again:
        raise NotRepeatable(f"{func} may do something else when it is called again")
    operands = memory.of(tensors((*args, *kwargs.values()), memory.device))
    versions = {cell: cell.version for cell in operands}
    if kind.name.partition(".")[0] in {name.removeprefix("aten::") for name in BATCH_NORMS} and args[TRAINING]:
        args = [None if k in RUNNING else x for k, x in enumerate(args)]  # statistics are taken once
        operands = memory.of(tensors((*args, *kwargs.values()), memory.device))
    of = partial(_kept, memory=memory)
    kept = mapped(tuple(args), of), {name: mapped(x, of) for name, x in kwargs.items()}
    generator = _generator(args, kwargs, memory.device) if kind.rng else None
    state = None if generator is None else generator.get_state()
    begun = (func, *kept, state, generator, torch.is_grad_enabled(), versions, operands if kind.reads else [])
    return lambda cells, fresh, ns=0: Kept(*begun, cells, fresh, ns)


def _generator(args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> Any:
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Generator)]
    if given:
        return given[0]
    return torch.cuda.default_generators[torch.cuda.current_device()] if device == "cuda" else torch.default_generator


def _kept(x: Any, memory: Memory) -> Any:
    if isinstance(x, torch.Tensor):
        if x.layout is not torch.strided or x.is_conj() or x.is_neg():
            raise NotRepeatable(f"a tensor of layout {x.layout}")
        cell = memory.known(x) if memory.manages(x) else None
        if cell is not None:
            return _Argument(cell, tuple(x.size()), x.stride(), x.storage_offset(), x.dtype, x.device)
        if x.nbytes > SMALL:
            raise NotRepeatable(f"a tensor of {x.nbytes} bytes elsewhere")
        return x.clone()
    return x


class Making:
    """How the bytes of one cell, which has none now, are made again: some calls, in order.

    While it stands, the storages that these calls read are kept, and nobody writes them before the cell is made. It
    `needs` so many bytes on the device at once, whatever else is sent away.
    """

    def __init__(self, cell: Cell, steps: Replay, calls: Mapping[int, Kept]) -> None:
        self.cell, self.steps = cell, steps
        self.calls: dict[int, Kept] = {}  # those of this iteration
        self.sources: dict[Cell, torch.UntypedStorage] = {}
        for step in steps.reruns:
            call = calls.get(step.op)
            if call is None:
                raise NotRepeatable(f"op {step.op} was not kept")
            self.calls[step.op] = call
            for value in step.reads:
                if value.whole == ON_DEVICE:
                    source = call.cells[value.buffer]
                    storage = source.storage
                    if storage is None or source is cell or source.version != call.versions.get(source, -1):
                        raise NotRepeatable(f"what op {step.op} read is gone")
                    if source.pinned:
                        raise NotRepeatable(f"what op {step.op} read has an address that somebody may write to unseen")
                    self.sources[source] = storage
        self.needs = self._needs()
        for source in self.sources:
            source.feeds = [*source.feeds, cell]

    def _needs(self) -> int:
        needs, made = 0, dict[Value, int]()
        for k, step in enumerate(self.steps.reruns):
            call = self.calls[step.op]
            sources = {call.cells[v.buffer] for v in step.reads if v.whole == ON_DEVICE}
            needs = max(needs, sum(made.values()) + sum(cell.size for cell in sources) + call.fresh)
            made |= {v: call.cells[v.buffer].size for v in step.writes}
            made = {v: size for v, size in made.items() if self.steps.spans[v].touch > k or v in self.steps.wanted}
        return needs

    def done(self) -> None:
        """It is no longer needed."""
        for source in self.sources:
            source.feeds = [cell for cell in source.feeds if cell is not self.cell]
        self.sources = {}
        self.cell.recipe = None


def recompute_values(memory: Memory, steps: Replay, calls: Mapping[int, Kept], wanted: Mapping[Value, Cell]) -> None:
    """Run the calls of a replay, told by op; the values wanted become the bytes of their cells, which have none."""
    made: dict[Value, torch.UntypedStorage] = {}
    try:
        for k, step in enumerate(steps.reruns):
            _rerun(memory, step, calls[step.op], made)
            for value in [v for v in made if steps.spans[v].touch == k and v not in wanted]:
                memory.charge(-made.pop(value).nbytes())
        for value, cell in wanted.items():
            storage = cell.storage
            if storage is not None and cell.where is not DEVICE:
                new = made.pop(value)
                memory.charge(-new.nbytes())
                memory.pointers.adopt(storage, new)
                memory.landed(cell)
    finally:
        memory.charge(-sum(storage.nbytes() for storage in made.values()))


def _rerun(memory: Memory, step: Rerun, call: Kept, made: dict[Value, torch.UntypedStorage]) -> None:
    cell_of = call.cells
    sources = [cell_of[v.buffer] for v in step.reads if v.whole == ON_DEVICE]
    memory.pressed = True  # what is made has no other bytes, and nobody can be told to ask for less
    try:
        memory.ready(sources, call.fresh, f"{call.func}, run again,")
    finally:
        memory.pressed = False
    where = {}
    for v in step.reads:
        storage = cell_of[v.buffer].storage if v.whole == ON_DEVICE else made[v]
        assert storage is not None  # a making keeps what is read
        where[cell_of[v.buffer]] = storage
    result = _run(memory, call, where, sources)
    given = {s._cdata for s in where.values()}
    fresh = _storages(results(result, memory.device), given)
    values = {v.buffer: v for v in step.writes}
    for buffer, new in zip((b for b, cell in cell_of.items() if cell not in call.versions), fresh):
        if buffer in values:  # others die at once
            made[values[buffer]] = new
            memory.charge(new.nbytes())
    memory.counts.again += 1


def _run(memory: Memory, call: Kept, where: Mapping[Cell, torch.UntypedStorage], keep: Sequence[Cell]) -> Any:
    """Run a call again; where the device has no memory left for it, once others have gone.

    A call that writes its operands may have done so in part before it failed, and is not tried twice.
    """
    while True:
        try:
            with hidden_from_modes(call.gradients):
                return call.run(where)
        except memory.no_memory:
            if kind_of(call.func).written or not memory.squeeze(keep):
                raise


def _storages(found: Sequence[torch.Tensor], known: set[int]) -> list[torch.UntypedStorage]:
    """The new storages among tensors, each once."""
    fresh: dict[int, torch.UntypedStorage] = {}
    for x in found:
        storage = x.untyped_storage()
        if storage.nbytes() and storage._cdata not in known:
            fresh.setdefault(storage._cdata, storage)
    return [*fresh.values()]


class RecomputingFollower(Follower[Cell]):
    """A follower of plans that make values again: `calls` are those that may be asked for, of this iteration."""

    memory: Memory

    def __init__(self, memory: Memory, hints: Hints) -> None:
        self.calls: dict[int, Kept] = {}
        self._keeping: PendingCall | None = None  # of the op that is under way
        ops = hints.trace.ops
        run = replace(hints.trace, ops=replace(ops, name=tuple(map(out_of_place, ops.name))))
        hints.keys = keys_of(run)[0]  # ops are known by the form that runs, whichever was written down
        super().__init__(memory, hints)
        rows = zip(ops.name, ops.reads.tolist(), ops.writes.tolist())
        # planned in place: what runs may be out of place
        self.sums = [name in WRITTEN_AS and {*writes} <= {*reads} for name, reads, writes in rows]

    def before(self, call: Call) -> int:  # type: ignore[override]  # who follows a step hands over its calls
        """Do what is due before an op, and write the call down if the plan may run it again."""
        i = super().before(call)
        self._keeping = None
        if i == LOST:
            return i
        due = self.at[i]
        if due is not None and due.keep and not self._apart(i, call):  # what runs apart is not what is planned
            with suppress(NotRepeatable):
                self._keeping = keep(call.func, call.args, call.kwargs, self.memory)
        return i

    def _apart(self, i: int, call: Call) -> bool:
        """Whether an op that is planned in place runs out of place."""
        return self.sums[i] and not call.written

    def expected(self, i: int, call: Call) -> int:
        """The bytes that op `i` of the plan will make."""
        return self.hints.fresh[i] + (call.reads[0].size if self._apart(i, call) else 0)

    def after(self, call: Call) -> bool:  # type: ignore[override]
        """Do what is due after the op; at the end of an iteration its calls are over."""
        i, keeping = self.i, self._keeping
        if i != LOST:
            if keeping is not None and len(row := self.hints.rows[i]) == len(call.touched):
                self.calls[i] = keeping(dict(zip(row, call.touched)), self.hints.fresh[i])
            if self.sums[i] and not call.writes and len(call.touched) > 1:  # its result stands for its first operand
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
        """Give up bytes that can be made again; where they cannot, they stay.

        Where that alone would take more than the limit, as it may where nothing goes as planned, the host has them.
        """
        if cell.pinned or cell.storage is None:
            return
        if cell.copy is None:
            try:
                making = Making(cell, self.hints.alone[k], self.calls)
            except NotRepeatable:
                return
            if making.needs + self.memory.pinned <= self.memory.limit:
                self.memory.drop(cell, making)
                return
            making.done()
        self.memory.release(cell)

    def _remake(self, replay: Replay, ks: list[int]) -> None:
        """Make again what is due, all at once; what is away otherwise, as before the plan was followed, by itself."""
        wanted = {}
        by_buffer = {self.hints.buffer(k): (self.bound[k], self.hints.alone.get(k)) for k in ks}
        for value in replay.wanted:
            cell, alone = by_buffer[value.buffer]
            if cell is None or cell.recipe is None or cell.storage is None:
                continue
            if cell.recipe.steps is alone:  # else nobody has kept what this plan would read
                wanted[value] = cell
            else:
                self.memory.bring(cell)
        if len(wanted) == len(replay.wanted) and all(step.op in self.calls for step in replay.reruns):
            recompute_values(self.memory, replay, self.calls, wanted)
        else:
            for cell in wanted.values():
                self.memory.bring(cell)


def recover(memory: Memory, cell: Cell) -> None:
    """Make a cell's bytes again, by its own recipe, and first what that reads, so that one thing is made at a time.

    Chains of recipes may be as long as a program, so nothing here calls itself. O(sources of all that is made).
    """
    todo = [cell]
    while todo:
        recipe: Making | None = todo[-1].recipe
        if recipe is None or todo[-1].where is not RECIPE:  # made meanwhile, for another
            todo.pop()
        elif first := [source for source in recipe.sources if source.where is RECIPE]:
            todo += first
        else:
            (value,) = recipe.steps.wanted
            recompute_values(memory, recipe.steps, recipe.calls, {value: todo.pop()})
