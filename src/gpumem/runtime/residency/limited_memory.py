"""What is on the device: residency under a memory limit, whatever a plan says.

What may move is a `Movable`: a storage of PyTorch's, a block of a program, an array. An engine and its pointers say
how its bytes move.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from gpumem.base.units import exact, human
from gpumem.runtime.residency.environment import Counts, Emptier, HostCopy, Movable, Mover, Where

UNLIMITED = 2**62  # bytes: more than any device has, and sums of it with sizes stay in 64 bits
DEVICE, HOST, RECIPE, NOTHING = Where


class LimitError(MemoryError):
    """What an op must hold at once is more than the limit; the message says which op, how many bytes, what would do."""


R = TypeVar("R", bound=Movable)
X = TypeVar("X", bound=Movable, contravariant=True)


class ResidencyError(RuntimeError):
    """A move that the picture of `Where` does not have: a defect of the caller."""


class Evictor(Protocol[X]):
    """Chooses what is evicted, and whether it is copied or recomputed; without one, the least recently used goes."""

    def evict(self, size: int, keep: Sequence[X]) -> bool:
        """Evict cells that are not in `keep`, `size` bytes if there are so many; return whether any was evicted."""

    def reap(self) -> None:
        """Forget what died; the memory no longer counts it."""


class LimitedMemory(Generic[R]):
    """What moves between the device and the host.

    Parameters
    ----------
    engine : Mover
    pointers : Emptier
    limit : int
        Bytes that may be on the device at once.

    `held` are the bytes on the device now, `peak` the most since `begin`, `pinned` those that cannot move; `alive` are
    those of all cells, wherever they are, `least` the fewest of these since `begin`.
    """

    no_memory: tuple[type[Exception], ...] = (MemoryError,)  # what is raised where the device, or the host, has none

    def __init__(self, engine: Mover, pointers: Emptier, limit: int = UNLIMITED) -> None:
        self.engine, self.pointers, self.limit = engine, pointers, limit
        self.dead: deque[R] = deque()  # until `reap`: finalizers run anywhere, so they only append
        self.on_reaped: Callable[[R], None] | None = None  # called with each dead cell
        self.on_device: OrderedDict[R, None] = OrderedDict()  # least recently used first
        self.held = self.peak = self.pinned = self.alive = self.least = 0
        self.counts = Counts()
        self.recomputing = False  # if True, what is exposed may be evicted: else there may be no space to recompute
        self.policy: Evictor[R] | None = None
        self.recover: Callable[[R], None] = lambda cell: None  # recomputes what is in RECIPE
        self.on_retry: Callable[[str, Exception], None] = lambda what, error: None  # what is retried, and why

    def begin(self) -> None:
        """Start the counts and peaks from now."""
        self.reap()
        self.peak, self.least, self.counts = self.held, self.alive, Counts()

    def arrive(self, cell: R) -> None:
        """Take note of a new cell, which is on the device."""
        self.on_device[cell] = None
        self.held += cell.size
        self.alive += cell.size
        self.pinned += cell.size * bool(cell.pinned)

    def pin(self, cell: R, by: str) -> None:
        """Keep a cell on the device from now on; `by` says for whom."""
        if cell.where is not DEVICE:
            raise ResidencyError(f"{cell!r} is not on the device, and so cannot be pinned by {by}")
        if not cell.pinned:
            cell.pinned = by
            self.pinned += cell.size

    def reap(self) -> None:
        """No longer count what died."""
        while self.dead:
            cell = self.dead.popleft()
            self.alive -= cell.size
            if cell.where is DEVICE:
                del self.on_device[cell]
                self.held -= cell.size
                self.pinned -= cell.size * bool(cell.pinned)
            self.forget(cell)
            cell.maker = None  # a loop that carries a value on would keep makers of makers for ever
            if cell.recipe is not None:
                cell.recipe.done()
            if self.on_reaped is not None:
                self.on_reaped(cell)
        if self.policy is not None:
            self.policy.reap()
        self.least = min(self.least, self.alive)

    def note(self) -> None:
        """Raise `peak` to what is held, if that is more."""
        if self.held > self.peak:
            self.peak = self.held

    def charge(self, size: int) -> None:
        """Count bytes on the device that belong to no cell; a negative size takes them off."""
        self.held += size
        self.note()

    # before an op

    def ensure_resident(self, cells: Sequence[R], fresh: int, what: str) -> None:
        """Bring an op's cells to the device, with `fresh` free bytes beside them for what it allocates.

        Cells on the device become the most recently used. Others are evicted for the bytes that are missing; where
        that is not enough, `LimitError` says which op `what` is, and what it needs.
        """
        missing = False  # not a sum of bytes: a block may have none
        mark_used = self.on_device.move_to_end
        for cell in cells:
            if cell.where is DEVICE:
                mark_used(cell)
                if (copy := cell.copy) is not None and copy.in_flight:
                    self.wait_for_copy(cell)
            else:
                missing = True
        returning = self._recompute_missing(cells) if missing else 0
        if self.held + returning + fresh > self.limit:
            self.evict_for(returning + fresh, cells, what)
        if missing:
            for cell in cells:
                if cell.where is not DEVICE:
                    self.bring(cell, cells)
                    self.wait_for_copy(cell)
            for cell in cells:  # in the op's order, whichever were on the device before
                mark_used(cell)

    def _recompute_missing(self, cells: Sequence[R]) -> int:
        """Recompute cells that are in RECIPE, which may evict others; return how many bytes are still to come back."""
        for cell in cells:
            if cell.where is not DEVICE:
                self.counts.misses += cell.where is not NOTHING
                if cell.where is RECIPE:
                    self.recover(cell)
        return sum(cell.size for cell in cells if cell.where is not DEVICE)

    def evict_for(self, size: int, keep: Sequence[R] = (), what: str = "") -> None:
        """Evict until `size` bytes are free: the least recently used first, or as the policy says.

        During a recomputation all goes to the host by recency: a policy could drop what that made or reads.
        """
        self.reap()
        policy = None if self.recomputing else self.policy
        evict = self.evict_least_recently_used if policy is None else policy.evict
        while self.held + size > self.limit:
            if not evict(self.held + size - self.limit, keep):
                raise LimitError(self._too_much(size, keep, what))
            self.reap()

    def evict_least_recently_used(self, size: int, keep: Sequence[R]) -> bool:
        """Evict the least recently used to the host, at least `size` bytes; return whether there were any."""
        victims = self._coldest(size, keep)
        for cell in victims:
            self._evict(cell)
        return bool(victims)

    def _evict(self, cell: R) -> None:
        self.counts.evictions += 1
        self.release(cell)

    def _coldest(self, size: int, keep: Sequence[R]) -> list[R]:
        """Return the least recently used, `size` bytes or all that may go; cells of no bytes are passed over."""
        victims: list[R] = []
        kept = {*keep}
        for exposed in (False, True) if self.recomputing else (False,):  # what may be read unseen goes last
            for cell in self.on_device:
                if size <= 0:
                    return victims
                if cell.size and not cell.pinned and bool(cell.exposed) is exposed and cell not in kept:
                    victims.append(cell)
                    size -= cell.size
        return victims

    def _too_much(self, size: int, keep: Sequence[R], what: str) -> str:
        needs, kept = self.held + size, {*keep}
        others = [cell for cell in self.on_device if cell not in kept]
        stuck = sum(cell.size for cell in others) + self.held - sum(cell.size for cell in self.on_device)
        by = ", ".join(sorted({cell.pinned for cell in others if cell.pinned}))
        pinned = f", {human(stuck)} of it in storages that cannot move{f' ({by})' if by else ''}" if stuck else ""
        whose, hint = self.advice(what)
        return (
            f"{what or 'this'}{whose} holds {human(needs)} at once{pinned}, the limit is {human(self.limit)}; "
            f"the least limit that would do for it is {exact(needs)}{hint}"
        )

    def advice(self, what: str) -> tuple[str, str]:
        """Return whose the op is that needs too much, and what would help, as parts of the error."""
        return "", ""

    def wrote(self, cells: Iterable[R]) -> None:
        """Note that cells have new bytes: the host's copies of them are old."""
        for cell in cells:
            cell.version += 1
            if cell.copy is not None:
                self.forget(cell)

    def recompute_dependents(self, cells: Sequence[R]) -> None:
        """Recompute now what depends on cells that are about to be written; nothing is recomputed from them after."""
        for cell in cells:
            for other in [*cell.dependents] if cell.dependents else ():
                if other.where is RECIPE:
                    self.bring(other)
        # The write's own evictions come later: a policy must not drop then what would be recomputed from these cells.
        if self.policy is not None:
            for cell in cells:
                cell.version += 1

    # moves

    def out(self, cell: R) -> None:
        """Begin to copy a cell to the host, unless the host has it."""
        storage = cell.storage
        if cell.copy is None and cell.where is DEVICE and not cell.pinned and cell.version and storage is not None:
            cell.copy = HostCopy(self._retry("a copy to the host", self.engine.out, storage))
            self.counts.out += cell.size

    def release(self, cell: R) -> None:
        """Free a cell's memory on the device; the host has the bytes, if anything wrote them."""
        storage = cell.storage
        if cell.where is not DEVICE or cell.pinned or storage is None:
            return
        if cell.copy is not None:
            cell.copy.drop_copy_on_return = False  # else the wait below would give back the only copy
        self.out(cell)
        self.wait_for_copy(cell)
        self.pointers.empty(storage)
        self._left_device(cell, HOST if cell.version else NOTHING)

    def drop(self, cell: R, recipe: Any) -> None:
        """Free a cell's memory on the device; its recipe recomputes the bytes."""
        storage = cell.storage
        if cell.where is not DEVICE or cell.pinned or cell.copy is not None or storage is None:
            raise ResidencyError(f"{cell!r} cannot be dropped: it is pinned, off the device, or the host has it")
        cell.recipe = recipe  # first, so that a Ctrl-C after the next line loses nothing
        try:
            self.pointers.empty(storage)
        except Exception:
            cell.recipe = None
            raise
        self._left_device(cell, RECIPE)

    def _left_device(self, cell: R, where: Where) -> None:
        """Note that a cell is no longer on the device, and where its bytes are."""
        possible = {HOST: cell.copy is not None, RECIPE: cell.recipe is not None, NOTHING: not cell.version}
        if cell.where is not DEVICE or not possible.get(where):
            raise ResidencyError(f"{cell!r} went from {cell.where.value} to {where.value}, where it has no bytes")
        cell.where = where
        del self.on_device[cell]
        self.held -= cell.size

    def bring(self, cell: R, keep: Sequence[R] = ()) -> None:
        """Bring a cell's bytes back to the device; if no memory is left there, others than `keep` are evicted."""
        storage = cell.storage
        if cell.where is DEVICE or storage is None:
            return
        if cell.where is RECIPE:
            self.recover(cell)
            return
        self._fill(cell, storage, keep)
        if cell.copy is not None:
            try:
                self._retry("a copy to the device", self.engine.back, storage, cell.copy.data)
            except BaseException:
                self.pointers.empty(storage)
                raise
            cell.copy.in_flight = True
            self.counts.back += cell.size
        self.landed(cell)

    def _fill(self, cell: R, storage: Any, keep: Sequence[R]) -> None:
        """Allocate a storage's memory; each time the device refuses twice in a row, evict one more cell."""
        while True:
            try:
                self._retry("memory for what comes back", self.pointers.fill, storage, cell.size)
                return
            except self.no_memory:
                if not self.evict_one(keep):
                    raise

    def _retry(self, what: str, move: Callable[..., Any], *operands: Any) -> Any:
        """Call `move`; if it fails, report that and call it once more. A second failure is raised."""
        try:
            return move(*operands)
        except Exception as error:
            self.on_retry(what, error)
            return move(*operands)

    def evict_one(self, keep: Sequence[R] = ()) -> bool:
        """Evict the least recently used, as the device has no memory left; return whether there was one."""
        candidates = (cell for cell in self.on_device if not (cell.pinned or cell.exposed) and cell.size)
        victim = next((cell for cell in candidates if cell not in keep), None)
        if victim is not None:
            self._evict(victim)
        return victim is not None

    def landed(self, cell: R) -> None:
        """Note that a cell is on the device again."""
        if cell.where is DEVICE:
            raise ResidencyError(f"{cell!r} is on the device already")
        cell.where = DEVICE
        if cell.recipe is not None:
            cell.recipe.done()
        self.on_device[cell] = None
        self.held += cell.size
        self.note()

    def wait_for_copy(self, cell: R) -> None:
        """Let what computes next wait for a copy in flight; free a host copy that was kept only until its return."""
        copy = cell.copy
        if copy is None:
            return
        if copy.in_flight:
            self.engine.wait_for_copy(copy.data)
            copy.in_flight = False
        if copy.drop_copy_on_return and cell.where is DEVICE:
            self.forget(cell)

    def forget(self, cell: R) -> None:
        """Free the copy on the host."""
        copy, cell.copy = cell.copy, None
        if copy is not None:
            self.engine.drop(copy.data)
