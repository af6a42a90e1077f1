"""Bytes by one world, time by another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpumem.runtime.devices.in_memory import Bytes, LiveBlock, LiveCall, LiveWorld, OnClock


class Clocked:
    """A world whose bytes move in one world, and whose time is told by the clock.

    So the log of one run has real copies, and the times that they would take on the clock's machine.

    Parameters
    ----------
    world : LiveWorld
        Has the bytes.
    clock : OnClock

    Examples
    --------
    >>> from gpumem import Machine
    >>> from gpumem.runtime import Adaptive, Clocked, InMemory, OnClock
    >>> device = Adaptive(Clocked(InMemory(), OnClock(Machine.named("rtx4090"))), "1MiB")
    >>> x = device.malloc(3)
    >>> device.write(x, b"abc")
    >>> device.exec("wait", [x], [x], duration=1000)
    >>> device.read(x).tobytes(), device.log[-2].end - device.log[-2].start
    (b'abc', 1000)
    """

    def __init__(self, world: LiveWorld, clock: OnClock) -> None:
        self.world, self.clock, self.machine = world, clock, clock.machine

    @property
    def span(self) -> tuple[int, int]:
        """When what was begun last runs, by the clock."""
        return self.clock.span

    def now(self) -> int:
        """The clock's time."""
        return self.clock.now()

    def fill(self, storage: LiveBlock, size: int) -> None:
        """Take memory."""
        self.world.fill(storage, size)
        self.clock.fill(storage, size)

    def empty(self, storage: LiveBlock) -> None:
        """Give it back."""
        self.world.empty(storage)
        self.clock.empty(storage)

    def out(self, storage: LiveBlock) -> tuple[Any, Any]:
        """Copy out, in both."""
        return self.world.out(storage), self.clock.out(storage)

    def back(self, storage: LiveBlock, copy: tuple[Any, Any]) -> None:
        """Copy back, in both."""
        self.world.back(storage, copy[0])
        self.clock.back(storage, copy[1])

    def settle(self, copy: tuple[Any, Any]) -> None:
        """Let the next op wait, in both."""
        self.world.settle(copy[0])
        self.clock.settle(copy[1])

    def drop(self, copy: tuple[Any, Any]) -> None:
        """Give the host's memory back."""
        self.world.drop(copy[0])
        self.clock.drop(copy[1])

    def run(self, call: LiveCall | None, blocks: Sequence[LiveBlock], duration: int, timed: bool) -> Any:
        """Run it, and let its time pass."""
        timer = self.world.run(call, blocks, duration, timed)
        self.clock.run(call, blocks, duration, False)
        return timer

    def lasted(self, timer: Any) -> int:
        """How long the world took."""
        return self.world.lasted(timer)

    def put(self, block: LiveBlock, data: Bytes) -> None:
        """Write, in both."""
        self.world.put(block, data)
        self.clock.put(block, data)

    def get(self, block: LiveBlock) -> Bytes:
        """Read the world's bytes."""
        self.clock.get(block)
        return self.world.get(block)

    def close(self) -> None:
        """Give back what the world has taken."""
        self.world.close()
