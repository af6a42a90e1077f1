"""Storages within a limit: a limited memory of PyTorch's storages, known by the tensors that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gpumem.runtime.residency.limited_memory import UNLIMITED, LimitedMemory
from gpumem.torch.internals import _disable_current_modes, torch
from gpumem.torch.run.cells import Cell, Cells
from gpumem.torch.run.engines import Engine, Pointers, has_memory
from gpumem.torch.step.workload import WorkloadError


@contextmanager
def quietly(gradients: bool = False) -> Iterator[None]:
    """Run ops of our own, which no mode of the user's is to see; some do more where gradients are enabled."""
    with torch._C.DisableTorchFunction(), torch.set_grad_enabled(gradients):
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes():
                yield
        else:
            yield


class Memory(Cells, LimitedMemory[Cell]):
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
    """

    engine: Engine
    pointers: type[Pointers]

    def __init__(self, device: str, engine: Engine, pointers: type[Pointers], limit: int = UNLIMITED) -> None:
        Cells.__init__(self)
        LimitedMemory.__init__(self, engine, pointers, limit)
        self.device = device
        self.module: Callable[[], str] = lambda: ""  # whose op it is that runs now

    def manages(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device."""
        return str(tensor.device.type) == self.device

    def meet(self, tensors: Iterable[torch.Tensor]) -> None:
        """Know of tensors before an op touches them: they take their part of the limit."""
        self.of([x for x in tensors if self.manages(x)])
        self.note()

    def resized(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take note of storages that may have another size by now."""
        for cell in self.of([*tensors]):
            self.measured(cell)

    def measured(self, cell: Cell) -> None:
        """Take note of the size that a storage on the device has."""
        storage = cell.storage
        if storage is None or not cell.here or storage.nbytes() == cell.size:
            return
        more = storage.nbytes() - cell.size
        self.held += more
        self.alive += more
        self.fixed += more * cell.fixed
        cell.size += more
        self.note()

    def reconcile(self) -> None:
        """Believe the storages and not the books, which a Ctrl-C between two lines may have left behind."""
        for cell in [*self.by_key.values()]:
            storage = cell.storage
            if storage is None or not cell.size:
                continue
            elsewhere = cell.copy is not None or cell.again is not None  # else the device has the only bytes there are
            if cell.here and elsewhere and not has_memory(storage):
                cell.here = False
                self.held -= cell.size
            if cell.here:
                self.here[cell] = None
            else:
                self.here.pop(cell, None)

    def arrived(self, cell: Cell, place: torch.device) -> None:
        if place.type == "meta":  # though its tensor says that it is on the device
            raise WorkloadError("a FakeTensor within a managed run has no bytes; leave FakeTensorMode before it")
        if place != self.engine.place:
            raise WorkloadError(
                f"a tensor on {place}: {self.engine.place} is managed, and one device at a time; keep the step on that "
                "one, or make another current before managed() is called"
            )
        self.arrive(cell)

    def dying(self, cell: Cell) -> None:
        """Let what computes next, perhaps in this memory, wait for the copy."""
        self.engine.settle(cell.copy)

    def told(self, what: str) -> tuple[str, str]:
        module, lists = self.module(), "_foreach" in what or "_fused" in what
        hint = "; its optimizer with foreach=False, or a smaller chunk, holds less" if lists else ""
        return f" in {module}" if module else "", hint
