"""Memory that an allocator serves: its offsets become addresses, for several threads and in the order of streams.

::

    allocate(size, stream) --> carry out what was freed --> ask the allocator --> grow the bytes behind it --> address
    free(address, stream)  --> take a note, in any thread, at any moment: finalizers do

The allocator asks for a `synchronize` where bytes go from one stream to another, and gets a join: each stream waits for
what the others were given so far, on the device. A stream that comes later waits when it first asks for memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from gpumem.pool.allocators.protocol import Allocator
from gpumem.pool.allocators.streams import MultiStream
from gpumem.pool.smartpool.online import SmartPool
from gpumem.runtime.pooled.backing import Backing, backing as on_device
from gpumem.runtime.pooled.stream_joins import OF_A_THREAD, Events, Joiner, known

SHORTEST = 4  # requests of an iteration at least: small programs have few. Not tuned
NOBODYS = -(2**61)  # the stream of what is freed where nobody knows who used it: nobody has such bytes before a join


class Served:
    """An allocator whose blocks are real memory; itself an `Allocator`, of addresses.

    Parameters
    ----------
    allocator : Allocator
        Decides where blocks lie, from offset 0 on. It belongs to this object, which sets its `synchronize`.
    backing : Backing
        The bytes: `[base, base + top)` are there once `grow(top)` has returned.
    streams : Joiner
        Joins streams where bytes change hands; `Events(device)` on a GPU.

    Attributes
    ----------
    top : int
        How many bytes the backing was asked for so far.
    synchronize : callable
        What the allocator's `synchronize` calls: the joiner's join of all streams that were seen so far.

    Raises
    ------
    ValueError
        An allocator whose alignment the backing's first byte lacks; a size below 1; an address that no live block has.
    MemoryError
        From `allocate`: no room, even after what was freed was carried out and what is idle was given back.
    RuntimeError
        From `allocate`: it was called from within itself, say by a planner; or `close` was called.

    Notes
    -----
    `free` never waits, never asks the driver and never calls the allocator, so it may come from a finalizer that runs
    while this very thread is inside `allocate`. What it noted is carried out within the next request; whatever is
    raised there is raised from that request, and it is carried out again with the next one.

    Where the backing cannot grow, the block is given back to the allocator, whose statistics have seen it.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from gpumem.pool import Native
    >>> memory = SimpleNamespace(base=4096, grow=lambda top: print("grow to", top), close=lambda: None)
    >>> streams = SimpleNamespace(admit=lambda stream, owner: None, join=lambda: None)
    >>> served = Served(Native(granularity=256), memory, streams=streams)
    >>> a = served.allocate(1000, stream=7)
    grow to 1000
    >>> served.free(a)
    >>> a, served.allocate(24), served.top
    (4096, 4096, 1000)
    """

    def __init__(self, allocator: Allocator, backing: Backing, *, streams: Joiner) -> None:
        self.allocator, self.backing, self.streams = allocator, backing, streams
        self._base = backing.base
        self.alignment: int = getattr(allocator, "alignment", 1)
        if backing.base % self.alignment:
            raise ValueError(f"backing: its first byte, {backing.base:#x}, is not a multiple of {self.alignment}")
        self.top = 0
        self.synchronize: Callable[[], None] = lambda: self.streams.join()
        if hasattr(allocator, "synchronize"):
            allocator.synchronize = lambda: self.synchronize()
        self._lock = threading.RLock()
        self._inside = self._closed = self._ended = False
        self._live: dict[int, int] = {}  # address -> the stream it was allocated for
        self._freed: deque[tuple[int, int, int | None, object]] = deque()  # address, for which stream, last on, owner

    @classmethod
    def on(cls, device: int, capacity: int, allocator: Allocator | None = None) -> Served:
        """Return memory of a GPU, `capacity` bytes at most; of a `SmartPool` that keeps to them, where none is given.

        Its fallback puts blocks as low as they fit, in one range of addresses, so that few bytes are ever needed behind
        them. Errors are those of `gpumem.runtime.pooled.backing`.
        """
        memory = on_device(device, capacity)
        try:
            whole = MultiStream(capacity=capacity, allow_growth=False)
            return cls(
                SmartPool(whole, min_length=SHORTEST) if allocator is None else allocator,
                memory,
                streams=Events(device),
            )
        except BaseException:
            memory.close()
            raise

    @property
    def capacity(self) -> int | None:
        """The allocator's, None where it has none."""
        capacity: int | None = getattr(self.allocator, "capacity", None)
        return capacity

    @property
    def statistics(self) -> Any:
        """The allocator's, with all that was freed so far."""
        with self._lock:
            if not (self._inside or self._closed):
                self._enter()
                self._inside = False
            return self.allocator.statistics  # type: ignore[attr-defined]

    def allocate(self, size: int, stream: int = 0, owner: object = None) -> int:
        """Return the address of `size` bytes for work on `stream`, a handle that is valid while its `owner` is alive.

        `RuntimeError`: the stream is being captured into a graph, which would use the bytes after they were freed.
        """
        if stream in OF_A_THREAD:
            stream = known(stream)
        with self._lock:
            self._enter()
            try:
                self.streams.admit(stream, owner)
                try:
                    offset = self._take(size, stream)
                except MemoryError:
                    offset = self._take_tidied(size, stream)
                address = self._base + offset
                self._live[address] = stream
                return address
            finally:
                self._inside = False

    def free(self, address: int, stream: int | None = None, owner: object = None) -> None:
        """Take back what `allocate` returned, last used on `stream`, whose `owner` is kept until a join.

        If None, nobody knows, and all are waited for with the next request; if `NOBODYS`, when the bytes are needed.
        """
        try:
            first = self._live.pop(address)
        except (KeyError, TypeError):
            raise ValueError(f"address {address!r:.60}: no live block starts there") from None
        if stream in OF_A_THREAD:
            stream = known(stream)
            if first < 0 and stream != first:  # two threads' own: a finalizer cannot tell whose it was
                stream = None
        if owner is not None and stream is not None:
            self.streams.keep(stream, owner)
        self._freed.append((address, first, stream, owner))
        if self._closed and not self._live:
            self._end()

    def close(self, *, at_once: bool = False) -> None:
        """Serve nothing from now on, and give all bytes back: once no block is live any more, or at once."""
        with self._lock:
            if self._inside:
                raise RuntimeError("this memory cannot be closed from within a request for memory")
            self._closed = True
        if at_once or not self._live:
            self._end()

    def _end(self) -> None:
        """Give all bytes back, when the device is done with them."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            try:
                self.streams.wait()
            finally:
                self.backing.close()
                self.streams.close()

    def _enter(self) -> None:
        """Begin a request: carry out what was freed."""
        if self._inside:
            raise RuntimeError("memory is asked for from within a request for memory, say by a planner: ask elsewhere")
        if self._closed:
            raise RuntimeError("this memory was closed: nothing can be allocated in it")
        self._inside = True
        if self._freed:
            try:
                self._drain()
            except BaseException:
                self._inside = False
                raise

    def _take(self, size: int, stream: int) -> int:
        """Ask the allocator, and have the bytes behind its answer; if they cannot be had, nothing has happened."""
        offset = self.allocator.allocate(size, stream=stream)
        if offset + size > self.top:
            try:
                self.backing.grow(offset + size)
            except BaseException:
                self._freed.append((self._base + offset, stream, stream, None))
                raise
            self.top = offset + size
        return offset

    def _take_tidied(self, size: int, stream: int) -> int:
        """Ask once more, with all that is free in one piece."""
        self._drain()
        for name in ("trim", "sync_and_coalesce"):
            if (tidy := getattr(self.allocator, name, None)) is not None:
                tidy()
        try:
            return self._take(size, stream)
        except MemoryError as full:
            raise MemoryError(
                f"{full}; {len(self._live)} blocks are live, the highest byte so far is {self.top}"
            ) from full

    def _drain(self) -> None:
        """Carry out what was freed, in order; what fails stays to be carried out."""
        waited = 0
        while self._freed:
            address, first, last, owner = self._freed[0]
            if last is None and not waited:
                waited = len(self._freed)  # what is noted from here on is not waited for
                self.synchronize()
            if last is not None and last != NOBODYS:
                self.streams.seen(last, owner)
            self.allocator.free(address - self._base, stream=first if last is None else last)
            self._freed.popleft()
            waited = max(waited - 1, 0)
