"""DTR's rule while no plan is followed: what is cheap to get back is evicted first, to the host or by recomputation.

h_DTR of Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), with the link as a second way back::

    score = time / (bytes * staleness), the lowest goes      staleness: ops' time since an op touched it
    time  = min(copies, op + evicted neighbourhood)          copies: back, and out unless the host has its bytes

The evicted neighbourhood of a value: the dropped values from which recipes lead to it, or to which they lead from it.
Times are the machine's: on a GPU ops are measured at the end of an iteration only. What was changed in place is copied.
Each eviction looks at all that is on the device, as in the paper; a walk through the neighbourhood ends where copies
are cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from unittest.mock import patch

import numpy as np

from gpumem.runtime.residency.limited_memory import RECIPE, UNLIMITED
from gpumem.runtime.residency.observing import tolerable
from gpumem.simulator.machine import Link, Machine
from gpumem.swap.plan.replay import ON_DEVICE, RecomputedOp, Replay, Touches, Value
from gpumem.torch.internals import storage_references, torch
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.recompute import NotRepeatable, PendingCall, RecordedCall, StorageRecipe, record_call
from gpumem.torch.step.ops import Call, Kind, amount, flops_of, results
from gpumem.torch.step.storages import Cell

# Sizes of ops and of copies whose times are remembered: not tuned.
SIZES = 4096


class Maker:
    """The recorded call that made some cells, each of which has it for its `maker`: what could recompute them."""

    def __init__(self, call: RecordedCall) -> None:
        self.call, self.sources = call, call.sources

    def makes(self, cell: Cell) -> bool:
        """Whether it makes the bytes that one of its results has now; once it does not, it never does."""
        versions = self.call.versions
        return cell.version == Cell.version and all(
            source.version == versions[source] and not source.pinned and source.storage is not None
            for source in self.sources
        )

    def recipe(self, cell: Cell) -> StorageRecipe:
        """Return the recipe of one of its results: a replay of one op; NotRepeatable where there is none."""
        number, versions = {touched: k for k, touched in self.call.cells.items()}, self.call.versions
        reads = tuple(Value(number[source], ON_DEVICE) for source in self.sources)
        made = tuple(Value(k, 0) for touched, k in number.items() if touched not in versions)
        replay = Replay(
            place=0,
            wanted=frozenset([Value(number[cell], 0)]),
            held={},
            recomputed_ops=(RecomputedOp(0, reads, made),),
            spans=dict.fromkeys(made, Touches(0, 0, 0)),
        )
        return StorageRecipe(cell, replay, {0: self.call})


class DtrEvictor:
    """A policy (`residency.limited_memory`) of what runs on demand.

    Parameters
    ----------
    memory : Memory
        Whose policy it is from now on.
    machine : Machine
        Says how long ops and copies take.
    """

    def __init__(self, memory: Memory, machine: Machine) -> None:
        self.memory, self.machine = memory, machine
        self.clock = 0  # ns of the ops so far
        self.follows = False  # whether a plan is followed, whose hints say what is evicted
        self.to_be_pinned = 0  # bytes that are about to be
        self.read: dict[Cell, None] = {}  # cells that recipes read; those since a recorder is told of deaths
        self.orphans: dict[Cell, None] = {}  # cells that recipes alone keep alive
        self._out, self._into, self._roofline = _times(machine.out), _times(machine.into), _rooflines(machine)
        memory.policy = self

    # around an op

    def before(self, call: Call, follows: bool) -> PendingCall | None:
        """Record an op that is about to run, if it may recompute something; `follows`: whether a plan is followed."""
        if self.follows and not follows:  # the clock stood still under the plan, so all cells count as used just now
            for cell in self.memory.on_device:
                cell.used = self.clock
        self.follows = follows
        if follows or self.memory.limit == UNLIMITED or not _makes_new_values(call.kind) or call.keeps:
            return None
        try:
            return record_call(call.func, call.args, call.kwargs, self.memory)
        except Exception as error:
            if isinstance(error, NotRepeatable) or tolerable(error):
                return None
            raise

    def after(self, call: Call, pending: PendingCall | None) -> None:
        """Let the results of an op know their maker, and all that it touched the time of its last use."""
        memory = self.memory
        if self.follows or memory.limit == UNLIMITED:
            return
        made = call.touched[len(call.reads) :]
        fresh = sum(cell.size for cell in made)
        ns = self._roofline(flops_of(call) or 0, _moved(call, fresh))
        self.clock += ns
        for cell in (*call.touched, *call.writes):
            cell.used = self.clock
        strided = all(tensor.layout is torch.strided for tensor in results(call.result, memory.device))
        if pending is not None and made and strided:  # tensors of other layouts have several storages
            maker = Maker(pending(cells=dict(enumerate(call.touched)), fresh=fresh, ns=ns))
            for cell in made:
                if cell not in maker.call.versions:  # an operand that it returned
                    cell.maker = maker

    # which cell is evicted

    def evict(self, size: int, keep: Sequence[Cell]) -> bool:
        """Evict the cell of the lowest score, of several the least recently used; return whether there was any."""
        memory, clock = self.memory, self.clock
        if self.follows:
            return memory.evict_least_recently_used(size, keep)
        kept, victim, lowest = {*keep}, None, math.inf
        for cell in memory.on_device:
            if cell.size and not cell.pinned and not cell.exposed and cell not in kept:
                score = self.time(cell) / (cell.size * max(clock - cell.used, 1))
                if score < lowest:
                    victim, lowest = cell, score
        if victim is None:
            return False
        memory.counts.evictions += 1
        if not self.drop(victim):
            memory.release(victim)
        return True

    def time(self, cell: Cell) -> int:
        """The ns that it takes to get a cell back once it is evicted, by copies or by recomputation."""
        if cell.copy is not None:
            return self._into(cell.size)
        copies = self._out(cell.size) + self._into(cell.size)
        return min(self.recompute_ns(cell, copies), copies)

    def recompute_ns(self, cell: Cell, most: int) -> int:
        """The ns of its op and its evicted neighbourhood; `most` or more where that is more, or it has no maker."""
        maker: Maker | None = cell.maker
        if maker is None:
            return most
        if not maker.makes(cell):
            cell.maker = None
            return most
        ns = self._with_neighbours(maker.sources, lambda cell: cell.recipe.sources, ns=maker.call.ns, most=most)
        return self._with_neighbours(cell.dependents, lambda dependent: dependent.dependents, ns=ns, most=most)

    def _with_neighbours(
        self, first: Sequence[Cell], beyond: Callable[[Cell], Iterable[Cell]], *, ns: int, most: int
    ) -> int:
        """Add to `ns` the ops of all dropped cells that `beyond` leads to from `first` on.

        It stops at `most`: beyond it copies are cheaper, and so the sum no longer matters.
        """
        todo, seen = [*first], set[Cell]()
        while todo and ns < most:
            cell = todo.pop()
            if cell.where is RECIPE and cell not in seen:
                seen.add(cell)
                ns += sum(call.ns for call in cell.recipe.calls.values())
                todo += beyond(cell)
        return ns

    def drop(self, cell: Cell) -> bool:
        """Drop a cell's bytes, where recomputing them takes less time than copies, and fits within the limit."""
        memory, copies = self.memory, self._out(cell.size) + self._into(cell.size)
        if cell.copy is not None or self.recompute_ns(cell, copies) >= copies:
            return False
        try:
            recipe = cell.maker.recipe(cell)
        except NotRepeatable:
            return False
        if recipe.needs + self._immovable() > memory.limit:
            recipe.done()
            return False
        memory.drop(cell, recipe)
        self.read |= dict.fromkeys(recipe.sources)
        return True

    def reap(self) -> None:
        """Report cells that recipes alone keep alive as dead to a recorder: its plans would keep them alive else."""
        memory = self.memory
        for cell in [orphan for orphan in self.orphans if orphan.storage is None]:
            del self.orphans[cell]
            memory.alive += cell.size  # it was taken off when it became an orphan, and now as it died
        if memory.on_reaped is None:
            self.read.clear()
            return
        for cell in [*self.read]:
            storage = cell.storage
            if storage is None or not cell.dependents:
                del self.read[cell]
            elif storage_references(cell.key) == 1:  # the one of Python's object, which recipes share
                del self.read[cell]
                self.orphans[cell] = None
                memory.alive -= cell.size
                memory.on_reaped(cell)

    def _immovable(self) -> int:
        """Bytes on the device that cannot be evicted, from now on."""
        memory = self.memory
        asked = sum(cell.size for cell in memory.on_device if cell.exposed and not cell.pinned)
        return memory.pinned + self.to_be_pinned + asked

    @contextmanager
    def pinning(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Pin cells within this context; first recompute what would no longer fit beside them."""
        memory = self.memory
        with patch.object(self, "to_be_pinned", sum(cell.size for cell in cells if not cell.pinned)):
            immovable = self._immovable()
            for cell in [*memory.by_key.values()]:
                if cell.where is RECIPE and cell.recipe.needs + immovable > memory.limit:
                    memory.bring(cell)
            yield


def _makes_new_values(kind: Kind) -> bool:
    """Whether an op makes new values of operands that it leaves as they are, but for batch norm's statistics."""
    writes = kind.written_positions or kind.written_keywords or kind.undeclared_positions or kind.resizes
    return kind.repeatable and kind.makes_tensors and not (writes or kind.leaves_uninitialised or kind.keeps_operands)


def _moved(call: Call, fresh: int) -> int:
    """The bytes that an op reads and writes, as a capture has them: of a table the rows that are returned."""
    if call.kind.leaves_uninitialised:
        return 0
    if any(operand.layout is not torch.strided or operand.is_nested for operand in call.operands):  # `nbytes` may fail
        cells: list[Cell] = call.reads
        return fresh + sum(cell.size for cell in cells)
    unread = max(amount([call.args[0]]) - fresh, 0) if call.kind.gathers else 0
    return amount(call.read) + amount(call.written) + fresh - unread


def _times(link: Link) -> Callable[[int], int]:
    """The ns of copies by their bytes."""
    return lru_cache(SIZES)(lambda size: int(link.copy_ns(np.array(size))))


def _rooflines(machine: Machine) -> Callable[[int, int], int]:
    """The ns of ops by their flops and the bytes that they move."""

    def roofline_ns(flops: int, moved: int) -> int:
        return round(float(machine.roofline_ns(np.array(float(flops)), np.array(float(moved)))))

    return lru_cache(SIZES)(roofline_ns)
