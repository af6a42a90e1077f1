"""Any program on a residency under a limit, beside a dict that keeps all bytes (`limited_memory`, `environment`).

Copies land late, memory that was given back is poisoned and used again, and any move may fail (`late_copies`).
After each step the books are what the cells say, each cell is in one state of the picture, within the limit.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpumem.runtime.residency.environment import Movable, Where
from gpumem.runtime.residency.limited_memory import LimitedMemory, LimitError
from tests.runtime.residency.late_copies import Late, check, raising

DEVICE, HOST, RECIPE, NOTHING = Where
ERRORS = (MemoryError, OSError)
MOVES = ["out", "release", "bring", "back once", "look"]
LIKELY = [["release", "back once", "release", "look"], ["out", "release", "bring", "look", "release"]]


class Cell(Movable):
    """Bytes with a name; its own storage, until it is dead."""

    def __init__(self, number: int, size: int, where: Where) -> None:
        super().__init__(size)
        self.number, self.where, self.version = number, where, int(where is DEVICE)
        self.memory: bytearray | None = None
        self.dead = False
        self.made: tuple[list[Cell], list[int]] | None = None  # from which cells, of which versions

    def __repr__(self) -> str:
        return f"Cell({self.number}, {self.where.value})"

    @property
    def storage(self) -> Any:
        return None if self.dead else self


class Recipe:
    """Makes a cell again from others; while it stands, they feed it."""

    def __init__(self, cell: Cell) -> None:
        assert cell.made is not None
        self.cell, self.sources = cell, cell.made[0]
        for source in self.sources:
            source.dependents = [*source.dependents, cell]

    def done(self) -> None:
        for source in self.sources:
            source.dependents = [other for other in source.dependents if other is not self.cell]
        self.cell.recipe = None


def mixed(size: int, *sources: bytes) -> bytes:
    """What an op makes of its operands."""
    salt = sum(sum(source) * (k + 3) for k, source in enumerate(sources))
    return bytes((salt + 7 * k) % 256 for k in range(size))


class Programs(RuleBasedStateMachine):
    """A program on `LimitedMemory`."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Late()
        self.memory: LimitedMemory[Cell] = LimitedMemory(self.engine, self.engine)
        self.memory.recover = self.recover
        self.cells: list[Cell] = []  # those that live
        self.lost: list[Cell] = []  # those that died, and are not buried
        self.handles: list[Cell] = []  # several may be of one cell
        self.bytes: dict[int, bytes] = {}
        self.beside = self.number = 0

    @initialize(limit=st.integers(5, 14))
    def limited(self, limit: int) -> None:
        self.memory.limit = limit

    # what a program does

    @rule(size=st.sampled_from([0, 1, 1, 2, 3, 4]), late=st.booleans())
    def allocate(self, size: int, late: bool) -> None:
        """A block that has no memory before it is touched, or one that an op made."""
        cell = Cell(self.number, size, NOTHING if late else DEVICE)
        with raising(*ERRORS) as failed:
            if late:
                self.memory.alive += size
            else:
                self.memory.ensure_resident([], size, "new")
                self.engine.fill(cell, size)
                self.memory.arrive(cell)
                self.memory.note()
                assert cell.memory is not None
                cell.memory[:] = mixed(size, bytes([self.number % 256]))
                self.bytes[self.number] = bytes(cell.memory)
        self.reap()
        if not failed:
            self.cells.append(cell)
            self.handles.append(cell)
            self.number += 1

    def some(self, data: st.DataObject, most: int, least: int = 1) -> list[Cell]:
        found = data.draw(st.lists(st.sampled_from(range(len(self.handles))), min_size=least, max_size=most))
        return [*dict.fromkeys(self.handles[k] for k in found)]

    def one(self, data: st.DataObject) -> Cell:
        return self.some(data, 1)[0]

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), pure=st.booleans())
    def op(self, data: st.DataObject, pure: bool) -> None:
        """Operands are read, and then cells are written, some of them in place. A pure one may be recomputed."""
        self.done(self.some(data, 3), self.some(data, 2), pure)

    @precondition(lambda self: len(self.cells) > 1)
    @rule(data=st.data())
    def make(self, data: st.DataObject) -> None:
        """A cell is made of others, which can be done again."""
        one, *others = data.draw(st.permutations(self.cells))
        self.done(others[: data.draw(st.integers(1, 2))], [one], True)

    def done(self, reads: list[Cell], writes: list[Cell], pure: bool) -> None:
        memory, touched = self.memory, [*dict.fromkeys([*reads, *writes])]
        before = {cell: cell.version for cell in self.cells}
        with raising(*ERRORS) as failed:
            memory.recompute_dependents(writes)
            memory.ensure_resident(touched, 0, "op")
            for cell in touched:
                self.holds(cell)
            memory.wrote(writes)
        self.reap()
        if failed:
            assert {cell: cell.version for cell in self.cells} == before
            self.excused(failed[0], touched)
            return
        for cell in writes:
            assert cell.copy is None and cell.version == before[cell] + 1
        operands = [bytes(cell.memory or b"") for cell in reads]
        for cell in writes:
            assert cell.memory is not None
            cell.memory[:] = mixed(cell.size, *operands)
            self.bytes[cell.number] = bytes(cell.memory)
            cell.made = None
        if pure and len(writes) == 1 and writes[0] not in reads and not any(cell.pinned for cell in reads):
            writes[0].made = reads, [cell.version for cell in reads]

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """Somebody reads bytes."""
        cells = self.some(data, 2)
        with raising(*ERRORS) as failed:
            self.memory.ensure_resident(cells, 0, "look")
            for cell in cells:
                self.holds(cell)
            assert [*self.memory.on_device][-len(cells) :] == cells  # used last
        self.reap()
        if failed:
            self.excused(failed[0], cells)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def view(self, data: st.DataObject) -> None:
        """Another handle on the same bytes."""
        self.handles.append(self.one(data))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), told=st.booleans())
    def free(self, data: st.DataObject, told: bool) -> None:
        """A handle goes; with the last one the bytes: freed by the program, or dead from one moment to the next."""
        cell = self.one(data)
        if self.handles.count(cell) == 1:
            self.freed(cell, told)
        else:
            self.handles.remove(cell)

    def freed(self, cell: Cell, told: bool) -> None:
        if cell.dependents:  # whoever makes something again of it keeps it
            return
        with raising(*ERRORS) as failed:
            if cell.where is DEVICE:
                self.memory.wait_for_copy(cell)
                self.engine.empty(cell)
        if failed:
            return
        cell.dead = True
        self.cells.remove(cell)
        self.lost.append(cell)
        self.memory.dead.append(cell)
        self.handles = [other for other in self.handles if other is not cell]
        self.fresh_no_more(cell)
        if told:
            self.memory.reap()
        self.reap()

    def fresh_no_more(self, cell: Cell) -> None:
        """Nothing can be made of a cell again."""
        for other in self.cells:
            if other.made and cell in other.made[0]:
                other.made = None

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), then=st.booleans())
    def pin(self, data: st.DataObject, then: bool) -> None:
        """Somebody has the address, and may write there unseen from now on."""
        cell = self.one(data)
        with raising(*ERRORS):
            self.memory.recompute_dependents([cell])
            self.memory.ensure_resident([cell], 0, "pin")
            self.memory.pin(cell, "a test")
            self.memory.wrote([cell])
            self.bytes[cell.number] = bytes(cell.memory or b"")
            self.fresh_no_more(cell)
        self.reap()
        if then and self.handles.count(cell) == 1:
            self.freed(cell, told=False)

    @rule(value=st.integers(0, 255))
    def poke(self, value: int) -> None:
        """Who has an address writes there."""
        for cell in self.cells:
            if cell.pinned and cell.memory:
                cell.memory[0] = value
                self.bytes[cell.number] = bytes(cell.memory)

    @rule(size=st.sampled_from([-2, -1, 1, 2]))
    def charge(self, size: int) -> None:
        """Memory beside the cells."""
        if self.beside + size < 0:
            return
        with raising(*ERRORS):
            if size > 0:
                self.memory.ensure_resident([], size, "beside")
            self.memory.charge(size)
            self.beside += size
        self.reap()

    # what a plan does, or one that is not followed any more

    @precondition(lambda self: self.handles)
    @rule(
        data=st.data(),
        moves=st.lists(st.sampled_from(MOVES), min_size=1, max_size=4) | st.sampled_from(LIKELY),
    )
    def hints(self, data: st.DataObject, moves: list[str]) -> None:
        """A cell is moved, whoever needs it."""
        cell, memory = self.one(data), self.memory
        for move in moves:
            with raising(*ERRORS):
                if move == "out":
                    memory.out(cell)
                elif move == "release":
                    memory.release(cell)
                    assert cell.where is not DEVICE or cell.pinned
                elif move == "look":
                    memory.ensure_resident([cell], 0, "look")
                    self.holds(cell)
                elif cell.where is HOST and memory.held + cell.size <= memory.limit:
                    assert cell.copy is not None
                    cell.copy.drop_copy_on_return = move == "back once"
                    memory.bring(cell)
            self.reap()
            self.books()
            self.bytes_are_somewhere()

    @rule(data=st.data(), then=st.sampled_from(["", "", "write a source", "recover", "free"]), fails=st.booleans())
    def drop(self, data: st.DataObject, then: str, fails: bool) -> None:
        """What can be recomputed is given up; perhaps somebody writes what that reads."""
        found = [cell for cell in self.cells if self.droppable(cell)]
        if not found:
            return
        cell = data.draw(st.sampled_from(found))
        recipe = Recipe(cell)
        if fails:
            self.fault("empty", 1, OSError)
        with raising(*ERRORS) as failed:
            self.memory.drop(cell, recipe)
        if failed:
            assert cell.recipe is None and cell.where is DEVICE
            recipe.done()
        elif then == "recover":
            with raising(*ERRORS):
                self.memory.bring(cell)
                self.holds(cell)
        elif then == "free":
            self.freed(cell, told=True)
        elif then:
            self.done([], [data.draw(st.sampled_from(recipe.sources))], False)
        self.reap()

    def droppable(self, cell: Cell) -> bool:
        if cell.where is not DEVICE or cell.pinned or cell.copy is not None or cell.made is None:
            return False
        sources, versions = cell.made
        fresh = [source.version for source in sources] == versions
        return fresh and not any(source.pinned or source.dead for source in sources)

    def recover(self, cell: Cell) -> None:
        """Make a cell's bytes again, and first what that reads."""
        recipe = cell.recipe
        for source in recipe.sources:
            if source.recipe is not None:
                self.recover(source)
        if cell.where is DEVICE:  # recomputed meanwhile
            return
        self.memory.ensure_resident(recipe.sources, cell.size, "recompute")
        self.memory._fill(cell, cell, recipe.sources)
        assert cell.memory is not None
        cell.memory[:] = mixed(cell.size, *[bytes(source.memory) for source in recipe.sources])
        self.memory.landed(cell)
        self.memory.counts.recomputed += 1

    # what the machine does

    @rule(queue=st.sampled_from(["out", "back"]), count=st.integers(1, 3))
    def land(self, queue: str, count: int) -> None:
        """Copies land, while nobody waits for them."""
        for _ in range(min(count, len(self.engine.queues[queue]))):
            self.engine.progress(self.engine.queues[queue])

    @rule(
        move=st.sampled_from(["out", "back", "settle", "fill", "empty"]),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        error=st.sampled_from(ERRORS),
    )
    def fault(self, move: str, n: int, error: type[Exception]) -> None:
        """One of the next moves fails, once."""
        self.engine.faults.arm(move, n, error("a fault"))

    @rule()
    def count_anew(self) -> None:
        self.memory.begin()
        self.reap()
        assert self.memory.peak == self.memory.held and self.memory.least == self.memory.alive

    # what must hold

    def reap(self) -> None:
        """The dead leave the books when the memory says so."""
        self.lost = [cell for cell in self.lost if cell in self.memory.dead]

    def holds(self, cell: Cell) -> None:
        """A cell that is ready has its bytes, and nothing that will land in them."""
        assert cell.where is DEVICE and cell.memory is not None
        if cell.version:
            assert bytes(cell.memory) == self.bytes[cell.number]
        assert cell.copy is None or not cell.copy.in_flight

    def excused(self, error: BaseException, cells: list[Cell]) -> None:
        """An op is refused where something failed, or what it holds at once is too much."""
        if error is self.engine.faults.error:
            return
        assert isinstance(error, LimitError)
        stuck = {cell for cell in self.cells if cell.pinned or cell in cells}
        needs = sum(cell.size for cell in stuck) + self.beside
        feeding = any(cell.where is RECIPE or cell.made for cell in self.cells)  # their sources take room as well
        assert needs > self.memory.limit or feeding

    @invariant()
    def books(self) -> None:
        check(self.memory, [*self.cells, *self.lost], self.beside, self.engine)
        least = self.memory.least
        assert 0 <= least <= self.memory.alive or self.lost
        for cell in self.cells:
            assert {*cell.dependents} == {x for x in (*self.cells, *self.lost) if x.recipe and cell in x.recipe.sources}

    @invariant()
    def bytes_are_somewhere(self) -> None:
        for cell in self.cells:
            if not cell.version:
                continue
            copy = cell.copy
            if cell.where is DEVICE and (copy is None or not self.engine.under_way(copy.data)):
                assert cell.memory is not None and bytes(cell.memory) == self.bytes[cell.number]
            if cell.where is HOST:
                assert copy is not None and bytes(copy.data.data) == self.bytes[cell.number]

    def teardown(self) -> None:
        self.engine.faults.arm("", 0, OSError())
        self.memory.limit = 2**40
        for cell in self.cells:
            self.memory.ensure_resident([cell], 0, "the end")
            self.holds(cell)
        while self.handles:
            cell = self.handles.pop()
            if not cell.dead:
                self.memory.wait_for_copy(cell)
                self.engine.empty(cell)
                cell.dead = True
                self.memory.dead.append(cell)
        self.memory.reap()
        assert self.memory.held == self.beside and not self.memory.alive and not self.memory.pinned
        assert not self.memory.on_device and not self.engine.slabs


TestPrograms = Programs.TestCase
TestPrograms.settings = settings(max_examples=4 * settings.default.max_examples)
