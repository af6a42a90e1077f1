"""Where a pool's bytes are: they begin at one address for good, and there are more of them as the pool grows.

Read `Backing` first, which is all that a pool asks for. `backing` picks: `Grown` where the device can map memory to
addresses that were reserved before, which takes no more of the device than the pool has needed so far, and else
`Fixed`, which takes all of it at once. `VirtualMemory` has the driver's calls that `Grown` and `pages` are made of.

CUDA is loaded when the first of them is made, not when this module is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gpumem.execute.cuda.driver_calls import VirtualMemory, can_map, done, started


class Backing(Protocol):
    """Bytes from `base` on. One thread at a time may call it, and any thread may."""

    base: int  # the first address, a multiple of 512

    def grow(self, top: int) -> None:
        """Have the bytes `[0, top)` be there from now on; `MemoryError` leaves everything as it was."""
        ...

    def close(self) -> None:
        """Give everything back. Nothing that is under way may use it any more; a second time does nothing."""
        ...


def backing(device: int, capacity: int) -> Backing:
    """Return bytes on a device for a pool of `capacity` bytes at most.

    Parameters
    ----------
    device : int
        Its number.
    capacity : int
        Bytes, at least 1. Where the device can map memory this may be more than it has: it is what addresses are for.

    Raises
    ------
    ValueError
        No such device, or a capacity below 1.
    MemoryError
        Not so many addresses, or, where the device cannot map memory, not so many bytes.
    ImportError
        CUDA is not installed.

    Examples
    --------
    Each pool is checked against what it was made for:

    >>> backing(0, 0)
    Traceback (most recent call last):
    ValueError: a capacity of 0 bytes: a pool needs at least 1
    """
    _positive(capacity)
    return Grown(device, capacity) if can_map(device) else Fixed(device, capacity)


class Grown:
    """Addresses for the whole capacity, and bytes as far as somebody has needed them.

    Each step takes whole granules and maps them behind the last. They are given back by `close` alone: a pool's top
    does not come down while anything lives above it.

    Attributes
    ----------
    base, capacity, size : int
        The first address; bytes there may be; bytes there are.
    """

    def __init__(self, device: int, capacity: int) -> None:
        self.capacity, self.size = _positive(capacity), 0
        self._memory = VirtualMemory(device)
        self.base = self._memory.reserve(self._memory.whole(capacity))

    def grow(self, top: int) -> None:
        """Have the bytes `[0, top)` be there from now on."""
        _within(self, top)
        more = self._memory.whole(top) - self.size
        if more <= 0:
            return
        piece = self._memory.create(more)
        try:
            self._memory.map(self.base + self.size, [piece], more)
        finally:
            self._memory.release(piece)  # the mapping keeps it
        self.size += more

    def close(self) -> None:
        """Give everything back."""
        if not self.base:
            return
        if self.size:
            self._memory.unmap(self.base, self.size)
        self._memory.forget(self.base, self._memory.whole(self.capacity))
        self.base = self.size = 0


class Fixed:
    """One allocation of the whole capacity, for devices that cannot map memory.

    Attributes
    ----------
    base, capacity, size : int
        The first address; bytes there may be, and are.
    """

    def __init__(self, device: int, capacity: int) -> None:
        self.capacity = self.size = _positive(capacity)
        self._api, self._device = started(device), device
        self._context = done(self._api.cuDevicePrimaryCtxRetain(device), f"the context of device {device}")
        try:
            with self._inside():
                self.base = int(done(self._api.cuMemAlloc(capacity), f"{capacity} bytes of device memory"))
        except BaseException:
            self._api.cuDevicePrimaryCtxRelease(device)
            raise

    def grow(self, top: int) -> None:
        """See that the bytes `[0, top)` are there, as all are."""
        _within(self, top)

    def close(self) -> None:
        """Give everything back."""
        if not self.base:
            return
        with self._inside():
            self._api.cuMemFree(self.base)
        self._api.cuDevicePrimaryCtxRelease(self._device)
        self.base = self.size = 0

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Have the device's context current in this thread, and afterwards what was current before."""
        done(self._api.cuCtxPushCurrent(self._context), "the context of the device")
        try:
            yield
        finally:
            self._api.cuCtxPopCurrent()


def _positive(capacity: int) -> int:
    if capacity < 1:
        raise ValueError(f"a capacity of {capacity} bytes: a pool needs at least 1")
    return capacity


def _within(bytes_: Grown | Fixed, top: int) -> None:
    """Refuse what can never be there."""
    if not bytes_.base:
        raise ValueError("this memory has been given back")
    if top > bytes_.capacity:
        raise MemoryError(f"{top} bytes: the pool may have {bytes_.capacity}")
