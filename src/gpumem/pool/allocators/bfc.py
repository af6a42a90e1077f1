"""TensorFlow's best fit with coalescing: regions that double, chunks of 256 bytes, cut where that leaves enough."""

from __future__ import annotations

from gpumem.pool.allocators._blocks import Granted, checked, rounded
from gpumem.pool.allocators._regions import MIN_ALLOCATION, Regions
from gpumem.pool.allocators.native import full

MAX_INTERNAL_FRAGMENTATION = 128 << 20  # kMaxInternalFragmentation


class BFC(Regions):
    """TensorFlow's and JAX's allocator.

    Parameters
    ----------
    capacity, device
        As `OnDevice` has them.
    allow_growth : bool
        Start with a region of 2 MiB and double from there; otherwise the first region is the whole capacity.
    garbage_collection : bool
        Where a region no longer fits, give back those that are wholly free and try again, as TensorFlow does on
        GPUs (`TF_ENABLE_GPU_GARBAGE_COLLECTION`).

    Raises
    ------
    ValueError
        No growth, but no capacity either.

    Notes
    -----
    A chunk is cut where it is at least twice the request or the rest is 128 MiB and more; otherwise the rest is
    wasted until the chunk is free again. The 21 bins hold chunks of 256 * 2**b bytes and more, each sorted by size
    and address, and are searched upwards: that is the smallest chunk that fits, so one sorted list stands for them.
    O(B) a request for B free chunks, O(log B) searches. It has no streams of its own: it waits for all where bytes
    go to another stream. Departures: the device says how much it has left, so no region is tried in steps of 0.9
    (`kBackpedalFactor`); regions that happen to be neighbours stay apart, as with cudaMalloc; no timestamps.

    Examples
    --------
    >>> bfc = BFC()
    >>> a, b = bfc.allocate(1000), bfc.allocate(100)
    >>> bfc.free(a)
    >>> a, b, bfc.allocate(600), bfc.allocate(100)  # 1,024 bytes are less than twice 768: the chunk stays whole
    (0, 1024, 0, 1280)
    >>> bfc.statistics.reserved.peak, bfc.statistics.allocated.current
    (2097152, 1536)

    References
    ----------
    TensorFlow, core/common_runtime/bfc_allocator.{h,cc} at 0854f7c and 010f3ed.
    """

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`."""
        asked = checked(size, "size")
        needed = rounded(asked, MIN_ALLOCATION)
        start = self._free.best(needed)
        if start is None:
            if not self._grow(needed):
                raise full(asked, self.device)
            start = self._free.best(needed)
            assert start is not None  # the new region's
        chunk = self._free.at(start)
        given = needed if chunk >= 2 * needed or chunk - needed >= MAX_INTERNAL_FRAGMENTATION else chunk
        self._last_use.claim(start, given, stream)
        self._free.take(start, given)
        return self._live.add(start, Granted(given, asked, None))

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Take a chunk back and merge it with its free neighbours in the region."""
        block = self._live.remove(offset)
        self._last_use.freed(offset, block.size, stream)
        self._free.put(offset, block.size)

    def _waited(self) -> None:
        self._last_use.clear()
