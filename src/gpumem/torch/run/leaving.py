"""What becomes of storages when a run is left: all back on the device, or on the host."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from gpumem.live.residency import UNLIMITED
from gpumem.torch._torch import torch
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.memory import Memory, quietly


def restore(memory: Memory) -> None:
    """Bring everything back, and give up what the host has of it."""
    before, memory.limit = memory.limit, UNLIMITED
    try:
        for cell in [*memory.by_key.values()]:
            memory.ready([cell], 0, "leaving")
        for cell in [*memory.by_key.values()]:
            memory.settle(cell)
            memory.forget(cell)
    finally:
        memory.limit = before


def to_host(memory: Memory) -> None:
    """Leave on the host what Python's tensors hold: each of them is there from then on; the rest is brought back."""
    homes: dict[Cell, torch.UntypedStorage] = {}
    with quietly():
        for x in _tensors():
            cell = memory.known(x) if memory.manages(x) and x.layout is torch.strided else None
            if cell is None or cell.fixed:
                continue
            if cell not in homes:
                homes[cell] = _home(memory, cell)
            x.data = torch.empty(0, dtype=x.dtype).set_(homes[cell], x.storage_offset(), x.size(), x.stride())
    memory.bury()
    restore(memory)


def _home(memory: Memory, cell: Cell) -> torch.UntypedStorage:
    """The bytes of a cell in the host's ordinary memory."""
    if cell.copy is None and not cell.here:
        memory.ready([cell], 0, "leaving")
    memory.out(cell)
    return torch.from_numpy(np.array(memory.engine.bytes_of(cell.copy))).untyped_storage()


def _tensors() -> list[torch.Tensor]:
    found: list[Any] = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
    return found
