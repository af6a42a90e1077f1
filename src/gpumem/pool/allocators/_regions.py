"""TensorFlow's regions: where its allocator, and those made out of it, have their chunks from."""

from __future__ import annotations

from gpumem.pool.allocators._blocks import FreeRanges, rounded
from gpumem.pool.allocators.native import Native, OnDevice

# tensorflow/core/common_runtime/bfc_allocator.h at 0854f7c and bfc_allocator.cc at 010f3ed; tsl has the same ones
MIN_ALLOCATION = 256  # kMinAllocationSize
FIRST_REGION = 2 << 20  # "2MiB smallest initial allocation"


class Regions(OnDevice[None]):
    """Regions of the device that double; `_free` are their chunks that anyone may have. see `BFC` for the options."""

    def __init__(
        self,
        *,
        capacity: int | None = None,
        allow_growth: bool = True,
        garbage_collection: bool = True,
        device: Native | None = None,
    ) -> None:
        super().__init__(capacity, device, MIN_ALLOCATION)
        total = self.device.capacity
        if total is None and not allow_growth:
            raise ValueError("allow_growth: False, but there is no capacity to take as a whole")
        first = FIRST_REGION if total is None else min(total, FIRST_REGION) if allow_growth else total
        self._next_region = max(rounded(first, MIN_ALLOCATION), MIN_ALLOCATION)
        self._collects = garbage_collection
        self._free = FreeRanges()

    def _grow(self, size: int) -> bool:
        """Add a region that has `size` bytes, if need be after giving others back."""
        return self._extend(size) or (self._collect(size) and self._extend(size))

    def _waited(self) -> None:
        """Called when all streams have been waited for."""

    def _extend(self, size: int) -> bool:
        """Add a region that has `size` bytes; the next one is to be twice as large."""
        available = self.device.available // MIN_ALLOCATION * MIN_ALLOCATION
        if size > available:
            return False
        grown = size > self._next_region
        while size > self._next_region:
            self._next_region *= 2
        region = min(self._next_region, available)
        self._free.open(self.device.allocate(region), region)
        if not grown:
            self._next_region *= 2
        return True

    def _collect(self, size: int) -> bool:
        """Give the regions back that are wholly free, if that frees enough for `size` bytes."""
        idle = self._free.whole()
        if not self._collects or not idle or size > self.device.available + sum(bytes_ for _, bytes_ in idle):
            return False
        for start, _ in idle:
            self._free.close(start)
            self.device.free(start)
        self._waited()  # cudaFree does
        return True
