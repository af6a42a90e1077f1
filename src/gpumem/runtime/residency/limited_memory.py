"""Who is on the device: residency within a limit, whatever a plan says.

What may move is a `Movable`: a storage of PyTorch's, a block of a program, an array. How its bytes move, an engine
and its pointers say.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from gpumem.base.units import exact, human
from gpumem.runtime.residency.environment import Counts, Emptier, Movable, Mover

UNLIMITED = 2**62


class LimitError(MemoryError):
    """What an op must hold at once is more than the limit; the message says which op, how many bytes, what would do."""


R = TypeVar("R", bound=Movable)


class LimitedMemory(Generic[R]):
    """What moves between the device and the host.

    Parameters
    ----------
    engine : Mover
    pointers : Emptier
    limit : int
        Bytes that may be on the device at once.

    `held` are the bytes on the device now, `peak` the most since `begin`, `fixed` those that cannot move; `alive` are
    all, wherever they are, `least` the fewest since `begin`.
    """

    def __init__(self, engine: Mover, pointers: Emptier, limit: int = UNLIMITED) -> None:
        self.engine, self.pointers, self.limit = engine, pointers, limit
        self.dead: list[R] = []  # until somebody buries them
        self.here: OrderedDict[R, None] = OrderedDict()  # least recently used first
        self.held = self.peak = self.fixed = self.alive = self.least = 0
        self.counts = Counts()
        self.pressed = False  # whether what is asked for makes room as well: bytes would be lost else
        self.recover: Callable[[R], None] = lambda cell: None  # makes again what has no copy

    def begin(self) -> None:
        """Count anew, from now on."""
        self.bury()
        self.peak, self.least, self.counts = self.held, self.alive, Counts()

    def arrive(self, cell: R) -> None:
        """Take note of one that is on the device, and was not known before."""
        self.here[cell] = None
        self.held += cell.size
        self.alive += cell.size
        self.fixed += cell.size * cell.fixed

    def fix(self, cell: R) -> None:
        """Leave a cell where it is from now on, which is on the device."""
        if not cell.fixed:
            cell.fixed = True
            self.fixed += cell.size

    def bury(self) -> None:
        """Take the dead off the books."""
        while self.dead:
            cell = self.dead.pop()
            self.alive -= cell.size
            if cell.here:
                del self.here[cell]
                self.held -= cell.size
                self.fixed -= cell.size * cell.fixed
            if cell.copy is not None:
                self.forget(cell)
            if cell.again is not None:
                cell.again.done()
        self.least = min(self.least, self.alive)

    def note(self) -> None:
        """Remember how much is held, if it never was so much."""
        if self.held > self.peak:
            self.peak = self.held

    def charge(self, size: int) -> None:
        """Put bytes that no cell has on the books, or take them off."""
        self.held += size
        self.note()

    # who needs what

    def ready(self, cells: Sequence[R], fresh: int, what: str) -> None:
        """Let cells be on the device, with room for so many bytes beside them."""
        missing = False  # which need not take bytes: a block may have none
        for cell in cells:
            if cell.here:
                self.here.move_to_end(cell)
                if cell.coming:
                    self.settle(cell)
            else:
                missing = True
        away = self._remade(cells) if missing else 0
        if self.held + away + fresh > self.limit:
            self.room(away + fresh, cells, what)
        if missing:
            for cell in cells:
                if not cell.here:
                    self.bring(cell, cells)
                    self.settle(cell)
            for cell in cells:  # as the op has them, whoever was here
                self.here.move_to_end(cell)

    def _remade(self, cells: Sequence[R]) -> int:
        """Make those again that have no copy, which may send others away; return how many bytes are to come back."""
        for cell in cells:
            if not cell.here:
                self.counts.misses += not cell.void
                if cell.again is not None:
                    self.recover(cell)
        return sum(cell.size for cell in cells if not cell.here)

    def room(self, size: int, keep: Sequence[R] = (), what: str = "") -> None:
        """Make room, by sending away what was not used for longest."""
        self.bury()
        while self.held + size > self.limit:
            victims = self._coldest(self.held + size - self.limit, keep)
            if not victims:
                raise LimitError(self._too_much(size, keep, what))
            for cell in victims:
                self.counts.evictions += 1
                self.release(cell)
            self.bury()

    def _coldest(self, size: int, keep: Sequence[R]) -> list[R]:
        """So many bytes of those that were not used for longest, or all there are; what has no bytes frees none."""
        found, kept = [], {*keep}
        for cell in self.here:
            if size <= 0:
                break
            if cell.size and not cell.fixed and (self.pressed or not cell.asked) and cell not in kept:
                found.append(cell)
                size -= cell.size
        return found

    def _too_much(self, size: int, keep: Sequence[R], what: str) -> str:
        needs = self.held + size
        others = self.held - sum(cell.size for cell in keep if cell.here)
        fixed = f", {human(others)} of it in storages that cannot move" if others else ""
        whose, hint = self.told(what)
        return (
            f"{what or 'this'}{whose} holds {human(needs)} at once{fixed}, the limit is {human(self.limit)}; "
            f"the least limit that would do for it is {exact(needs)}{hint}"
        )

    def told(self, what: str) -> tuple[str, str]:
        """What to say of an op that needs too much: whose it is, and what would help."""
        return "", ""

    def wrote(self, cells: Iterable[R]) -> None:
        """Cells have new bytes: what the host has of them is old."""
        for cell in cells:
            cell.version += 1
            cell.void = False
            if cell.copy is not None:
                self.forget(cell)

    def secure(self, cells: Iterable[R]) -> None:
        """Make again what could no longer be, once cells are written."""
        for cell in cells:
            for other in [*cell.feeds] if cell.feeds else ():
                if other.again is not None and not other.here:
                    self.bring(other)

    # moves

    def out(self, cell: R) -> None:
        """Begin to copy a cell to the host, unless the host has it."""
        storage = cell.storage
        if cell.copy is None and cell.here and not cell.fixed and not cell.void and storage is not None:
            cell.copy = self.engine.out(storage)
            cell.coming = True
            self.counts.out += cell.size

    def release(self, cell: R) -> None:
        """Give a cell's memory on the device back; the host has the bytes, or they can be made again."""
        storage = cell.storage
        if not cell.here or cell.fixed or storage is None:
            return
        if cell.again is None:
            cell.once = False  # it comes back once more
            self.out(cell)
            self.settle(cell)
        self.pointers.empty(storage)
        cell.here = False
        del self.here[cell]
        self.held -= cell.size

    def bring(self, cell: R, keep: Sequence[R] = ()) -> None:
        """Give a cell its memory and bytes back; where the device has none left, of others than `keep`."""
        storage = cell.storage
        if cell.here or storage is None:
            return
        if cell.again is not None:
            self.recover(cell)
            return
        self._fill(cell, storage, keep)
        if not cell.void:
            try:
                self.engine.back(storage, cell.copy)
            except BaseException:
                self.pointers.empty(storage)
                raise
            cell.coming = True
            self.counts.back += cell.size
        self.landed(cell)

    def _fill(self, cell: R, storage: Any, keep: Sequence[R]) -> None:
        """Give a storage memory; where that is refused, within the limit or not, after others have lost theirs."""
        while True:
            try:
                self.pointers.fill(storage, cell.size)
                return
            except MemoryError:
                victim = next((x for x in self.here if not (x.fixed or x.asked) and x not in keep and x.size), None)
                if victim is None:
                    raise
                self.counts.evictions += 1
                self.release(victim)

    def landed(self, cell: R) -> None:
        """A cell is on the device again."""
        cell.here = True
        self.here[cell] = None
        self.held += cell.size
        self.note()

    def settle(self, cell: R) -> None:
        """Let what computes next wait for a copy under way."""
        if cell.coming and cell.copy is not None:
            self.engine.settle(cell.copy)
        cell.coming = False
        if cell.once and cell.here:
            self.forget(cell)

    def forget(self, cell: R) -> None:
        """Give the host's copy back."""
        if cell.copy is not None:
            self.engine.drop(cell.copy)
        cell.copy, cell.coming, cell.once = None, False, False
