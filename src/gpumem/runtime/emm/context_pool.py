"""The pool of one context, from which Numba's manager serves."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import Any

from gpumem.base.units import amount
from gpumem.execute.cuda.driver_calls import can_map
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.planners import PLANNERS
from gpumem.pool.smartpool.online import SmartPool
from gpumem.runtime.emm import numba_internals
from gpumem.runtime.emm.options import Options, names
from gpumem.runtime.pooled.backing import backing
from gpumem.runtime.pooled.served import NOBODYS, Served
from gpumem.runtime.pooled.stream_joins import Events

_memories: weakref.WeakSet[ContextPool] = weakref.WeakSet()  # from their first request on


class OutOfMemory(numba_internals.CudaAPIError, MemoryError):  # type: ignore[misc]
    """No room in the pool: what Numba raises where the device is full, and a `MemoryError` besides."""

    def __init__(self, reason: object) -> None:
        super().__init__(numba_internals.out_of_memory(), str(reason))


class ContextPool:
    """The pool of one context, from its first request until it is reset."""

    def __init__(self, context: Any, streams: Events, options: Options) -> None:
        device, (free, total) = numba_internals.ordinal(context), numba_internals.memory_info()
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
        """Have arrays move under a memory limit, but for small ones, whose pool is within it too."""
        from gpumem.runtime.emm.limit import ContextLimit  # which needs what Numba's simulator has not got

        keywords: dict[str, Any] = {"planner": names(options.swap), "seconds": options.seconds}
        keywords |= {"detect": options.detect, "wait": options.wait}
        try:
            limited = ContextLimit(
                context, self.capacity, self.allocate, self.drop, min_length=options.min_length, **keywords
            )
        except BaseException:
            self.backing.close()
            raise
        self.backing = limited.charging(self.backing)
        return limited

    def allocate(self, size: int) -> int:
        """Return the address of a block: under a memory limit, of one that moves, if it is no small one."""
        if self.limited is not None and size >= self.limited.least:
            address: int = self.limited.arrays.allocate(size)
            return address
        return self.served.allocate(size)

    def drop(self, address: int) -> None:
        """Take a block back; may come from a finalizer, at any moment."""
        if self.deferring:
            self.deferred.append(address)
        elif self.closed:
            return
        elif self.limited is not None and self.limited.arrays.owns(address):
            self.limited.arrays.free(address)
        else:
            self.served.free(address, NOBODYS if self.streams.several else 0)

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


class PoolPointer(numba_internals.MemoryPointer):  # type: ignore[misc]
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
