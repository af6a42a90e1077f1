"""An environment on a simulated clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpumem.runtime.residency.environment import Bytes, LiveBlock, LiveCall, LiveEnvironment
from gpumem.simulator.machine import Machine


class _Copy:
    """A copy on the clock, by the time at which it ends."""

    __slots__ = ("end", "size")

    def __init__(self, size: int, end: int) -> None:
        self.size, self.end = size, end


class OnClock:
    """No bytes, only time: ops on one stream, copies on the machine's links, and waits as `on_streams` has them.

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

    def wait_for_copy(self, copy: Any) -> None:
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


class Clocked:
    """An environment whose bytes move in another one, and whose times are those of the clock.

    So the log of one run has real copies, and the times that they would take on the clock's machine.

    Parameters
    ----------
    environment : LiveEnvironment
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

    def __init__(self, environment: LiveEnvironment, clock: OnClock) -> None:
        self.environment, self.clock, self.machine = environment, clock, clock.machine

    @property
    def span(self) -> tuple[int, int]:
        """When what was begun last runs, by the clock."""
        return self.clock.span

    def now(self) -> int:
        """The clock's time."""
        return self.clock.now()

    def fill(self, storage: LiveBlock, size: int) -> None:
        """Take memory."""
        self.environment.fill(storage, size)
        self.clock.fill(storage, size)

    def empty(self, storage: LiveBlock) -> None:
        """Give it back."""
        self.environment.empty(storage)
        self.clock.empty(storage)

    def out(self, storage: LiveBlock) -> tuple[Any, Any]:
        """Copy out, in both."""
        return self.environment.out(storage), self.clock.out(storage)

    def back(self, storage: LiveBlock, copy: tuple[Any, Any]) -> None:
        """Copy back, in both."""
        self.environment.back(storage, copy[0])
        self.clock.back(storage, copy[1])

    def wait_for_copy(self, copy: tuple[Any, Any]) -> None:
        """Let the next op wait, in both."""
        self.environment.wait_for_copy(copy[0])
        self.clock.wait_for_copy(copy[1])

    def drop(self, copy: tuple[Any, Any]) -> None:
        """Give the host's memory back."""
        self.environment.drop(copy[0])
        self.clock.drop(copy[1])

    def run(self, call: LiveCall | None, blocks: Sequence[LiveBlock], duration: int, timed: bool) -> Any:
        """Run it, and let its time pass."""
        timer = self.environment.run(call, blocks, duration, timed)
        self.clock.run(call, blocks, duration, False)
        return timer

    def lasted(self, timer: Any) -> int:
        """How long the environment took."""
        return self.environment.lasted(timer)

    def put(self, block: LiveBlock, data: Bytes) -> None:
        """Write, in both."""
        self.environment.put(block, data)
        self.clock.put(block, data)

    def get(self, block: LiveBlock) -> Bytes:
        """Read the environment's bytes."""
        self.clock.get(block)
        return self.environment.get(block)

    def close(self) -> None:
        """Give back what the environment has taken."""
        self.environment.close()
