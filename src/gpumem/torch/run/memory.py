"""Who is on the device: residency of storages within a limit, whatever a plan says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gpumem.torch._torch import _disable_current_modes, torch
from gpumem.torch.run.cells import Cell, Cells
from gpumem.torch.run.engines import Engine, Pointers
from gpumem.torch.workload import WorkloadError
from gpumem.units import exact, human

UNLIMITED = 2**62


class LimitError(MemoryError):
    """What an op must hold at once is more than the limit; the message says which op, how many bytes, what would do."""


@dataclass(slots=True)
class Counts:
    """What was done in an iteration; bytes and numbers."""

    out: int = 0
    back: int = 0
    again: int = 0
    misses: int = 0
    evictions: int = 0


@contextmanager
def quietly(gradients: bool = False) -> Iterator[None]:
    """Run ops of our own, which no mode of the user's is to see; some do more where gradients are enabled."""
    with torch._C.DisableTorchFunction(), torch.set_grad_enabled(gradients):
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes():
                yield
        else:
            yield


class Memory(Cells):
    """Storages that move between the device and the host.

    Parameters
    ----------
    device : str
        Type of the device.
    engine : Engine
    pointers : Swapped or Resized
        How a storage loses its memory and gets it back.
    limit : int
        Bytes that storages may hold on the device at once.

    `held` are the bytes on the device now, `peak` the most since `begin`, `fixed` those that cannot move; `alive` are
    all, wherever they are, `least` the fewest since `begin`.
    """

    def __init__(self, device: str, engine: Engine, pointers: type[Pointers], limit: int = UNLIMITED) -> None:
        super().__init__()
        self.device = device
        self.engine, self.pointers, self.limit = engine, pointers, limit
        self.here: OrderedDict[Cell, None] = OrderedDict()  # least recently used first
        self.held = self.peak = self.fixed = self.alive = self.least = 0
        self.counts = Counts()
        self.recover: Callable[[Cell], None] = lambda cell: None  # makes again what has no copy
        self.module: Callable[[], str] = lambda: ""  # whose op it is that runs now

    def manages(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device."""
        return str(tensor.device.type) == self.device

    def meet(self, tensors: Iterable[torch.Tensor]) -> None:
        """Know of tensors before an op touches them: they take their part of the limit."""
        self.of([x for x in tensors if self.manages(x)])
        self.note()

    def begin(self) -> None:
        """Count anew, from now on."""
        self.bury()
        self.peak, self.least, self.counts = self.held, self.alive, Counts()

    def arrived(self, cell: Cell, place: torch.device) -> None:
        if place.type == "meta":  # though its tensor says that it is on the device
            raise WorkloadError("a FakeTensor within a managed run has no bytes; leave FakeTensorMode before it")
        if place != self.engine.place:
            raise WorkloadError(
                f"a tensor on {place}: {self.engine.place} is managed, and one device at a time; keep the step on that "
                "one, or make another current before managed() is called"
            )
        self.here[cell] = None
        self.held += cell.size
        self.alive += cell.size
        self.fixed += cell.size * cell.fixed

    def fix(self, cell: Cell) -> None:
        """Leave a cell where it is from now on, which is on the device."""
        if not cell.fixed:
            cell.fixed = True
            self.fixed += cell.size

    def dying(self, cell: Cell) -> None:
        """Let what computes next, perhaps in this memory, wait for the copy."""
        self.engine.settle(cell.copy)

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

    def ready(self, cells: Sequence[Cell], fresh: int, what: str) -> None:
        """Let cells be on the device, with room for so many bytes beside them."""
        away = 0
        for cell in cells:
            if cell.here:
                self.here.move_to_end(cell)
                if cell.coming:
                    self.settle(cell)
            else:
                away += cell.size
        if away:
            away = self._remade(cells)
        if self.held + away + fresh > self.limit:
            self.room(away + fresh, cells, what)
        if away:
            for cell in cells:
                if not cell.here:
                    self.bring(cell)
                    self.settle(cell)

    def _remade(self, cells: Sequence[Cell]) -> int:
        """Make those again that have no copy, which may send others away; return how many bytes are to come back."""
        for cell in cells:
            if not cell.here:
                self.counts.misses += 1
                if cell.again is not None:
                    self.recover(cell)
        return sum(cell.size for cell in cells if not cell.here)

    def room(self, size: int, keep: Sequence[Cell] = (), what: str = "") -> None:
        """Make room, by sending away what was not used for longest."""
        self.bury()
        if self.held + size <= self.limit:
            return
        for cell in [*self.here]:
            if self.held + size <= self.limit:
                return
            if not cell.fixed and cell not in keep and cell.here:
                self.counts.evictions += 1
                self.release(cell)
        self.bury()
        if self.held + size > self.limit:
            raise LimitError(self._too_much(size, keep, what))

    def _too_much(self, size: int, keep: Sequence[Cell], what: str) -> str:
        needs = self.held + size
        others = self.held - sum(cell.size for cell in keep if cell.here)
        fixed = f", {human(others)} of it in storages that cannot move" if others else ""
        many = (
            "; its optimizer with foreach=False, or a smaller chunk, holds less"
            if "_foreach" in what or "_fused" in what
            else ""
        )
        whose = f" in {module}" if (module := self.module()) else ""
        return (
            f"{what or 'this'}{whose} holds {human(needs)} at once{fixed}, the limit is {human(self.limit)}; "
            f"the least limit that would do for it is {exact(needs)}{many}"
        )

    def wrote(self, cells: Iterable[Cell]) -> None:
        """Cells have new bytes: what the host has of them is old."""
        for cell in cells:
            cell.version += 1
            if cell.copy is not None:
                self.forget(cell)

    def secure(self, cells: Iterable[Cell]) -> None:
        """Make again what could no longer be, once cells are written."""
        for cell in cells:
            for other in [*cell.feeds] if cell.feeds else ():
                if other.again is not None and not other.here:
                    self.bring(other)

    # moves

    def out(self, cell: Cell) -> None:
        """Begin to copy a cell to the host, unless the host has it."""
        storage = cell.storage
        if cell.copy is None and cell.here and not cell.fixed and storage is not None:
            cell.copy = self.engine.out(storage)
            cell.coming = True
            self.counts.out += cell.size

    def release(self, cell: Cell) -> None:
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

    def bring(self, cell: Cell) -> None:
        """Give a cell its memory and bytes back."""
        storage = cell.storage
        if cell.here or storage is None:
            return
        if cell.again is not None:
            self.recover(cell)
            return
        self.pointers.fill(storage, cell.size)
        self.engine.back(storage, cell.copy)
        cell.coming = True
        self.counts.back += cell.size
        self.landed(cell)

    def landed(self, cell: Cell) -> None:
        """A cell is on the device again."""
        cell.here = True
        self.here[cell] = None
        self.held += cell.size
        self.note()

    def settle(self, cell: Cell) -> None:
        """Let what computes next wait for a copy under way."""
        if cell.coming and cell.copy is not None:
            self.engine.settle(cell.copy)
        cell.coming = False
        if cell.once and cell.here:
            self.forget(cell)

    def forget(self, cell: Cell) -> None:
        """Give the host's copy back."""
        if cell.copy is not None:
            self.engine.drop(cell.copy)
        cell.copy, cell.coming, cell.once = None, False, False
