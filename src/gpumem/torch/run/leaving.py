"""What becomes of storages when a run is left: all back on the device, or on the host.

Nothing here may stop half-way: a tensor that is left without memory ends the process where it is read next.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable
from typing import Any

from gpumem.base.units import human
from gpumem.runtime.residency.limited_memory import UNLIMITED
from gpumem.torch.internals import torch
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.engines import pointer
from gpumem.torch.run.memory import Memory, quietly


def restore(memory: Memory) -> list[str]:
    """Bring everything back, and give up what the host has of it; return what is to be said.

    What cannot come back, as the device has no memory left, is a tensor of the host from then on.
    """
    memory.reconcile()
    before, memory.limit = memory.limit, UNLIMITED
    try:
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
    finally:
        memory.limit = before


def _brought(memory: Memory, cells: Iterable[Cell]) -> list[tuple[Cell, str]]:
    """Bring cells back one by one; return those that did not come, and why."""
    why: dict[Cell, str] = {}
    for cell in cells:
        try:
            memory.ready([cell], 0, "leaving")
        except Exception as error:  # the next one may come all the same
            why[cell] = f"{type(error).__name__}: {error}"
    # one that came may have left again, where the device had no memory for the next
    return [(cell, why.get(cell, "no memory")) for cell in memory.by_key.values() if not cell.here]


def to_host(memory: Memory) -> list[str]:
    """Leave on the host what Python's tensors hold: each of them is there from then on; the rest is brought back."""
    memory.reconcile()
    notes = _moved(memory, {cell for cell in memory.by_key.values() if not cell.fixed})
    memory.bury()
    return notes + restore(memory)


def _moved(memory: Memory, cells: set[Cell]) -> list[str]:
    """Let Python's tensors of some cells be tensors of the host."""
    homes: dict[Cell, torch.UntypedStorage] = {}
    notes: dict[str, None] = {}
    with quietly():
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
    if cell.copy is None and not cell.here:
        memory.ready([cell], 0, "leaving")
    memory.out(cell)
    found = memory.engine.bytes_of(cell.copy)
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
