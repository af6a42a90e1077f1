"""DTR's rule while no plan is followed: what is cheap to get back goes first, by way of the host or of its op.

h_DTR of Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), with the link as a second way back::

    score = time / (bytes * staleness), the lowest goes      staleness: ops' time since an op touched it
    time  = min(copies, op + evicted neighbourhood)          copies: back, and out unless the host has its bytes

The neighbourhood are the values that are gone and from which recipes lead to this one, or to which they lead from it.
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
from gpumem.swap.plan.replay import ON_DEVICE, Replay, Rerun, Touches, Value
from gpumem.torch.internals import storage_references, torch
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.recompute import PendingCall, Kept, Making, NotRepeatable, keep
from gpumem.torch.step.ops import Call, Kind, amount, flops_of, results
from gpumem.torch.step.storages import Cell

SIZES = 4096  # of ops and of copies, whose times are remembered; not tuned


class Maker:
    """A call that may be made again, and what it reads; each of its results has it for a `maker`."""

    def __init__(self, call: Kept) -> None:
        self.call, self.sources = call, call.sources

    def makes(self, cell: Cell) -> bool:
        """Whether it makes the bytes that one of its results has now; where it does not, it never will again."""
        versions = self.call.versions
        return cell.version == Cell.version and all(
            x.version == versions[x] and not x.pinned and x.storage is not None for x in self.sources
        )

    def making(self, cell: Cell) -> Making:
        """Return the recipe of one of its results: a replay of one op; NotRepeatable where there is none."""
        number, versions = {x: k for k, x in self.call.cells.items()}, self.call.versions
        reads = tuple(Value(number[x], ON_DEVICE) for x in self.sources)
        made = tuple(Value(k, 0) for x, k in number.items() if x not in versions)
        wanted, spans = frozenset([Value(number[cell], 0)]), dict.fromkeys(made, Touches(0, 0, 0))
        return Making(cell, Replay(0, wanted, {}, (Rerun(0, reads, made),), spans), {0: self.call})


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
        self.follows = False  # a plan, whose hints say what goes
        self.coming = 0  # bytes that are about to be pinned
        self.read: dict[Cell, None] = {}  # by recipes; those since a recorder is told of deaths
        self.let_go: dict[Cell, None] = {}  # what nobody has any more but recipes
        self._out, self._into, self._roofline = _times(machine.out), _times(machine.into), _rooflines(machine)
        memory.policy = self

    # around an op

    def before(self, call: Call, follows: bool) -> PendingCall | None:
        """Look at an op that is about to run, and say whether a plan is followed; keep it, if it may run again."""
        if self.follows and not follows:  # nobody has looked at the clock meanwhile
            for cell in self.memory.here:
                cell.used = self.clock
        self.follows = follows
        if follows or self.memory.limit == UNLIMITED or not _makes_anew(call.kind) or call.keeps:
            return None
        try:
            return keep(call.func, call.args, call.kwargs, self.memory)
        except Exception as error:
            if isinstance(error, NotRepeatable) or tolerable(error):
                return None
            raise

    def after(self, call: Call, keeping: PendingCall | None) -> None:
        """Let what an op has made know its maker, and all that it touched when that was."""
        memory = self.memory
        if self.follows or memory.limit == UNLIMITED:
            return
        made = call.touched[len(call.reads) :]
        fresh = sum(cell.size for cell in made)
        ns = self._roofline(flops_of(call) or 0, _moved(call, fresh))
        self.clock += ns
        for cell in (*call.touched, *call.writes):
            cell.used = self.clock
        found = results(call.result, memory.device)
        whole = all(x.layout is torch.strided for x in found)  # others have several storages
        if keeping is not None and made and whole:
            maker = Maker(keeping(dict(enumerate(call.touched)), fresh, ns))
            for cell in made:
                if cell not in maker.call.versions:  # an operand that it returned
                    cell.maker = maker

    # who goes

    def evict(self, size: int, keep: Sequence[Cell]) -> bool:
        """Send away what has the lowest score, of several the least recently used; return whether there was any."""
        memory, clock = self.memory, self.clock
        if self.follows:
            return memory.evict_coldest(size, keep)
        kept, best, least = {*keep}, None, math.inf
        for cell in memory.here:
            if cell.size and not cell.pinned and not cell.asked and cell not in kept:
                score = self.time(cell) / (cell.size * max(clock - cell.used, 1))
                if score < least:
                    best, least = cell, score
        if best is None:
            return False
        memory.counts.evictions += 1
        if not self.drop(best):
            memory.release(best)
        return True

    def time(self, cell: Cell) -> int:
        """What it takes to get a cell back once it is gone, in ns, the cheaper way."""
        if cell.copy is not None:
            return self._into(cell.size)
        copies = self._out(cell.size) + self._into(cell.size)
        return min(self.again(cell, copies), copies)

    def again(self, cell: Cell, most: int) -> int:
        """What its op takes, and its evicted neighbourhood; `most` or more where that is more, or it has no maker."""
        maker: Maker | None = cell.maker
        if maker is None:
            return most
        if not maker.makes(cell):
            cell.maker = None
            return most
        ns = self._gone(maker.sources, lambda x: x.recipe.sources, maker.call.ns, most)
        return self._gone(cell.feeds, lambda x: x.feeds, ns, most)

    def _gone(self, first: Sequence[Cell], beyond: Callable[[Cell], Iterable[Cell]], ns: int, most: int) -> int:
        """Add what the ops take of all that is gone from `first` on, as far as it leads; no further than `most`."""
        todo, seen = [*first], set[Cell]()
        while todo and ns < most:
            cell = todo.pop()
            if cell.where is RECIPE and cell not in seen:
                seen.add(cell)
                ns += sum(call.ns for call in cell.recipe.calls.values())
                todo += beyond(cell)
        return ns

    def drop(self, cell: Cell) -> bool:
        """Give up a cell's bytes, where to make them takes less time than copies, and no more than the limit."""
        memory, copies = self.memory, self._out(cell.size) + self._into(cell.size)
        if cell.copy is not None or self.again(cell, copies) >= copies:
            return False
        try:
            making = cell.maker.making(cell)
        except NotRepeatable:
            return False
        if making.needs + self._stuck() > memory.limit:
            making.done()
            return False
        memory.drop(cell, making)
        self.read |= dict.fromkeys(making.sources)
        return True

    def bury(self) -> None:
        """Let what nobody has any more but recipes be dead for whoever records, or plans would have it live on."""
        memory = self.memory
        for cell in [x for x in self.let_go if x.storage is None]:
            del self.let_go[cell]
            memory.alive += cell.size  # it went off the books twice
        if memory.buried is None:
            self.read.clear()
            return
        for cell in [*self.read]:
            storage = cell.storage
            if storage is None or not cell.feeds:
                del self.read[cell]
            elif storage_references(cell.key) == 1:  # Python's object, which recipes share
                del self.read[cell]
                self.let_go[cell] = None
                memory.alive -= cell.size
                memory.buried(cell)

    def _stuck(self) -> int:
        """Bytes that make no room, from now on."""
        memory = self.memory
        return memory.pinned + self.coming + sum(cell.size for cell in memory.here if cell.asked and not cell.pinned)

    @contextmanager
    def pinning(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Pin cells within this; first what needs more room than is left then is made."""
        memory = self.memory
        with patch.object(self, "coming", sum(cell.size for cell in cells if not cell.pinned)):
            stuck = self._stuck()
            for cell in [*memory.by_key.values()]:
                if cell.where is RECIPE and cell.recipe.needs + stuck > memory.limit:
                    memory.bring(cell)
            yield


def _makes_anew(kind: Kind) -> bool:
    """Whether an op makes new values of operands that it leaves as they are, but for batch norm's statistics."""
    writes = kind.written or kind.outs or kind.unsaid or kind.resizes
    return kind.again and kind.makes and not (writes or kind.empty or kind.keeps)


def _moved(call: Call, fresh: int) -> int:
    """The bytes that an op reads and writes, as a capture has them: rows of a table only as far as they come out."""
    if call.kind.empty:
        return 0
    if any(x.layout is not torch.strided or x.is_nested for x in call.operands):  # they may not tell
        cells: list[Cell] = call.reads
        return fresh + sum(cell.size for cell in cells)
    unread = max(amount([call.args[0]]) - fresh, 0) if call.kind.gathers else 0
    return amount(call.read) + amount(call.written) + fresh - unread


def _times(link: Link) -> Callable[[int], int]:
    """What copies take, in ns, by their bytes."""
    return lru_cache(SIZES)(lambda size: int(link.copy_ns(np.array(size))))


def _rooflines(machine: Machine) -> Callable[[int, int], int]:
    """What ops take, in ns, by their flops and the bytes that they move."""

    def took(flops: int, moved: int) -> int:
        return round(float(machine.roofline_ns(np.array(float(flops)), np.array(float(moved)))))

    return lru_cache(SIZES)(took)
