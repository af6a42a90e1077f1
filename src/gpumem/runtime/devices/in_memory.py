"""Where a transparent device runs: what moves the bytes of blocks, and runs ops on them. A class for each.

`InMemory` has bytes, `OnClock` has time; `gpumem.runtime.cuda` has both, on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpumem.runtime.residency.environment import Bytes, LiveBlock, LiveCall

POISON = 0xA5  # bytes that nothing has written: as a float32 next to 0, as an int64 absurd, so a missing copy shows


def typed(data: Any, block: LiveBlock) -> Any:
    """The bytes of a block as the array that was asked for."""
    if block.shape is None or not block.dtype:
        return data
    kind = np.dtype(block.dtype)
    count = int(np.prod(block.shape, dtype=np.int64))
    return data[: count * kind.itemsize].view(kind).reshape(block.shape)


class InMemory:
    """The host's memory plays the device's, and its hands the copy engines: everything is done at once.

    Memory that was given back is poisoned, so that whoever keeps an array of it gets other bytes.
    """

    def __init__(self) -> None:
        self.span = (-1, -1)

    def fill(self, storage: LiveBlock, size: int) -> None:
        """Take new memory."""
        storage.memory = np.full(size, POISON, np.uint8)

    def empty(self, storage: LiveBlock) -> None:
        """Give it back."""
        storage.memory[:] = POISON
        storage.memory = None

    def out(self, storage: LiveBlock) -> Bytes:
        """Copy to the host."""
        return self._timed(storage.memory.copy)  # type: ignore[no-any-return]

    def back(self, storage: LiveBlock, copy: Bytes) -> None:
        """Copy back."""
        self._timed(np.copyto, storage.memory, copy)

    def wait_for_copy(self, copy: Bytes) -> None:
        """Nothing is under way."""

    def drop(self, copy: Bytes) -> None:
        """It is freed with its last reference."""

    def lasted(self, timer: Any) -> int:
        """Nothing is timed: plans are made for a machine, and the host is none."""
        raise NotImplementedError

    def run(self, call: LiveCall | None, blocks: Sequence[LiveBlock], duration: int, timed: bool) -> None:
        """Call it."""
        if call is not None:
            self._timed(call, None, *[typed(block.memory, block) for block in blocks])

    def put(self, block: LiveBlock, data: Bytes) -> None:
        """Copy."""
        block.memory[: len(data)], block.memory[len(data) :] = data, 0

    def get(self, block: LiveBlock) -> Bytes:
        """Copy."""
        return block.memory.copy()  # type: ignore[no-any-return]

    def now(self) -> int:
        """The wall's clock."""
        return time.perf_counter_ns()

    def close(self) -> None:
        """There is nothing."""

    def _timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        begin = self.now()
        try:
            return work(*arguments)
        finally:
            self.span = (begin, self.now())
