"""Numba's memory manager: the device arrays of a program that is not changed, served from a plan of its iteration.

`NUMBA_CUDA_MEMORY_MANAGER=gpumem.runtime.emm python program.py`, or `numba.cuda.set_memory_manager` with the class
here.

::

    cuda.device_array, to_device, ... --> memalloc --> Served --> SmartPool --> bytes of one range of addresses
    an array is dropped ----------------> PoolPointer.__del__ -> Served.free           (a note, no call of the driver)

To say more than the environment can, and to ask what came of it::

    from gpumem.runtime import emm
    emm.configure(capacity="2GiB")  # before the first device array
    print(emm.statistics())

Under a memory limit, `GPUMEM_LIMIT=300MiB` or `emm.configure(limit="300MiB")`, arrays move to the host and back around
the program's launches and copies, see `limit`; `emm.report()` says how that went. The pool has those that are small.

Numba tells no stream with a request. While one stream only is in use, there is nothing to wait for: what was freed is
handed out at once, in its order. As soon as there are several, bytes that were freed since the last join are handed out
after a join only, of all streams that Numba knows: whoever used them is then done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from numba import cuda

from gpumem.runtime.emm import numba_internals
from gpumem.runtime.emm.context_pool import ContextPool, OutOfMemory, PoolPointer, _memories
from gpumem.runtime.emm.options import Options, checked
from gpumem.runtime.emm.streams import all_streams, watch
from gpumem.runtime.pooled.stream_joins import Events
from gpumem.runtime.residency.report import ManagedReport

_options: Options | None = None  # as given to `configure`


def configure(**options: Any) -> None:
    """Say how memory is served, instead of the environment; before the program's first device array.

    `configure(capacity="2GiB")`, `configure(limit="300MiB")`: see `Options`, `ValueError` for what makes no sense,
    `RuntimeError` where it is too late.
    """
    global _options
    if any(not memory.closed for memory in _memories):
        raise RuntimeError("device arrays have been allocated already: configure before the first, or after a reset")
    _options = checked(Options(**options))


@dataclass(frozen=True, slots=True)
class ManagerStatistics:
    """What came of the requests of a program; `statistics` returns it.

    Attributes
    ----------
    hits, misses : int
        Mallocs served from the plan, and by the pool below it.
    plans : int
        How often an iteration was planned.
    deviations : int
        Requests that were not as planned.
    joins : int
        How often bytes changed hands while there were several streams.
    live_bytes, peak_bytes, held_bytes : int
        Handed out now, at most so far; taken from the device.
    """

    hits: int = 0
    misses: int = 0
    plans: int = 0
    deviations: int = 0
    joins: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0
    held_bytes: int = 0

    @property
    def share(self) -> float:
        """The part of all mallocs that the plan served; 0 where there were none."""
        return self.hits / max(self.hits + self.misses, 1)


def statistics() -> ManagerStatistics:
    """Return what came of the current context's requests, since its first or its last reset."""
    manager = cuda.current_context().memory_manager
    if not isinstance(manager, MemoryManager):
        raise RuntimeError("Numba has another memory manager: set NUMBA_CUDA_MEMORY_MANAGER=gpumem.runtime.emm")
    return manager.statistics()


def report() -> ManagedReport:
    """Return what came of the current context's arrays within their limit, since its first or its last reset."""
    memory = getattr(cuda.current_context().memory_manager, "_memory", None)
    if memory is None or memory.limited is None:
        raise RuntimeError("no device array is under a memory limit: set GPUMEM_LIMIT and NUMBA_CUDA_MEMORY_MANAGER")
    return memory.limited.arrays.report()  # type: ignore[no-any-return]


class MemoryManager(numba_internals.HostOnlyManager):  # type: ignore[misc]
    """Numba's plugin: device arrays from a pool with a plan. Pinned, mapped and managed memory is Numba's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._memory: ContextPool | None = None
        self.streams: Events | None = None
        self._deferring = 0
        self._beginning = threading.RLock()

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface that this is for."""
        return 1

    def initialize(self) -> None:
        """Let Numba keep as much pinned and mapped memory back from being freed as it does by itself."""
        numba_internals.keep_back(self.deallocations)
        with self._beginning:
            if self.streams is None:
                self.streams = all_streams(numba_internals.ordinal(self.context))
                watch(_streams_of)

    def memalloc(self, size: int) -> PoolPointer:
        """Return memory for an array."""
        memory = self._memory or self._begin()
        try:
            address = memory.allocate(size)
        except MemoryError:
            self.deallocations.clear()  # managed memory may be there too, freed and kept back
            try:
                address = memory.allocate(size)
            except MemoryError as error:
                raise OutOfMemory(error) from error
        return PoolPointer(memory, address, size)

    def _begin(self) -> ContextPool:
        with self._beginning:
            if self._memory is not None:  # another thread was first
                return self._memory
            self.initialize()
            assert self.streams is not None
            try:
                memory = ContextPool(self.context, self.streams, _options or Options.of_environment())
            except MemoryError as error:
                raise OutOfMemory(error) from error
            memory.deferring = self._deferring
            self._memory = memory
            return memory

    def get_memory_info(self) -> Any:
        """Return (free, total) bytes: what the pool holds and has not handed out is free."""
        free, total = numba_internals.memory_info()
        if (memory := self._memory) is not None:
            live = memory.served.statistics.allocated.current
            free = min(free + memory.idle, memory.capacity - live)
            if memory.limited is not None:
                free = memory.limited.free
        return numba_internals.reported_memory(free, total)

    def get_ipc_handle(self, memory: Any) -> NoReturn:
        """Refuse: the bytes of an array are part of a mapping that other processes cannot open."""
        raise NotImplementedError(
            "an array in gpumem's pool cannot be shared with another process: copy it through the host, or run without "
            "NUMBA_CUDA_MEMORY_MANAGER=gpumem.runtime.emm"
        )

    def reset(self) -> None:
        """Give everything back; the next request begins anew."""
        super().reset()
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
        if self.streams is not None:
            self.streams.close()

    @contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """Give nothing back meanwhile."""
        with super().defer_cleanup():
            self._defer(1)
            try:
                yield
            finally:
                self._defer(-1)

    def _defer(self, more: int) -> None:
        """Count who defers; give back what was kept, once nobody does any more."""
        with self._beginning:
            self._deferring += more
            if (memory := self._memory) is not None:
                memory.deferring = self._deferring
                while memory.deferred and not self._deferring:
                    memory.drop(memory.deferred.popleft())

    def statistics(self) -> ManagerStatistics:
        """Return what came of the requests so far."""
        if (memory := self._memory) is None:
            return ManagerStatistics()
        counts = memory.served.statistics
        return ManagerStatistics(
            hits=counts.hits,
            misses=counts.misses,
            plans=counts.plans,
            deviations=counts.deviations.total(),
            joins=memory.streams.joins,
            live_bytes=counts.requested.current,
            peak_bytes=counts.requested.peak,
            held_bytes=memory.backing.size,
        )


def _streams_of(context: Any) -> Events | None:
    """Return the streams of a context, where they are of interest."""
    manager = context.memory_manager
    return manager.streams if isinstance(manager, MemoryManager) else None
