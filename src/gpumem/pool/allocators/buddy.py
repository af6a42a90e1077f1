"""The binary buddy system: blocks are powers of two, and a block has one buddy to merge with.

::

    order 3  [               0               ]
    order 2  [       0       |       4       ]      a block of 4 splits into 4 and 6,
    order 1                  [   4   |   6   ]      which merge again when both are free
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from gpumem.pool.allocators._blocks import Granted, checked
from gpumem.pool.allocators.native import OPEN_ENDED, Native, OnDevice, full


class Buddy(OnDevice[None]):
    """Knuth's buddy system in one arena that doubles where it is full.

    Parameters
    ----------
    capacity, device
        As `OnDevice` has them.
    min_block : int
        Bytes of the smallest block, a power of two.

    Raises
    ------
    ValueError
        A smallest block that is no power of two.

    Notes
    -----
    A request of s bytes takes 2**k >= s of them, at a multiple of 2**k from the arena's start: at most half of a
    block is wasted. The lowest free block of the smallest order that fits is taken and halved as often as possible.
    The arena starts empty, doubles until the request fits, never shrinks, and ends at the capacity: where that is no
    power of two, the last part of it are blocks whose buddies do not exist. O(log capacity) steps a request, each
    O(B) for B free blocks of an order. It has no streams: it waits for all where bytes go to another stream.
    Departure: Knuth's arena has a fixed size 2**m and his lists are in no order.

    Examples
    --------
    >>> buddy = Buddy(min_block=1)
    >>> [buddy.allocate(size) for size in (3, 1, 2, 5)]
    [0, 4, 6, 8]
    >>> buddy.free(4)
    >>> buddy.allocate(2), buddy.statistics.reserved.peak
    (4, 16)

    References
    ----------
    Knuth, The Art of Computer Programming, volume 1, section 2.5, algorithms R and S.
    """

    def __init__(self, *, capacity: int | None = None, min_block: int = 256, device: Native | None = None) -> None:
        if checked(min_block, "min_block") & (min_block - 1):
            raise ValueError(f"min_block: {min_block} is not a power of two")
        super().__init__(capacity, device, min_block)
        self._unit = min_block
        self._most = min(self.device.available, OPEN_ENDED) // min_block * min_block
        self._base = self.device.reserve(self._most) if self._most else 0
        self._size = 0  # of the arena
        self._free: dict[int, list[int]] = {}  # bytes of a block -> starts within the arena, ascending

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`."""
        asked = checked(size, "size")
        needed = max(self._unit, 1 << (asked - 1).bit_length())
        block = min((size for size, starts in self._free.items() if size >= needed and starts), default=None)
        if block is None:
            self._grow(self._size_for(asked, needed))
            block = min(size for size, starts in self._free.items() if size >= needed and starts)
        start = self._free[block][0]
        self._last_use.claim(self._base + start, needed, stream)
        del self._free[block][0]
        while block > needed:
            block //= 2
            insort(self._free.setdefault(block, []), start + block)
        return self._live.add(self._base + start, Granted(needed, asked, None))

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Take a block back, last used on `stream`, and merge it with its buddy as long as that is free."""
        block = self._live.remove(offset)
        self._last_use.freed(offset, block.size, stream)
        self._put(offset - self._base, block.size)

    def _put(self, start: int, size: int) -> None:
        while True:
            starts = self._free.setdefault(size, [])
            buddy = start ^ size
            place = bisect_left(starts, buddy)
            if place == len(starts) or starts[place] != buddy:
                starts.insert(bisect_left(starts, start), start)
                return
            del starts[place]
            start, size = min(start, buddy), 2 * size

    def _size_for(self, asked: int, needed: int) -> int:
        """Return the size that the arena must grow to, by doubling, for a block of `needed` bytes to be free in it.

        Raises the MemoryError of a request of `asked` bytes where the capacity or the device do not allow that.
        """
        idle = not self.statistics.blocks.current  # then the old part merges with the new one
        size = self._size
        while size < self._most:
            size = min(max(2 * size, self._unit), self._most)
            if needed <= max(part for _, part in _parts(0 if idle else self._size, size)):
                if size - self._size <= self.device.available:
                    return size
                break
        raise full(asked, self.device)

    def _grow(self, size: int) -> None:
        self.device.map(size - self._size)
        for start, part in _parts(self._size, size):
            self._put(start, part)
        self._size = size


def _parts(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut `[start, end)` into blocks, each as large as its address and the end allow.

    >>> list(_parts(4, 15))
    [(4, 4), (8, 4), (12, 2), (14, 1)]
    """
    while start < end:
        most = 1 << ((end - start).bit_length() - 1)
        size = min(most, start & -start) if start else most
        yield start, size
        start += size
