"""Small programs on the transparent device: what tests of it share."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem import Machine
from gpumem.runtime import Adaptive, InMemory, LiveBlock
from gpumem.simulator.machine import Link

CLOCK = Machine.named("rtx4090").with_(out=Link(0, 1.0), into=Link(0, 2.0))


def told(device: Adaptive, *kinds: str) -> list[tuple[Any, ...]]:
    """What the log says, of blocks by their numbers."""
    entries = [e for e in device.log if not kinds or e.kind in kinds]
    return [(e.kind, e.op, e.what) if e.block < 0 else (e.kind, e.op, e.block) for e in entries]


def short(environment: Any, limit: int | str, **options: Any) -> Adaptive:
    """A device for programs with short iterations."""
    return Adaptive(environment, limit, **{"planner": "heuristic", "min_length": 8, **options})


def step(device: Any, weights: list[int], size: int = 100, batch: int = 1) -> None:
    """An iteration: forward, then backward, over blocks of their own."""
    made = [device.malloc(size * batch) for _ in weights]
    for w, x in zip(weights, made):
        device.exec("forward", [w], [x], call=lambda stream, w, x: x.fill(w.sum() % 251), duration=50)
    for w, x in zip(weights[::-1], made[::-1]):
        device.exec("backward", [x, w], [w], call=lambda stream, x, w: w.__iadd__(x[:1]), duration=50)
        device.free(x)


def begin(device: Any, count: int = 4, size: int = 100) -> list[int]:
    weights = [device.malloc(size) for _ in range(count)]
    for k, w in enumerate(weights):
        device.write(w, np.full(size, k + 1, np.uint8))
    return weights


class Small(InMemory):
    """A device that has less memory than the limit."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.evict_for = room

    def fill(self, storage: LiveBlock, size: int) -> None:
        if size > self.evict_for:
            raise MemoryError(f"{size} bytes")
        super().fill(storage, size)
        self.evict_for -= size

    def empty(self, storage: LiveBlock) -> None:
        super().empty(storage)
        self.evict_for += storage.size
