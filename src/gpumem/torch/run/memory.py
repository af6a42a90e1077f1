"""Limited memory of PyTorch's storages, and how a run restores them when it ends."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

from gpumem.base.units import human
from gpumem.runtime.residency.environment import HostCopy
from gpumem.runtime.residency.limited_memory import DEVICE, HOST, RECIPE, UNLIMITED, LimitedMemory
from gpumem.torch.internals import hidden_from_modes, pointer, torch
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
        self.module: Callable[[], str] = lambda: ""  # the module whose op runs now, for error messages

    def manages(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device."""
        return str(tensor.device.type) == self.device

    def meet(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take tensors of the device on the books before an op touches them: they count against the limit."""
        self.of([tensor for tensor in tensors if self.manages(tensor)])
        self.note()

    def resized(self, tensors: Iterable[torch.Tensor]) -> None:
        """Update the sizes of storages that an op may have resized."""
        for cell in self.of([*tensors]):
            self.measured(cell)

    def measured(self, cell: Cell) -> None:
        """Update the size of a storage on the device."""
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
        """Correct the books by what storages say: a Ctrl-C between two lines may have left them inconsistent."""
        for cell in [*self.by_key.values()]:
            storage = cell.storage
            if storage is None or not cell.size:
                continue
            off_device = HOST if cell.copy is not None else RECIPE if cell.recipe is not None else None
            if cell.where is DEVICE and off_device is not None and not has_memory(storage):
                cell.where = off_device
                self.held -= cell.size
            if cell.where is DEVICE:  # also where it has no memory: then there are no other bytes to go by
                self.on_device[cell] = None
            else:
                self.on_device.pop(cell, None)

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
        """Let later ops, which may get this memory, wait for a copy from it that is in flight."""
        self.engine.wait_for_copy(copy.data)

    def forget_makers(self) -> None:
        """Recompute none of what is on the device from here on: outside of a run operands may be written unseen."""
        for cell in [*self.by_key.values()]:
            cell.maker = None

    def advice(self, what: str) -> tuple[str, str]:
        module, lists = self.module(), "_foreach" in what or "_fused" in what
        hint = "; its optimizer with foreach=False, or a smaller chunk, holds less" if lists else ""
        return f" in {module}" if module else "", hint


def restore(memory: Memory) -> list[str]:
    """Bring everything back to the device, and free the host's copies; return notes for the user.

    What cannot come back, as the device has no memory left, becomes a tensor of the host.
    """
    memory.forget_makers()
    memory.reconcile()
    with patch.object(memory, "limit", UNLIMITED):
        failed = _bring_all(memory, [*memory.by_key.values()])
        if failed:  # a recomputation needs scratch memory, which there may be now that the others are back
            failed = _bring_all(memory, [cell for cell, _ in failed])
        notes = []
        if failed:
            size, why = sum(cell.size for cell, _ in failed), failed[0][1]
            notes.append(f"{human(size)} could not come back on leaving, and are tensors of the host now: {why}")
            notes += _move_tensors(memory, {cell for cell, _ in failed})
        for cell in [*memory.by_key.values()]:
            memory.wait_for_copy(cell)
            memory.forget(cell)
        return notes


def _bring_all(memory: Memory, cells: Iterable[Cell]) -> list[tuple[Cell, str]]:
    """Bring cells back one by one; return those that are off the device all the same, and why."""
    why: dict[Cell, str] = {}
    for cell in cells:
        try:
            memory.ensure_resident([cell], 0, "leaving")
        except Exception as error:  # the next one may succeed
            why[cell] = f"{type(error).__name__}: {error}"
    # all cells, as one that came may have been evicted where the device had no memory for the next
    return [(cell, why.get(cell, "no memory")) for cell in memory.by_key.values() if cell.where is not DEVICE]


def to_host(memory: Memory) -> list[str]:
    """Make every tensor that Python knows of a tensor of the host; bring the rest back to the device."""
    memory.forget_makers()
    memory.reconcile()
    notes = _move_tensors(memory, {cell for cell in memory.by_key.values() if not cell.pinned})
    memory.reap()
    return notes + restore(memory)


def _move_tensors(memory: Memory, cells: set[Cell]) -> list[str]:
    """Make Python's tensors of some cells tensors of the host; return notes for the user."""
    on_host: dict[Cell, torch.UntypedStorage] = {}
    notes: dict[str, None] = {}
    with hidden_from_modes():
        for tensor in _all_tensors():
            try:
                managed = memory.manages(tensor) and tensor.layout is torch.strided
                cell = memory.known(tensor) if managed else None
                if cell is None or cell not in cells:
                    continue
                if cell not in on_host:
                    on_host[cell] = _copy_on_host(memory, cell)
                geometry = tensor.storage_offset(), tensor.size(), tensor.stride()
                # an inference tensor takes `data` of an inference tensor only, and others of others only
                with torch.inference_mode(tensor.is_inference()):
                    tensor.data = torch.empty(0, dtype=tensor.dtype).set_(on_host[cell], *geometry)
            except Exception as error:  # one that cannot be moved is no reason to leave the others where they are
                notes[f"a tensor stayed on the device: {type(error).__name__}: {error}"] = None
    return [*notes]


def _copy_on_host(memory: Memory, cell: Cell) -> torch.UntypedStorage:
    """Return the bytes of a cell in memory of PyTorch's own allocator: a later run may manage that."""
    if cell.copy is None and cell.where is not DEVICE:
        memory.ensure_resident([cell], 0, "leaving")
    memory.out(cell)
    assert cell.copy is not None
    copied = memory.engine.bytes_of(cell.copy.data)
    storage = torch.UntypedStorage(cell.size)
    ctypes.memmove(pointer(storage), copied.ctypes.data, cell.size)
    return storage


def _all_tensors() -> list[torch.Tensor]:
    """All tensors that Python's collector knows of; frozen objects are not listed, so they are unfrozen for that."""
    frozen = gc.get_freeze_count()
    if frozen:
        gc.collect()  # else garbage would be frozen with the rest below
        gc.unfreeze()
    tensors: list[Any] = [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]
    if frozen:
        gc.freeze()
    return tensors
