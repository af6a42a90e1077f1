"""Who is on the device: residency within a limit, whatever a plan says.

What may move is a `Movable`: a storage of PyTorch's, a block of a program, an array. How its bytes move, an engine
and its pointers say.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from gpumem.base.units import exact, human
from gpumem.runtime.residency.environment import Counts, Emptier, HostCopy, Movable, Mover, Where

UNLIMITED = 2**62
DEVICE, HOST, RECIPE, NOTHING = Where


class LimitError(MemoryError):
    """What an op must hold at once is more than the limit; the message says which op, how many bytes, what would do."""


R = TypeVar("R", bound=Movable)
X = TypeVar("X", bound=Movable, contravariant=True)


class ResidencyError(RuntimeError):
    """A move that is none of the picture's (`Where`): a defect of whoever asked for it."""


class Evictor(Protocol[X]):
    """Who makes room, and how its bytes come back, where that is not the least recently used by way of the host."""

    def evict(self, size: int, keep: Sequence[X]) -> bool:
        """Send something away that is not to be kept, so many bytes at best; return whether there was any."""

    def bury(self) -> None:
        """Look at what died, which is off the books by now."""


class LimitedMemory(Generic[R]):
    """What moves between the device and the host.

    Parameters
    ----------
    engine : Mover
    pointers : Emptier
    limit : int
        Bytes that may be on the device at once.

    `held` are the bytes on the device now, `peak` the most since `begin`, `pinned` those that cannot move; `alive` are
    all, wherever they are, `least` the fewest since `begin`.
    """

    no_memory: tuple[type[Exception], ...] = (MemoryError,)  # what is raised where the device, or the host, has none

    def __init__(self, engine: Mover, pointers: Emptier, limit: int = UNLIMITED) -> None:
        self.engine, self.pointers, self.limit = engine, pointers, limit
        self.dead: deque[R] = deque()  # until somebody buries them
        self.buried: Callable[[R], None] | None = None  # told of each
        self.here: OrderedDict[R, None] = OrderedDict()  # least recently used first
        self.held = self.peak = self.pinned = self.alive = self.least = 0
        self.counts = Counts()
        self.pressed = False  # whether what is asked for makes room as well: bytes would be lost else
        self.policy: Evictor[R] | None = None
        self.recover: Callable[[R], None] = lambda cell: None  # makes what has a recipe only
        self.stumbled: Callable[[str, Exception], None] = lambda what, error: None  # told what was tried again, and why

    def begin(self) -> None:
        """Count anew, from now on."""
        self.bury()
        self.peak, self.least, self.counts = self.held, self.alive, Counts()

    def arrive(self, cell: R) -> None:
        """Take note of one that is on the device, and was not known before."""
        self.here[cell] = None
        self.held += cell.size
        self.alive += cell.size
        self.pinned += cell.size * bool(cell.pinned)

    def pin(self, cell: R, by: str) -> None:
        """Leave one that is on the device there from now on, for whom `by` names."""
        if cell.where is not DEVICE:
            raise ResidencyError(f"{cell!r} is not on the device, and so cannot be pinned by {by}")
        if not cell.pinned:
            cell.pinned = by
            self.pinned += cell.size

    def bury(self) -> None:
        """Take the dead off the books."""
        while self.dead:
            cell = self.dead.popleft()
            self.alive -= cell.size
            if cell.where is DEVICE:
                del self.here[cell]
                self.held -= cell.size
                self.pinned -= cell.size * bool(cell.pinned)
            self.forget(cell)
            cell.maker = None  # or makers of makers would be kept for ever, where a loop carries a value on
            if cell.recipe is not None:
                cell.recipe.done()
            if self.buried is not None:
                self.buried(cell)
        if self.policy is not None:
            self.policy.bury()
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
        used = self.here.move_to_end
        for cell in cells:
            if cell.where is DEVICE:
                used(cell)
                if (copy := cell.copy) is not None and copy.in_flight:
                    self.settle(cell)
            else:
                missing = True
        away = self._remade(cells) if missing else 0
        if self.held + away + fresh > self.limit:
            self.room(away + fresh, cells, what)
        if missing:
            for cell in cells:
                if cell.where is not DEVICE:
                    self.bring(cell, cells)
                    self.settle(cell)
            for cell in cells:  # as the op has them, whoever was here
                used(cell)

    def _remade(self, cells: Sequence[R]) -> int:
        """Make those that have a recipe only, which may send others away; return how many bytes are to come back."""
        for cell in cells:
            if cell.where is not DEVICE:
                self.counts.misses += cell.where is not NOTHING
                if cell.where is RECIPE:
                    self.recover(cell)
        return sum(cell.size for cell in cells if cell.where is not DEVICE)

    def room(self, size: int, keep: Sequence[R] = (), what: str = "") -> None:
        """Make room, by sending away what was not used for longest, or as the policy says.

        While something is made again all goes to the host: what is made, or read for it, is to be there until the end.
        """
        self.bury()
        policy = None if self.pressed else self.policy
        evict = self.evict_coldest if policy is None else policy.evict
        while self.held + size > self.limit:
            if not evict(self.held + size - self.limit, keep):
                raise LimitError(self._too_much(size, keep, what))
            self.bury()

    def evict_coldest(self, size: int, keep: Sequence[R]) -> bool:
        """Send so many bytes to the host of what was not used for longest; return whether there were any."""
        victims = self._coldest(size, keep)
        for cell in victims:
            self._evict(cell)
        return bool(victims)

    def _evict(self, cell: R) -> None:
        self.counts.evictions += 1
        self.release(cell)

    def _coldest(self, size: int, keep: Sequence[R]) -> list[R]:
        """So many bytes of those that were not used for longest, or all there are; what has no bytes frees none."""
        found: list[R] = []
        kept = {*keep}
        for asked in (False, True) if self.pressed else (False,):  # what somebody may read unseen goes last
            for cell in self.here:
                if size <= 0:
                    return found
                if cell.size and not cell.pinned and bool(cell.asked) is asked and cell not in kept:
                    found.append(cell)
                    size -= cell.size
        return found

    def _too_much(self, size: int, keep: Sequence[R], what: str) -> str:
        needs, kept = self.held + size, {*keep}
        others = [cell for cell in self.here if cell not in kept]
        stuck = sum(cell.size for cell in others) + self.held - sum(cell.size for cell in self.here)
        by = ", ".join(sorted({cell.pinned for cell in others if cell.pinned}))
        pinned = f", {human(stuck)} of it in storages that cannot move{f' ({by})' if by else ''}" if stuck else ""
        whose, hint = self.told(what)
        return (
            f"{what or 'this'}{whose} holds {human(needs)} at once{pinned}, the limit is {human(self.limit)}; "
            f"the least limit that would do for it is {exact(needs)}{hint}"
        )

    def told(self, what: str) -> tuple[str, str]:
        """What to say of an op that needs too much: whose it is, and what would help."""
        return "", ""

    def wrote(self, cells: Iterable[R]) -> None:
        """Cells have new bytes: what the host has of them is old."""
        for cell in cells:
            cell.version += 1
            if cell.copy is not None:
                self.forget(cell)

    def secure(self, cells: Sequence[R]) -> None:
        """Make now what could no longer be made once cells are written; from here on nothing is to be made of them."""
        for cell in cells:
            for other in [*cell.feeds] if cell.feeds else ():
                if other.where is RECIPE:
                    self.bring(other)
        if self.policy is not None:  # room for the write comes later: what goes for it may be made of what is written
            for cell in cells:
                cell.version += 1

    # moves

    def out(self, cell: R) -> None:
        """Begin to copy a cell to the host, unless the host has it."""
        storage = cell.storage
        if cell.copy is None and cell.where is DEVICE and not cell.pinned and cell.version and storage is not None:
            cell.copy = HostCopy(self._again("a copy to the host", self.engine.out, storage))
            self.counts.out += cell.size

    def release(self, cell: R) -> None:
        """Give a cell's memory on the device back; the host has the bytes, if anybody wrote them."""
        storage = cell.storage
        if cell.where is not DEVICE or cell.pinned or storage is None:
            return
        if cell.copy is not None:
            cell.copy.drop_on_return = False  # it comes back once more
        self.out(cell)
        self.settle(cell)
        self.pointers.empty(storage)
        self._gone(cell, HOST if cell.version else NOTHING)

    def drop(self, cell: R, recipe: Any) -> None:
        """Give a cell's memory on the device back; its recipe makes the bytes again."""
        storage = cell.storage
        if cell.where is not DEVICE or cell.pinned or cell.copy is not None or storage is None:
            raise ResidencyError(f"{cell!r} cannot be dropped: it is pinned, away, or the host has it")
        cell.recipe = recipe  # first, so that a Ctrl-C after the next line loses nothing
        try:
            self.pointers.empty(storage)
        except Exception:
            cell.recipe = None
            raise
        self._gone(cell, RECIPE)

    def _gone(self, cell: R, where: Where) -> None:
        """A cell is on the device no longer; its bytes are where that says."""
        there = {HOST: cell.copy is not None, RECIPE: cell.recipe is not None, NOTHING: not cell.version}
        if cell.where is not DEVICE or not there.get(where):
            raise ResidencyError(f"{cell!r} went from {cell.where.value} to {where.value}, where it has no bytes")
        cell.where = where
        del self.here[cell]
        self.held -= cell.size

    def bring(self, cell: R, keep: Sequence[R] = ()) -> None:
        """Give a cell its memory and bytes back; where the device has none left, of others than `keep`."""
        storage = cell.storage
        if cell.where is DEVICE or storage is None:
            return
        if cell.where is RECIPE:
            self.recover(cell)
            return
        self._fill(cell, storage, keep)
        if cell.copy is not None:
            try:
                self._again("a copy to the device", self.engine.back, storage, cell.copy.data)
            except BaseException:
                self.pointers.empty(storage)
                raise
            cell.copy.in_flight = True
            self.counts.back += cell.size
        self.landed(cell)

    def _fill(self, cell: R, storage: Any, keep: Sequence[R]) -> None:
        """Give a storage memory; where that is refused, within the limit or not, after others have lost theirs."""
        while True:
            try:
                self._again("memory for what comes back", self.pointers.fill, storage, cell.size)
                return
            except self.no_memory:
                if not self.squeeze(keep):
                    raise

    def _again(self, what: str, move: Callable[..., Any], *operands: Any) -> Any:
        """Move, and once more where that failed: nothing is lost by it, and a failure that stays comes out."""
        try:
            return move(*operands)
        except Exception as error:
            self.stumbled(what, error)
            return move(*operands)

    def squeeze(self, keep: Sequence[R] = ()) -> bool:
        """Send away what was not used for longest, as the device has no memory left; return whether there was any."""
        victim = next((x for x in self.here if not (x.pinned or x.asked) and x not in keep and x.size), None)
        if victim is not None:
            self._evict(victim)
        return victim is not None

    def landed(self, cell: R) -> None:
        """A cell is on the device again."""
        if cell.where is DEVICE:
            raise ResidencyError(f"{cell!r} is on the device already")
        cell.where = DEVICE
        if cell.recipe is not None:
            cell.recipe.done()
        self.here[cell] = None
        self.held += cell.size
        self.note()

    def settle(self, cell: R) -> None:
        """Let what computes next wait for a copy under way."""
        copy = cell.copy
        if copy is None:
            return
        if copy.in_flight:
            self.engine.settle(copy.data)
            copy.in_flight = False
        if copy.drop_on_return and cell.where is DEVICE:
            self.forget(cell)

    def forget(self, cell: R) -> None:
        """Give the host's copy back."""
        copy, cell.copy = cell.copy, None
        if copy is not None:
            self.engine.drop(copy.data)
