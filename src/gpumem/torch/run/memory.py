"""Storages within a limit: a limited memory of PyTorch's storages, known by the tensors that have them."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

from gpumem.base.units import human
from gpumem.runtime.residency.environment import HostCopy
from gpumem.runtime.residency.limited_memory import DEVICE, HOST, RECIPE, UNLIMITED, LimitedMemory
from gpumem.torch.internals import pointer, hidden_from_modes, torch
from gpumem.torch.run.engines import Engine, Pointers, has_memory
from gpumem.torch.step.storages import Cell, Storages
from gpumem.torch.step.workload import WorkloadError


class Memory(LimitedMemory[Cell], Storages):
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
    no_memory = (MemoryError, torch.OutOfMemoryError)

    def __init__(self, device: str, engine: Engine, pointers: type[Pointers], limit: int = UNLIMITED) -> None:
        Storages.__init__(self)
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
        if storage is None or cell.where is not DEVICE or storage.nbytes() == cell.size:
            return
        more = storage.nbytes() - cell.size
        self.held += more
        self.alive += more
        self.pinned += more * bool(cell.pinned)
        cell.size += more
        self.note()

    def reconcile(self) -> None:
        """Believe the storages and not the books, which a Ctrl-C between two lines may have left behind."""
        for cell in [*self.by_key.values()]:
            storage = cell.storage
            if storage is None or not cell.size:
                continue
            elsewhere = HOST if cell.copy is not None else RECIPE if cell.recipe is not None else None
            if cell.where is DEVICE and elsewhere is not None and not has_memory(storage):
                cell.where = elsewhere
                self.held -= cell.size
            if cell.where is DEVICE:  # the only bytes there are, if there is no other place
                self.here[cell] = None
            else:
                self.here.pop(cell, None)

    def arrived(self, cell: Cell, place: torch.device) -> None:
        if place != self.engine.place:
            if place.type == "meta":  # though its tensor says that it is on the device
                raise WorkloadError("a FakeTensor within a managed run has no bytes; leave FakeTensorMode before it")
            raise WorkloadError(
                f"a tensor on {place}: {self.engine.place} is managed, and one device at a time; keep the step on that "
                "one, or make another current before managed() is called"
            )
        self.arrive(cell)

    def dying(self, copy: HostCopy) -> None:
        """Let what computes next, perhaps in this memory, wait for the copy."""
        self.engine.settle(copy.data)

    def forget_makers(self) -> None:
        """Let nothing be made again that is there: its operands may be written where nobody sees it."""
        for cell in [*self.by_key.values()]:
            cell.maker = None

    def told(self, what: str) -> tuple[str, str]:
        module, lists = self.module(), "_foreach" in what or "_fused" in what
        hint = "; its optimizer with foreach=False, or a smaller chunk, holds less" if lists else ""
        return f" in {module}" if module else "", hint


def restore(memory: Memory) -> list[str]:
    """Bring everything back, and give up what the host has of it; return what is to be said.

    What cannot come back, as the device has no memory left, is a tensor of the host from then on.
    """
    memory.forget_makers()
    memory.reconcile()
    with patch.object(memory, "limit", UNLIMITED):
        stuck = _brought(memory, [*memory.by_key.values()])
        if stuck:  # what is made again needs room beside it, which there may be by now
            stuck = _brought(memory, [cell for cell, _ in stuck])
        notes = []
        if stuck:
            size, why = sum(cell.size for cell, _ in stuck), stuck[0][1]
            notes.append(f"{human(size)} could not come back on leaving, and are tensors of the host now: {why}")
            notes += _moved(memory, {cell for cell, _ in stuck})
        for cell in [*memory.by_key.values()]:
            memory.settle(cell)
            memory.forget(cell)
        return notes


def _brought(memory: Memory, cells: Iterable[Cell]) -> list[tuple[Cell, str]]:
    """Bring cells back one by one; return those that did not come, and why."""
    why: dict[Cell, str] = {}
    for cell in cells:
        try:
            memory.ready([cell], 0, "leaving")
        except Exception as error:  # the next one may come all the same
            why[cell] = f"{type(error).__name__}: {error}"
    # one that came may have left again, where the device had no memory for the next
    return [(cell, why.get(cell, "no memory")) for cell in memory.by_key.values() if cell.where is not DEVICE]


def to_host(memory: Memory) -> list[str]:
    """Leave on the host what Python's tensors hold: each of them is there from then on; the rest is brought back."""
    memory.forget_makers()
    memory.reconcile()
    notes = _moved(memory, {cell for cell in memory.by_key.values() if not cell.pinned})
    memory.bury()
    return notes + restore(memory)


def _moved(memory: Memory, cells: set[Cell]) -> list[str]:
    """Let Python's tensors of some cells be tensors of the host."""
    homes: dict[Cell, torch.UntypedStorage] = {}
    notes: dict[str, None] = {}
    with hidden_from_modes():
        for x in _tensors():
            try:
                cell = memory.known(x) if memory.manages(x) and x.layout is torch.strided else None
                if cell is None or cell not in cells:
                    continue
                if cell not in homes:
                    homes[cell] = _home(memory, cell)
                with torch.inference_mode(x.is_inference()):  # else it is half of one kind and half of the other
                    there = torch.empty(0, dtype=x.dtype).set_(homes[cell], x.storage_offset(), x.size(), x.stride())
                    x.data = there
            except Exception as error:  # one that cannot be moved is no reason to leave the others where they are
                notes[f"a tensor stayed on the device: {type(error).__name__}: {error}"] = None
    return [*notes]


def _home(memory: Memory, cell: Cell) -> torch.UntypedStorage:
    """The bytes of a cell in the host's ordinary memory, which is PyTorch's: it may be managed again."""
    if cell.copy is None and cell.where is not DEVICE:
        memory.ready([cell], 0, "leaving")
    memory.out(cell)
    assert cell.copy is not None
    found = memory.engine.bytes_of(cell.copy.data)
    home = torch.UntypedStorage(cell.size)
    ctypes.memmove(pointer(home), found.ctypes.data, cell.size)
    return home


def _tensors() -> list[torch.Tensor]:
    """All that Python knows of. What was frozen is not listed, so it is thawed for that; garbage goes before."""
    frozen = gc.get_freeze_count()
    if frozen:
        gc.collect()
        gc.unfreeze()
    found: list[Any] = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
    if frozen:
        gc.freeze()
    return found
