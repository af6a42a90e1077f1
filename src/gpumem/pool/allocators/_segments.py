"""Where PyTorch's caching allocator has its blocks from: segments of cudaMalloc, or segments that expand.

Each holds the small or the large blocks of one stream. `find` looks among the cached blocks, `grow` asks the
device, `give_back` returns to it what is not in use.
"""

from __future__ import annotations

from gpumem.pool.allocators._blocks import FreeRanges, rounded
from gpumem.pool.allocators.native import OPEN_ENDED, Native

# pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp at 001074d
SMALL_SIZE = 1 << 20  # kSmallSize: "largest "small" allocation is 1 MiB"
SMALL_BUFFER = 2 << 20  # kSmallBuffer: "small" allocations are packed in 2 MiB blocks"
LARGE_BUFFER = 20 << 20  # kLargeBuffer: "large" allocations may be packed in 20 MiB blocks
MIN_LARGE = 10 << 20  # kMinLargeAlloc: "allocations between 1 and 10 MiB may use kLargeBuffer"
ROUND_LARGE = 2 << 20  # kRoundLarge: "round up large allocations to 2 MiB"


class Segments:
    """Segments of cudaMalloc: of 2 MiB for small blocks, of 20 MiB or the size in 2 MiB for large ones."""

    def __init__(self, device: Native, small: bool, stream: int) -> None:
        self.small, self.stream = small, stream
        self.free = FreeRanges()
        self._device = device

    def find(self, size: int) -> int | None:
        """Return the smallest cached block that fits, the lowest of several."""
        return self.free.best(size)

    def grow(self, size: int) -> int | None:
        """Return a new segment for `size` bytes, or None where the device has too few bytes left."""
        bytes_ = SMALL_BUFFER if self.small else LARGE_BUFFER if size < MIN_LARGE else rounded(size, ROUND_LARGE)
        if bytes_ > self._device.available:
            return None
        start = self._device.allocate(bytes_)
        self.free.open(start, bytes_)
        return start

    def release(self, start: int) -> None:
        """Return a segment to the device that is wholly free."""
        self.free.close(start)
        self._device.free(start)

    def give_back(self) -> None:
        """Return all segments to the device that are wholly free."""
        for start, _ in self.free.whole():
            self.release(start)


class Expandable:
    """A segment of addresses that pages of 2 MiB (small blocks) or 20 MiB (large ones) are mapped into.

    ::

        addresses  [ used | free | used |  free  |      unmapped      ]
                   |   page   |   page   |  page |
    """

    def __init__(self, device: Native, small: bool, stream: int) -> None:
        self.small, self.stream = small, stream
        self.free, self.unmapped = FreeRanges(), FreeRanges()
        self.free.segments = self.unmapped.segments  # the same ones
        self._page = SMALL_BUFFER if small else LARGE_BUFFER
        self._device = device

    def find(self, size: int) -> int | None:
        """Return the cached block that fits and could expand least."""
        best, least = None, 0
        for bytes_, start in self.free.from_size(size):
            could_be = bytes_ + self._unmapped_at(start + bytes_)
            if best is not None and could_be >= least:
                break
            best, least = start, could_be
        return best

    def grow(self, size: int) -> int | None:
        """Map pages at the lowest address where `size` bytes are free or unmapped.

        Return that address, or None where the device has too few bytes left.
        """
        starts = (self.free.until(at) for at, _ in self.unmapped.ranges())
        start = next((at for at in starts if self._is_available(at, size)), None)
        missing = self._missing(start, size) if start is not None else [(0, rounded(size, self._page))]
        if sum(bytes_ for _, bytes_ in missing) > self._device.available:
            return None
        if start is None:
            start = self._reserve(size)
            missing = self._missing(start, size)
        for at, bytes_ in missing:
            self._device.map(bytes_)
            self.unmapped.take(at, bytes_)
            self.free.put(at, bytes_)
        return start

    def give_back(self) -> None:
        """Unmap all pages that are wholly free."""
        for start, size in self.free.ranges():
            base = max(segment for segment in self.free.segments if segment <= start)
            first = base + rounded(start - base, self._page)
            last = base + (start + size - base) // self._page * self._page
            if first < last:
                self._device.unmap(last - first)
                self.free.take(start, size)
                for left, right in ((start, first), (last, start + size)):
                    if left < right:
                        self.free.put(left, right - left)
                self.unmapped.put(first, last - first)

    def _reserve(self, size: int) -> int:
        """Return a new segment: addresses for 9/8 of the device, "1 1/8 the total memory on the GPU"."""
        total = self._device.capacity
        bytes_ = rounded(max(size, OPEN_ENDED if total is None else total + total // 8), self._page)
        start = self._device.reserve(bytes_)
        self.unmapped.open(start, bytes_)
        return start

    def _unmapped_at(self, at: int) -> int:
        """Bytes unmapped from there on in the same segment."""
        return 0 if at in self.unmapped.segments else self.unmapped.at(at)

    def _is_available(self, start: int, size: int) -> bool:
        """Whether `size` bytes from there on are free or unmapped, in one segment."""
        at = start
        while at < start + size and (bytes_ := self.free.at(at) or self.unmapped.at(at)):
            if at > start and at in self.free.segments:
                return False
            at += bytes_
        return at >= start + size

    def _missing(self, start: int, size: int) -> list[tuple[int, int]]:
        """The pages to map, so that the `size` bytes from `start` on are: (first byte, bytes)."""
        missing, at, end = [], start, start + size
        while at < end:
            if not (bytes_ := self.free.at(at)):
                bytes_ = rounded(min(end - at, self.unmapped.at(at)), self._page)
                missing.append((at, bytes_))
            at += bytes_
        return missing
