"""PyTorch's caching allocator: blocks of a stream, kept for the next request of their kind."""

from __future__ import annotations

from gpumem.pool.allocators._blocks import Granted, checked, rounded
from gpumem.pool.allocators._segments import LARGE_BUFFER, SMALL_SIZE, Expandable, Segments
from gpumem.pool.allocators.native import GRANULARITY, Native, OnDevice, full

MIN_BLOCK = 512  # kMinBlockSize: "all sizes are rounded to at least 512 bytes"


class Caching(OnDevice[Segments | Expandable]):
    """PyTorch's CUDACachingAllocator.

    Parameters
    ----------
    capacity, device
        As `OnDevice` has them.
    max_split_size : int, optional
        Blocks of so many bytes and more are not split, nor used for smaller requests; above 20 MiB.
    expandable_segments : bool
        Map pages into one segment a stream and size class instead of taking segments by cudaMalloc.
    garbage_collection_threshold : float, optional
        In (0, 1): above this part of the capacity, segments that have been idle for longer than the average go back
        to the device before a new one is taken.
    roundup_power2_divisions : int
        Round sizes to so many steps between two powers of two; a power of two, 1 for steps of 512 bytes.
    wait : bool
        Where no cached block fits, wait for blocks that another stream used last before growing. Without it they
        come back only where the device is full or by `empty_cache`.

    Raises
    ------
    ValueError
        An option that PyTorch refuses as well; splitting or collecting options beside expandable segments, where
        they mean nothing; a threshold without a capacity.

    Notes
    -----
    A request takes the smallest block of its stream and size class that fits (up to 1 MiB: small), the lowest of
    several, and leaves the rest in the cache: where it is 512 bytes and more (small or expandable) or more than
    1 MiB (large). Where none fits it takes a segment: 2 MiB for small ones, 20 MiB below 10 MiB, else the size in
    2 MiB. Where the device is full: cached blocks of at least `max_split_size`, as few as need be; then all segments
    wholly free; then MemoryError, after which the segments given back stay so. As in the source, a segment that is
    rounded up to `max_split_size` never serves a second time the request it was made for.

    A block freed on another stream than its own waits for `synchronize`, as after `record_stream`. PyTorch asks the
    driver at each request whether the work has ended; nobody here knows, hence `wait`: it waits instead of growing,
    where PyTorch does the one or the other depending on the clock. O(log B) searches in lists of B cached blocks.

    Examples
    --------
    >>> caching = Caching()
    >>> [caching.allocate(size << 20) >> 20 for size in (1, 2, 12)]  # segments [0, 2) and [2, 22), which is split
    [0, 2, 4]
    >>> caching.free(4 << 20)
    >>> caching.allocate(19 << 20) >> 20, caching.statistics.reserved.peak >> 20  # 18 MiB are cached: too few
    (22, 42)

    References
    ----------
    PyTorch, c10/cuda/CUDACachingAllocator.cpp at 001074d; "CUDA semantics: memory management" in its documentation.
    """

    def __init__(
        self,
        *,
        capacity: int | None = None,
        max_split_size: int | None = None,
        expandable_segments: bool = False,
        garbage_collection_threshold: float | None = None,
        roundup_power2_divisions: int = 1,
        wait: bool = True,
        device: Native | None = None,
    ) -> None:
        super().__init__(capacity, device, MIN_BLOCK, GRANULARITY)
        self._divisions = checked(roundup_power2_divisions, "roundup_power2_divisions")
        if self._divisions & (self._divisions - 1):
            raise ValueError(f"roundup_power2_divisions: {self._divisions} is not a power of two")
        self._expands, self._waits = expandable_segments, wait
        self._max_split, self._collects = max_split_size, garbage_collection_threshold is not None
        self._collect_above = 0  # bytes reserved
        if (part := garbage_collection_threshold) is not None:
            if not 0 < part < 1:
                raise ValueError(f"garbage_collection_threshold: {part} is not in (0, 1)")
            if self.device.capacity is None:
                raise ValueError(f"garbage_collection_threshold: {part} of no capacity")
            self._collect_above = int(part * self.device.capacity)
        if expandable_segments and (max_split_size is not None or self._collects):
            raise ValueError("expandable_segments: they take neither max_split_size nor garbage_collection_threshold")
        if max_split_size is not None and checked(max_split_size, "max_split_size") <= LARGE_BUFFER:
            raise ValueError(f"max_split_size: {max_split_size} is not above {LARGE_BUFFER}")
        self._requests = 0  # for large blocks
        self._idle_since: dict[int, int] = {}  # large segment -> `_requests` when it became wholly free
        self._pools: dict[tuple[bool, int], Segments | Expandable] = {}
        self._pending: list[tuple[int, Granted[Segments | Expandable]]] = []  # freed, but another stream used them last

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`."""
        asked = checked(size, "size")
        needed = self._rounded(asked)
        pool = self._pool(needed <= SMALL_SIZE, stream)
        self._requests += not pool.small
        start = self._cached(pool, needed)
        if start is None and self._waits and any(block.home is pool for _, block in self._pending):
            self._finish()
            start = self._cached(pool, needed)
        if start is None:
            start = self._grown(pool, needed)
        if start is None:
            raise full(asked, self.device)
        block = pool.free.at(start)
        given = needed if self._splits(pool, needed, block - needed) else block
        pool.free.take(start, given)
        return self._live.add(start, Granted(given, asked, pool))

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Take a block back into the cache, at once if its own stream used it last."""
        block = self._live.remove(offset)
        if stream == block.home.stream:
            self._put(offset, block)
        else:
            self._pending.append((offset, block))

    def empty_cache(self) -> None:
        """Return to the device all that is not in use (`torch.cuda.empty_cache`)."""
        self._finish()
        for key in sorted(self._pools):
            self._pools[key].give_back()

    def _finish(self) -> None:
        """Wait for all streams, then take back what they used last."""
        if self._pending:
            self.synchronize()
        for offset, block in self._pending:
            self._put(offset, block)
        self._pending.clear()

    def _put(self, offset: int, block: Granted[Segments | Expandable]) -> None:
        free = block.home.free
        start = free.put(offset, block.size)
        if self._collects and not block.home.small and free.at(start) == free.segments.get(start):
            self._idle_since[start] = self._requests

    def _rounded(self, size: int) -> int:
        if self._divisions > 1 and size > MIN_BLOCK * self._divisions:
            return rounded(size, (1 << (size.bit_length() - 1)) // self._divisions)
        return rounded(size, MIN_BLOCK)

    def _pool(self, small: bool, stream: int) -> Segments | Expandable:
        if (small, stream) not in self._pools:
            kind = Expandable if self._expands else Segments
            self._pools[small, stream] = kind(self.device, small, stream)
        return self._pools[small, stream]

    def _cached(self, pool: Segments | Expandable, size: int) -> int | None:
        start = pool.find(size)
        if start is None or self._max_split is None:
            return start
        block = pool.free.at(start)
        oversize = block >= self._max_split if size < self._max_split else block >= size + LARGE_BUFFER
        return None if oversize else start

    def _splits(self, pool: Segments | Expandable, size: int, rest: int) -> bool:
        if pool.small or self._expands:
            return rest >= MIN_BLOCK
        return rest > SMALL_SIZE and (self._max_split is None or size < self._max_split)

    def _grown(self, pool: Segments | Expandable, size: int) -> int | None:
        """Return a block of the device's, if need be after giving cached ones back."""
        self._collect()
        start = pool.grow(size)
        if start is None and isinstance(pool, Segments) and self._release(pool, size):
            start = pool.grow(size)
        if start is None:
            self.empty_cache()
            start = pool.grow(size)
        return start

    def _release(self, pool: Segments, size: int) -> bool:
        """Give back the smallest oversize block that fits, or the largest ones until enough bytes are free."""
        if self._max_split is None:
            return False
        oversize = [(bytes_, start) for start, bytes_ in pool.free.whole() if bytes_ >= self._max_split]
        fits = [block for block in oversize if block[0] >= size]
        released = 0
        for bytes_, start in [min(fits)] if fits else sorted(oversize, reverse=True):
            pool.release(start)
            released += bytes_
            if released >= size:
                return True
        return False

    def _collect(self) -> None:
        """Above the threshold, give back the large segments that have been idle for longer than the average."""
        excess = self.statistics.reserved.current - self._collect_above if self._collects else 0
        while excess > 0 and (idle := self._idle()):
            mean = sum(age for age, _, _ in idle) / len(idle)
            for _, pool, start in [entry for entry in idle if entry[0] >= mean]:
                excess -= pool.free.at(start)
                pool.release(start)

    def _idle(self) -> list[tuple[int, Segments, int]]:
        """Large segments that are wholly free: (requests since then, pool, first byte)."""
        pools = [pool for pool in self._pools.values() if isinstance(pool, Segments) and not pool.small]
        return [(self._requests - self._idle_since[at], pool, at) for pool in pools for at, _ in pool.free.whole()]
