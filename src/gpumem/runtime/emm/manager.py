"""Numba's memory manager: the device arrays of a program that is not changed, served from a plan of its iteration.

`NUMBA_CUDA_MEMORY_MANAGER=gpumem.runtime.emm python program.py`, or `numba.cuda.set_memory_manager` with the class here.

::

    cuda.device_array, to_device, ... --> memalloc --> Served --> SmartPool --> bytes of one range of addresses
    an array is dropped ----------------> PoolPointer.__del__ -> Served.free           (a note, no call of the driver)

To say more than the environment can, and to ask what came of it::

    from gpumem.runtime import emm
    emm.configure(capacity="2GiB")  # before the first device array
    print(emm.statistics())

Within a limit, `GPUMEM_LIMIT=300MiB` or `emm.configure(limit="300MiB")`, arrays move to the host and back around the
program's launches and copies, see `emm_limit`; `emm.report()` says how that went. The pool has those that are small.

Numba tells no stream with a request. While one stream only is in use, there is nothing to wait for: what was freed is
handed out at once, in its order. As soon as there are several, bytes that were freed since the last join are handed out
after a join only, of all streams that Numba knows: whoever used them is then done.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from numba import cuda
from numba.cuda.cudadrv import driver as numba_driver

from gpumem.base.units import amount
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.planners import PLANNERS
from gpumem.pool.smartpool.online import SmartPool
from gpumem.runtime.emm.options import Options, checked, names
from gpumem.runtime.emm.streams import AllStreams, watch
from gpumem.runtime.pooled.backing import backing, can_map
from gpumem.runtime.pooled.served import Served
from gpumem.runtime.pooled.stream_joins import Events
from gpumem.runtime.residency.report import ManagedReport

_Pointer: Any = getattr(numba_driver, "MemoryPointer", object)  # Numba's simulator has none
_HostOnly: Any = getattr(numba_driver, "HostOnlyCUDAMemoryManager", object)
ALL, FREED = 0, 1  # to the allocator: a stream that may have anything, and one whose bytes nobody has before a join


_options: Options | None = None  # as `configure` was told
_memories: weakref.WeakSet[ContextPool] = weakref.WeakSet()  # from their first request on


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
        raise RuntimeError("no device array is within a limit: set GPUMEM_LIMIT, and NUMBA_CUDA_MEMORY_MANAGER to this")
    return memory.limited.arrays.report()  # type: ignore[no-any-return]


class OutOfMemory(numba_driver.CudaAPIError, MemoryError):  # type: ignore[misc]
    """No room in the pool: what Numba raises where the device is full, and a `MemoryError` besides."""

    def __init__(self, told: object) -> None:
        super().__init__(numba_driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY, str(told))


class ContextPool:
    """The pool of one context, from its first request until it is reset."""

    def __init__(self, context: Any, streams: AllStreams, options: Options) -> None:
        device, (free, total) = _ordinal(context), numba_driver.driver.cuMemGetInfo()
        most = total if can_map(device) else free * 9 // 10  # mapped as needed, or taken at once
        self.capacity = capacity = amount(options.limit or options.capacity or most, total, "capacity")
        self.context = weakref.proxy(context)
        self.closed = False
        self.streams = streams
        self.pool = SmartPool(
            CnMem(capacity=capacity), planner=PLANNERS[options.planner], min_length=options.min_length
        )
        self.backing: Any = backing(device, capacity)
        self.limited: Any = None if options.limit is None else self._limited(context, options)
        self.served = Served(self.pool, self.backing, streams=self.streams)
        self.deferring = 0  # how many say that nothing may be given back now
        self.deferred: deque[int] = deque()
        _memories.add(self)

    def _limited(self, context: Any, options: Options) -> Any:
        """Have arrays move within a limit, all but those that are small, and the pool for these be within it too."""
        from gpumem.runtime.emm.limit import ContextLimit  # which needs what Numba's simulator has not got

        told: dict[str, Any] = {"planner": names(options.swap), "detect": options.detect, "wait": options.wait}
        try:
            limited = ContextLimit(
                context, self.capacity, self.allocate, self.drop, min_length=options.min_length, **told
            )
        except BaseException:
            self.backing.close()
            raise
        self.backing = limited.charging(self.backing)
        return limited

    def allocate(self, size: int) -> int:
        """Return the address of a block: within a limit, of one that moves, if it is no small one."""
        if self.limited is not None and size >= self.limited.least:
            address: int = self.limited.arrays.allocate(size)
            return address
        return self.served.allocate(size, ALL)

    def drop(self, address: int) -> None:
        """Take a block back; may come from a finalizer, at any moment."""
        if self.deferring:
            self.deferred.append(address)
        elif self.closed:
            return
        elif self.limited is not None and self.limited.arrays.owns(address):
            self.limited.arrays.free(address)
        else:
            self.served.free(address, FREED if self.streams.several else ALL)

    def close(self) -> None:
        """Give everything back to the device, whatever state it is in; blocks that are left are worth nothing."""
        self.closed = True
        if self.limited is not None:
            self.limited.close()
        try:
            self.served.close(at_once=True)
        except RuntimeError:  # what was under way has failed, and a reset is the way out of that
            with suppress(RuntimeError):
                self.backing.close()

    @property
    def idle(self) -> int:
        """Bytes that are held and not handed out."""
        live: int = self.served.statistics.allocated.current
        held: int = self.backing.size
        return max(held - live, 0)


class PoolPointer(_Pointer):  # type: ignore[misc]
    """Device memory of an array and its views: freed when the last of them goes, or by `free`.

    Numba's own pointers have a `weakref.finalize` each, of more cost than all of the rest.
    """

    is_managed, refct, _owner = True, 1, None  # refct: of views; the block itself is the one
    _memory: ContextPool | None = None

    def __init__(self, memory: ContextPool, address: int, size: int) -> None:
        self.context = memory.context
        self.device_pointer = self.handle = address
        self.size = self._cuda_memsize_ = size
        self._memory = memory

    def free(self) -> None:
        """Give the bytes back now, whoever still refers to them."""
        memory, self._memory = self._memory, None
        if memory is None:
            raise RuntimeError("Freeing dead memory")
        memory.drop(self.device_pointer)

    def __del__(self) -> None:
        if (memory := self._memory) is not None:
            memory.drop(self.device_pointer)


class MemoryManager(_HostOnly):  # type: ignore[misc]
    """Numba's plugin: device arrays from a pool with a plan. Pinned, mapped and managed memory is Numba's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._memory: ContextPool | None = None
        self._streams: AllStreams | None = None
        self._deferring = 0
        self._beginning = threading.RLock()

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface that this is for."""
        return 1

    def initialize(self) -> None:
        """Let Numba keep as much pinned and mapped memory back from being freed as it does by itself."""
        if self.deallocations.memory_capacity == numba_driver._SizeNotSet:
            self.deallocations.memory_capacity = numba_driver.driver.cuMemGetInfo()[1]
        with self._beginning:
            if self._streams is None:
                self._streams = AllStreams(Events(_ordinal(self.context)))
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
            assert self._streams is not None
            try:
                memory = ContextPool(self.context, self._streams, _options or Options.of_environment())
            except MemoryError as error:
                raise OutOfMemory(error) from error
            memory.deferring = self._deferring
            self._memory = memory
            return memory

    def get_memory_info(self) -> Any:
        """Return (free, total) bytes: what the pool holds and has not handed out is free."""
        free, total = numba_driver.driver.cuMemGetInfo()
        if (memory := self._memory) is not None:
            live = memory.served.statistics.allocated.current
            free = min(free + memory.idle, memory.capacity - live)
            if memory.limited is not None:
                free = memory.limited.free
        return numba_driver.MemoryInfo(free=free, total=total)

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
        if self._streams is not None:
            self._streams.close()

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


def _ordinal(context: Any) -> int:
    """Return the number of a context's device, which is the driver's own where somebody else made the context."""
    return int(getattr(context.device, "id", context.device))


def _streams_of(context: Any) -> AllStreams | None:
    """Return the streams of a context, where they are of interest."""
    manager = context.memory_manager
    return manager._streams if isinstance(manager, MemoryManager) else None
