"""Device arrays that keep their addresses, under a memory limit: what a program touches is known by address, op by op.

::

    allocate(size)                    -> address        of its own granules, without bytes until an op touches it
    run(name, stream, call, ...)                        an op of the device; its arrays are there before it begins
    free(address)                                       a note, at any moment, in any thread; carried out by the next op

This knows nothing of CUDA: `gpumem.runtime.paged.on_pages` does, and `emm.limit` tells it what Numba does.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from gpumem.runtime.adaptive import Adaptive
from gpumem.runtime.paged.pages import Range
from gpumem.runtime.residency.environment import LiveEnvironment
from gpumem.runtime.residency.report import ManagedReport


class PagedEnvironment(LiveEnvironment, Protocol):
    """An environment whose blocks keep their addresses; see `paged.OnPages`."""

    pages: Any

    def on(self, stream: Any) -> None:
        """Say on which stream the next op comes."""

    def captured(self, stream: Any) -> bool:
        """Whether what a stream is given goes into a graph."""

    def uncaptured(self) -> AbstractContextManager[None]:
        """Allow what a capture elsewhere in this thread would not."""

    def wait(self, number: int) -> None:
        """Let the host wait for what is under way with a block."""

    def restrict(self, budget: int) -> None:
        """Take another number of bytes at most."""

    def reserve(self, number: int, size: int) -> Range:
        """Return addresses for a block, without bytes."""

    def release(self, number: int) -> None:
        """Take back the addresses of a block that was freed."""


@dataclass(slots=True)
class ManagedArray:
    """An array by its block's number; `written` once an op may have written it, `pinned` once it cannot move."""

    number: int
    range: Range
    written: bool = False
    pinned: bool = False

    def whole(self, address: int, size: int) -> bool:
        """Whether these bytes are all of it."""
        return address <= self.range.address and address + size >= self.range.address + self.range.size


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes from an address on that an op reads or writes; all of the array where `size` is not told."""

    address: int
    size: int = 0


Touch = tuple[ManagedArray, Extent]


def _touched(reads: Sequence[Touch], writes: Sequence[Touch]) -> tuple[list[int], list[int]]:
    """Return the blocks that an op reads and writes; from now on they are written.

    What it writes in part it reads too. What nobody has written has no bytes to be read: then it is the first to write.
    """
    read = {array.number: None for array, _ in reads if array.written}
    read |= {a.number: None for a, part in writes if a.written and not a.whole(part.address, part.size)}
    written = {array.number: None for array, _ in writes}
    written |= {array.number: None for array, _ in reads if not array.written}
    for array, _ in (*reads, *writes):
        array.written = True
    return [*read], [*written]


class LimitedArrays:
    """The device arrays of a program, under a memory limit.

    Parameters
    ----------
    environment : PagedEnvironment
    limit : int
        Bytes of the device that arrays hold at once, `charge`d ones among them.
    **options
        As `Adaptive` has them.

    Raises
    ------
    LimitError
        From `run`: the op alone needs more.
    MemoryError
        From `allocate`: an array above the limit can never be there.

    Notes
    -----
    Any thread may call it; ops come in the order in which they are launched. `free` only takes a note.
    """

    def __init__(self, environment: PagedEnvironment, limit: int, **options: Any) -> None:
        self.environment, self.limit = environment, limit
        self.device = Adaptive(environment, limit, **options)
        self._lock = threading.RLock()
        self._inside = self.closed = False
        self._starts: list[int] = []
        self._arrays: dict[int, ManagedArray] = {}
        self._freed: deque[int] = deque()

    def allocate(self, size: int) -> int:
        """Return the address of a new array, without bytes."""
        environment = self.environment
        with self._lock:
            self._enter()
            try:
                if environment.pages.whole(size) > self.limit:
                    raise MemoryError(f"an array of {size} bytes can never be on the device within {self.limit}")
                self._drain()
                number = self.device.malloc(environment.pages.whole(size))
                try:
                    range_ = environment.reserve(number, size)
                except BaseException:
                    self.device.free(number)
                    raise
                insort(self._starts, range_.address)
                self._arrays[range_.address] = ManagedArray(number, range_)
                return range_.address
            finally:
                self._inside = False

    def free(self, address: int) -> None:
        """Take an array back; ops that were begun still have it."""
        self._freed.append(address)

    def owns(self, address: int) -> bool:
        """Whether an array begins there."""
        return address in self._arrays

    @property
    def lowest(self) -> int:
        """No array has an address below."""
        return self._starts[0] if self._starts else 2**64

    def at(self, address: int) -> ManagedArray | None:
        """Return the array that has an address."""
        place = bisect_right(self._starts, address)
        if not place:
            return None
        array = self._arrays[self._starts[place - 1]]
        return array if address < array.range.address + array.range.taken else None

    def run(
        self,
        name: str,
        stream: Any,
        call: Callable[[], Any],
        reads: Sequence[Extent] = (),
        writes: Sequence[Extent] = (),
        *,
        given: bool = False,
    ) -> Any:
        """Call what gives a stream an op, with all arrays that it touches on the device; return its result.

        Addresses that are in no array are of no interest. `given`: it writes the program's own bytes. What is captured
        into a graph runs unseen, so its arrays stay on the device for good.
        """
        with self._lock:
            sources = self._touches(reads)
            into = sources if writes is reads else self._touches(writes)
            if not sources and not into:
                return call()
            if self.environment.captured(stream):
                for _, extent in (*sources, *into):
                    self.pin(extent.address)
                return call()
            self._enter()
            try:
                self._drain()
                return self._run(name, stream, call, *_touched(sources, into), given=given)
            finally:
                self._inside = False

    def _touches(self, extents: Sequence[Extent]) -> list[Touch]:
        return [(array, extent) for extent in extents if (array := self.at(extent.address)) is not None]

    def _run(
        self, name: str, stream: Any, call: Callable[[], Any], reads: list[int], writes: list[int], *, given: bool
    ) -> Any:
        returned: list[Any] = []
        self.environment.on(stream)
        self.device.exec(name, reads, writes, call=lambda stream: returned.append(call()), given=given and not reads)
        return returned[0]

    def pin(self, address: int) -> None:
        """Keep the array that has an address on the device from now on, and wait until it is there."""
        with self._lock:
            array = self.at(address)
            if array is None or array.pinned:
                return
            self._enter()
            try:
                with self.environment.uncaptured():
                    self._drain()
                    self.device.pin(array.number)
                    self.environment.wait(array.number)
                array.pinned = array.written = True
            finally:
                self._inside = False

    def charge(self, size: int) -> None:
        """Make room for bytes of the device beside the arrays, or, below 0, give them back."""
        with self._lock:
            self._enter()
            try:
                self._drain()
                self.device.charge(size)
                self.environment.restrict(self.limit - self.device.beside)
            finally:
                self._inside = False

    def report(self) -> ManagedReport:
        """Return what came of it so far."""
        with self._lock:
            return self.device.report()

    def close(self) -> None:
        """Wait for what is under way, and give everything back; addresses are worth nothing from now on."""
        with self._lock:
            self.closed = True
            self._starts, self._arrays = [], {}
            self.device.close()

    def _enter(self) -> None:
        if self._inside:
            raise RuntimeError("a device array is used from within another call on device arrays, say by a finalizer")
        if self.closed:
            raise RuntimeError("the device was reset: its arrays are gone")
        self._inside = True

    def _drain(self) -> None:
        """Carry out what was freed."""
        while self._freed:
            address = self._freed.popleft()
            array = self._arrays.pop(address)
            self._starts.remove(address)
            self.device.free(array.number)
            self.environment.release(array.number)
