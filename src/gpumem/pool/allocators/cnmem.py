"""NVIDIA's cnmem: a list of blocks in one pool, split and coalesced, with a manager for each stream.

::

    root     [ used |  free  |   given to stream 1   | used |     free     ]
                              |                       |
    stream 1                  [ used | free |  used   ]      grows by blocks of the root's
"""

from __future__ import annotations

from collections.abc import Callable

from gpumem.base.names import choice
from gpumem.pool.allocators._blocks import FreeRanges, Granted, checked, rounded
from gpumem.pool.allocators.native import OPEN_ENDED, Native, OnDevice, full

GRANULARITY = 512  # CNMEM_GRANULARITY, NVIDIA/cnmem src/cnmem.cpp at 09c2753
FITS: dict[str, Callable[[FreeRanges, int], int | None]] = {"best": FreeRanges.best, "first": FreeRanges.lowest}


class CnMem(OnDevice[FreeRanges]):
    """The pool that the SmartPool paper compares itself with.

    Parameters
    ----------
    capacity, device
        As `OnDevice` has them.
    pool : int, optional
        Bytes reserved at the start (`cnmemDevice_t.size`). Left out: one pool that is as large as need be and
        never grows by a second one, counted up to its high-water mark.
    grow : bool
        Ask the device for another block where the pool is full; not with `CNMEM_FLAGS_CANNOT_GROW`.
    steal : bool
        Where that fails too, take a free block from another stream's manager; not with `CNMEM_FLAGS_CANNOT_STEAL`.
    fit : {"best", "first"}
        Which free block: the smallest that fits, as in the source (`findBestBlockUnsafe`), or the lowest.

    Raises
    ------
    ValueError
        An unknown fit, a pool below 1 byte.
    MemoryError
        The device has fewer bytes left than `pool`.

    Notes
    -----
    Stream 0 is the root manager, as the default stream is; the others get one each at first use, which grows by
    blocks of the root's and never gives them back. `statistics.reserved` is the high-water mark of the one pool,
    that is the footprint that the SmartPool paper compares, or the bytes taken from the device where `pool` is
    given. O(B) a request for B free blocks, O(log B) searches. Departures: a block may be freed on another stream
    than its own and goes back to where it came from; the wait for the other stream comes where bytes do change
    streams, not at each attempt to steal; a stolen block belongs to the thief (the source hands out what comes
    after it), and merges with what it was cut from if it is stolen back.

    Examples
    --------
    >>> pool = CnMem()
    >>> a, b = pool.allocate(1000), pool.allocate(100)
    >>> pool.free(a)
    >>> a, b, pool.allocate(512), pool.allocate(600)
    (0, 1024, 0, 1536)
    >>> pool.statistics.reserved.peak
    2560

    References
    ----------
    github.com/NVIDIA/cnmem, src/cnmem.cpp at 09c2753.
    """

    def __init__(
        self,
        *,
        capacity: int | None = None,
        pool: int | None = None,
        grow: bool = True,
        steal: bool = True,
        fit: str = "best",
        device: Native | None = None,
    ) -> None:
        super().__init__(capacity, device, GRANULARITY)
        self._fit, self._steals = choice(fit, FITS, "fit"), steal
        self._grows = grow and pool is not None
        self._managers = {0: FreeRanges()}  # by stream; 0 is the root
        self._mark: int | None = None  # highest byte allocated so far, of a pool without a size
        if pool is not None:
            size = rounded(checked(pool, "pool"), GRANULARITY)
            if self._add(size) is None:
                raise full(size, self.device)
        elif most := min(self.device.available, OPEN_ENDED) // GRANULARITY * GRANULARITY:
            self._mark = self.device.reserve(most)
            self._managers[0].open(self._mark, most)

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream` (cnmemMalloc)."""
        asked = checked(size, "size")
        needed = rounded(asked, GRANULARITY)
        manager = self._managers.setdefault(stream, FreeRanges())
        start = self._find(manager, needed)
        if start is None and self._steals:
            start = self._stolen(manager, needed)
        if start is None:
            raise full(asked, self.device)
        self._last_use.claim(start, needed, stream)
        manager.take(start, needed)
        return self._live.add(start, Granted(needed, asked, manager))

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Take a block back into its manager (cnmemFree)."""
        block = self._live.remove(offset)
        self._last_use.freed(offset, block.size, stream)
        block.home.put(offset, block.size)

    def _find(self, manager: FreeRanges, size: int) -> int | None:
        """Return a free block of the manager that fits, after growing it if need be."""
        start = self._fit(manager, size)
        root = self._managers[0]
        if manager is not root:
            if start is None and (start := self._find(root, size)) is not None:
                root.take(start, size)
                manager.open(start, size)
            return start
        if start is None and self._grows:
            return self._add(size)
        if start is not None and self._mark is not None and start + size > self._mark:
            if start + size - self._mark > self.device.available:  # others share the device
                return None
            self.device.map(start + size - self._mark)
            self._mark = start + size
        return start

    def _add(self, size: int) -> int | None:
        """Give the root another block of the device's."""
        if size > self.device.available:
            return None
        start = self.device.allocate(size)
        self._managers[0].open(start, size)
        return start

    def _stolen(self, thief: FreeRanges, size: int) -> int | None:
        """Return a free block of another stream's manager that fits; it is the thief's from now on."""
        for stream, other in self._managers.items():
            if stream and other is not thief and (start := self._fit(other, size)) is not None:
                other.take(start, size)
                thief.open(start, size)
                return start
        return None
