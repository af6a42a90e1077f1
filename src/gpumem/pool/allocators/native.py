"""The device itself: cudaMalloc and cudaFree, and the virtual memory calls beside them.

The other allocators take their segments from a `Native`, so the bytes reserved and the capacity are counted
in one place, whoever shares the device.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Generic

from gpumem.pool.allocators._blocks import FreeRanges, Granted, Home, Live, checked, rounded
from gpumem.pool.allocators._last_use import LastUse
from gpumem.pool.allocators.protocol import Statistics

GRANULARITY = 2 << 20  # a GPU's page: "GPU pages which are 2MiB currently" (PyTorch, CUDACachingAllocator.cpp)
ADDRESSES = 2**62  # offsets are int64
OPEN_ENDED = 2**48  # addresses of a pool that may grow: "there is 256TiB of address space" (ibid.)


class Native:
    """cudaMalloc and cudaFree: every block comes from the device and goes back to it.

    Parameters
    ----------
    capacity : int, optional
        Bytes of the device; no bound where left out.
    granularity : int
        Bytes that each block is rounded to, 2 MiB by default; 1 or 256 to look away from that.

    Raises
    ------
    ValueError
        A capacity below 0, a granularity below 1.

    Notes
    -----
    Offsets are virtual addresses: a hole between two blocks costs nothing, so the footprint
    `statistics.reserved.peak` is the peak live bytes of rounded blocks, whatever the addresses. `free` calls
    `synchronize`, as cudaFree waits for the device. O(log B) searches in lists of B blocks. Departures: the real
    cudaMalloc packs small blocks into one page, and which addresses it returns is not documented; here the smallest
    range of free addresses that fits.

    Examples
    --------
    >>> device = Native(capacity=8 << 20)
    >>> device.allocate(1), device.allocate(3 << 20), device.available
    (0, 2097152, 2097152)
    >>> device.free(0)
    >>> device.statistics.reserved
    Count(current=4194304, peak=6291456, total=6291456)

    References
    ----------
    CUDA Runtime API, memory management; CUDA Driver API, virtual memory management.
    """

    def __init__(self, *, capacity: int | None = None, granularity: int = GRANULARITY) -> None:
        self.capacity = capacity if capacity is None else checked(capacity, "capacity", 0)
        self.alignment = checked(granularity, "granularity")
        self.statistics = Statistics()
        self.synchronize: Callable[[], None] = lambda: None
        self._live: Live[None] = Live(self.statistics)
        self._free = FreeRanges()
        self._free.open(0, ADDRESSES // self.alignment * self.alignment)

    @property
    def available(self) -> int:
        """The largest request that does fit."""
        unreserved = ADDRESSES if self.capacity is None else self.capacity - self.statistics.reserved.current
        return unreserved // self.alignment * self.alignment

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the address of `size` bytes (cudaMalloc)."""
        asked = checked(size, "size")
        block = Granted(rounded(asked, self.alignment), asked, None)
        offset = self._free.best(block.size) if block.size <= self.available else None
        if offset is None:
            raise full(asked, self)
        self._free.take(offset, block.size)
        self.map(block.size)
        return self._live.add(offset, block)

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Give a block back, after waiting for all streams (cudaFree)."""
        block = self._live[offset]
        self.unmap(block.size)
        self._live.remove(offset)
        self._free.put(offset, block.size)

    def reserve(self, size: int) -> int:
        """Return `size` addresses without bytes behind them (cuMemAddressReserve)."""
        size = rounded(size, self.alignment)
        offset = self._free.best(size)
        if offset is None:
            raise full(size, self)
        self._free.take(offset, size)
        return offset

    def map(self, size: int) -> None:
        """Put bytes behind reserved addresses (cuMemMap); the caller asks `available` first."""
        self.statistics.reserved.add(size)

    def unmap(self, size: int) -> None:
        """Take bytes away from reserved addresses, after waiting for all streams (cuMemUnmap)."""
        self.synchronize()
        self.statistics.reserved.drop(size)


class OnDevice(Generic[Home]):
    """What an allocator has that takes its bytes from a `Native`: `device`, `statistics`, `synchronize`.

    Parameters
    ----------
    capacity : int, optional
        Bytes of the device; no bound where left out.
    device : Native, optional
        Where the bytes come from, instead of `capacity`, which is a `ValueError` beside it.
    """

    def __init__(self, capacity: int | None, device: Native | None, unit: int, granularity: int = 0) -> None:
        if capacity is not None and device is not None:
            raise ValueError(f"capacity: {capacity} given beside a device, which has its own ({device.capacity})")
        self.device = device if device is not None else Native(capacity=capacity, granularity=granularity or unit)
        self.alignment = gcd(unit, self.device.alignment)
        self.statistics = Statistics(reserved=self.device.statistics.reserved)
        self._live: Live[Home] = Live(self.statistics)
        self._last_use = LastUse(lambda: self.synchronize())  # for those that let other streams have what was freed

    @property
    def synchronize(self) -> Callable[[], None]:
        """Wait for all streams: the device's function."""
        return self.device.synchronize

    @synchronize.setter
    def synchronize(self, wait: Callable[[], None]) -> None:
        self.device.synchronize = wait


def full(size: int, device: Native) -> MemoryError:
    """The error that says how much was asked for and how much there is."""
    held = device.statistics.reserved.current
    return MemoryError(f"no room for {size} bytes: {held} of {device.capacity} are reserved")
