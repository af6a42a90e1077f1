"""Where a transparent device runs: what moves the bytes of blocks, and runs ops on them. One class for each world.

`InMemory` has bytes, `OnClock` has time; `gpumem.runtime.cuda` has both, on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpumem.runtime.residency.limited_memory import Emptier, Movable, Mover
from gpumem.simulator.machine import Machine
from gpumem.trace import Shape

Bytes = NDArray[np.uint8]
LiveCall = Callable[..., Any]  # call(stream, *arrays)
POISON = 0xA5


class LiveBlock(Movable):
    """A block of a program: `memory` is where a world has its bytes, while they are on the device.

    It has none before the first op that touches it.
    """

    memory: Any = None
    here, void, alive = False, True, True

    def __init__(self, number: int, size: int, kind: str, shape: Shape | None, dtype: str) -> None:
        super().__init__(size)
        self.number, self.kind, self.shape, self.dtype = number, kind, shape, dtype

    @property
    def storage(self) -> LiveBlock | None:
        """The block itself; None once it is freed."""
        return self if self.alive else None


class LiveWorld(Mover, Emptier, Protocol):
    """Moves the bytes of blocks (`LiveBlock`), and runs ops on them."""

    @property
    def span(self) -> tuple[int, int]:
        """When what was begun last ran or will run, in ns: start and end; -1 where that is not known."""

    def run(self, call: LiveCall | None, blocks: Sequence[LiveBlock], duration: int, timed: bool) -> Any:
        """Begin an op on blocks that are on the device, behind all ops before it.

        It takes `duration` ns by what the program or the machine says. Return what `lasted` is to be asked with, if it
        is to be `timed` and the world can.
        """

    def lasted(self, timer: Any) -> int:
        """Wait for an op that was timed; return how long it took, in ns."""

    def put(self, block: LiveBlock, data: Bytes) -> None:
        """Copy the program's bytes into a block, behind all ops before it."""

    def get(self, block: LiveBlock) -> Bytes:
        """Wait for all ops so far; return a copy of a block's bytes."""

    def now(self) -> int:
        """The time, in ns since some moment."""

    def close(self) -> None:
        """Give back what the world itself has taken."""


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

    def settle(self, copy: Bytes) -> None:
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


class _Copy:
    """A copy on the clock, by the time at which it ends."""

    __slots__ = ("end", "size")

    def __init__(self, size: int, end: int) -> None:
        self.size, self.end = size, end


class OnClock:
    """No bytes, only time: ops on one stream, copies on the machine's links, and waits as `gpumem.runtime.cuda` has them.

    A copy out starts once the op before it has ended, and nobody waits for it but who gives the memory away or touches
    it. A copy in starts once the ops before it have ended, and the next op that touches it waits. So on demand, where
    each copy is asked for at the last moment, ops and copies take turns.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.span = (-1, -1)
        self.compute = 0  # when the stream that computes is free
        self._free = [0, 0]  # and the links, out and in

    def fill(self, storage: LiveBlock, size: int) -> None:
        """Whoever had the memory was waited for."""

    def empty(self, storage: LiveBlock) -> None:
        """The same."""

    def out(self, storage: LiveBlock) -> Any:
        """Queue a copy."""
        return _Copy(storage.size, self._copied(0, storage.size))

    def back(self, storage: LiveBlock, copy: Any) -> None:
        """Queue a copy, behind the one out."""
        copy.end = self._copied(1, storage.size)

    def _copied(self, inward: int, size: int) -> int:
        link = (self.machine.out, self.machine.into)[inward]
        start = max(self._free[inward] if self.machine.duplex else max(self._free), self.compute)
        end = start + int(link.copy_ns(np.array([size], np.int64))[0])
        self._free[inward], self.span = end, (start, end)
        return end

    def settle(self, copy: Any) -> None:
        """The next op waits."""
        self.compute = max(self.compute, copy.end)

    def drop(self, copy: Any) -> None:
        """The host's memory is free."""

    def lasted(self, timer: Any) -> int:
        """Nothing is timed: how long an op takes is known."""
        raise NotImplementedError

    def run(self, call: LiveCall | None, blocks: Sequence[LiveBlock], duration: int, timed: bool) -> None:
        """Let the time pass."""
        begin, self.compute = self.compute, self.compute + max(duration, 0)
        self.span = (begin, self.compute)

    def put(self, block: LiveBlock, data: Bytes) -> None:
        """Let a copy in pass."""
        self.compute = self._copied(1, block.size)

    def get(self, block: LiveBlock) -> Bytes:
        """Let a copy out pass; its bytes are zeros."""
        self.compute = self._copied(0, block.size)
        return np.zeros(block.size, np.uint8)

    def now(self) -> int:
        """When the stream that computes is free."""
        return self.compute

    def close(self) -> None:
        """There is nothing."""
