"""Waterwave's allocator for several streams: free chunks apart by the stream that may still be using them."""

from __future__ import annotations

import operator

from gpumem.pool.allocators._blocks import FreeRanges, Granted, checked, rounded
from gpumem.pool.allocators._regions import MIN_ALLOCATION, Regions
from gpumem.pool.allocators.native import Native, full


class MultiStream(Regions):
    """Waterwave's asynchronous multi-stream allocator: chunks are free once the work on them is enqueued.

    ::

        free(p, stream=1) --> unsynchronised of stream 1 ---.
        free(p, stream=2) --> unsynchronised of stream 2 ---+-- sync_and_coalesce() --> synchronised
        used on both      --> nobody's ---------------------'

        allocate(size, stream=1):  1. unsynchronised of stream 1   2. synchronised   3. sync_and_coalesce(), 1 and 2
                                   4. another region, where the device has any       5. MemoryError

    Parameters
    ----------
    capacity, allow_growth, garbage_collection, device
        As `BFC` has them, with its errors. A capacity without growth is the paper's pool.

    Attributes
    ----------
    syncs : int
        How often it has called `synchronize`.

    Notes
    -----
    `synchronize` puts all streams in order: what is enqueued on a stream afterwards comes after what was enqueued on
    all of them before. Waits for events do that, from each stream to each other one, so the host need not wait.

    A chunk that is freed is unsynchronised of the stream whose work on it nothing has yet put before that of others:
    the one named by `free`. A stream that `use` named since the last sync may still be at work too. If that leaves
    one stream, the chunk is that stream's; if several, it is nobody's before the next sync. The paper puts it back to
    the stream that *allocated* it. With jobs whose groups change streams that is an error: made on stream 0, read last
    on stream 1, the chunk would serve stream 0 while stream 1 still reads.

    Each kind of free chunk takes the best fit, the lowest of several, and keeps what is left of it. Chunks coalesce
    with their like at once, with others at a sync, as in the paper: a synchronised chunk that joined an
    unsynchronised one would be lost to the other streams. O(log B) searches in lists of B free chunks, O(B log B) a
    sync. Departures: a chunk is always cut, where TensorFlow leaves up to half of it unused; the pool may grow.

    Examples
    --------
    >>> pool = MultiStream(capacity=1024, allow_growth=False)
    >>> a, b = pool.allocate(512, stream=0), pool.allocate(256, stream=1)
    >>> pool.free(a, stream=0)
    >>> pool.allocate(256, stream=1), pool.allocate(256, stream=0), pool.syncs  # a synchronised one, its own
    (768, 0, 0)
    >>> pool.allocate(256, stream=1), pool.syncs  # the other half of `a`
    (256, 1)

    References
    ----------
    Shi et al., "Waterwave: A GPU Memory Flow Engine for Concurrent DNN Training", section 4.2.
    """

    def __init__(
        self,
        *,
        capacity: int | None = None,
        allow_growth: bool = True,
        garbage_collection: bool = True,
        device: Native | None = None,
    ) -> None:
        super().__init__(
            capacity=capacity, allow_growth=allow_growth, garbage_collection=garbage_collection, device=device
        )
        self.syncs = 0
        self._unsynced: dict[int, FreeRanges] = {}  # by the one stream that may still be using them
        self._nobodys = self._none()  # several streams may
        self._users: dict[int, set[int]] = {}  # of a live chunk: streams that `use` named since the last sync

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`, the first that uses them."""
        asked = checked(size, "size")
        needed = rounded(asked, MIN_ALLOCATION)
        chunk = self._find(needed, stream)
        if chunk is None and self._waiting():
            self.sync_and_coalesce()
            chunk = self._find(needed, stream)
        if chunk is None and self._grow(needed):
            chunk = self._find(needed, stream)
        if chunk is None:
            raise full(asked, self.device)
        free, start = chunk
        free.take(start, needed)
        return self._live.add(start, Granted(needed, asked, None))

    def use(self, offset: int, *, stream: int = 0) -> None:
        """Note that `stream` was given work on a live chunk that nothing puts before the last work on it."""
        self._live[offset]
        self._users.setdefault(operator.index(offset), set()).add(stream)

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Take a chunk back, last used on `stream`."""
        block = self._live.remove(offset)
        start = operator.index(offset)
        self._freed_by(self._users.pop(start, set()) | {stream}).put(start, block.size)

    def sync_and_coalesce(self) -> None:
        """Put all streams in order and merge all free chunks; call it where jobs change turns.

        Does nothing where nothing was freed or named by `use` since it was done last.
        """
        if self._waiting() or self._users:
            self.synchronize()
            self.syncs += 1
            self._waited()

    def _find(self, size: int, stream: int) -> tuple[FreeRanges, int] | None:
        """Return the best chunk of those that `stream` may have at once, and where it is kept."""
        for free in (self._unsynced.get(stream, self._free), self._free):
            start = free.best(size)
            if start is not None:
                return free, start
        return None

    def _freed_by(self, users: set[int]) -> FreeRanges:
        """Return where a chunk goes that these streams may still be using."""
        if len(users) > 1:
            return self._nobodys
        (stream,) = users
        return self._unsynced.setdefault(stream, self._none())

    def _waiting(self) -> bool:
        """Whether any free chunk is unsynchronised."""
        return any(self._unsynced.values()) or bool(self._nobodys)

    def _waited(self) -> None:
        for unsynced in (*self._unsynced.values(), self._nobodys):
            for start, size in unsynced.clear():
                self._free.put(start, size)
        self._users.clear()

    def _none(self) -> FreeRanges:
        """No free chunks yet, in the same regions."""
        free = FreeRanges()
        free.segments = self._free.segments
        return free
