"""A memory resource of `cuda.core` whose buffers an allocator serves, by a plan where the program repeats itself.

::

    Device().memory_resource = PoolMemoryResource()    # from now on Device().allocate(size, stream=...) asks the pool
"""

from __future__ import annotations

import inspect
import weakref
from contextlib import closing, suppress
from functools import cache
from typing import Any, NoReturn

from cuda.bindings import driver
from cuda.core import Buffer, Device, MemoryResource, Stream

from gpumem.base.units import amount
from gpumem.pool.allocators.protocol import Allocator
from gpumem.runtime.pooled.served import Served
from gpumem.runtime.pooled.stream_joins import Events

DEFAULT = (1, 2)  # CU_STREAM_LEGACY and CU_STREAM_PER_THREAD: handles that no stream object has


class PoolMemoryResource(MemoryResource):  # type: ignore[misc]
    """Device memory from a pool, in the order of streams, for several threads.

    Parameters
    ----------
    device : int or Device, optional
        Which; the thread's current one where left out.
    capacity : int or str, optional
        Bytes that the pool may have: a number, `"4GiB"`, or a share of what is free now, `"90%"` where left out. They
        are taken as they are needed, at once where the device cannot map memory.
    allocator : Allocator, optional
        Decides where buffers lie, in `[0, capacity)`; it belongs to the resource. A `SmartPool` where left out, which
        learns the program's iteration; `SmartPool.of(trace, placement)` begins with a plan.

    Attributes
    ----------
    served : Served
        What serves; `served.top` says how many bytes were needed.

    Raises
    ------
    ValueError
        From the constructor: no such device, a capacity that is none. From `deallocate`: memory that is no buffer's.
    MemoryError
        From the constructor: not so much memory or so many addresses. From `allocate`: no room.
    TypeError
        From `allocate`: what is no `Stream`. A graph that is being built is none: it uses its memory at every launch.
    RuntimeError
        From `allocate`: the resource was closed; or the stream is being captured into a graph, which would use the
        bytes at every launch, whoever has them by then.

    Notes
    -----
    A buffer's bytes come back in the order of the stream that it was closed on, or allocated for if none is given;
    others that have used it must come before that one, as with any resource of `cuda.core`. An exception in
    `deallocate` is printed by `cuda.core` as a warning, and the buffer counts as closed.

    A resource that nobody refers to any more is closed; each of its buffers refers to it.

    The memory is no CUDA pool's: it cannot be shared with other processes, and it is not managed memory.

    A stream that memory was freed on is kept until that is ordered, even where it was closed meanwhile. One that is
    gone before is left out of joins, after a wait on the host.
    """

    def __init__(
        self,
        device: int | Any | None = None,
        capacity: int | str = "90%",
        *,
        allocator: Allocator | None = None,
    ) -> None:
        self._device_id = Device(device).device_id
        self.served = Served.on(self._device_id, _capacity(self._device_id, capacity), allocator)
        self._end = weakref.finalize(self, _quietly_close, self.served)

    def allocate(self, size: int, *, stream: Any) -> Any:
        """Return a buffer of `size` bytes for work on `stream`; one of no bytes has no address."""
        handle = _handle(stream)
        if size < 0:
            raise ValueError(f"size: {size} bytes are less than none")
        if not size:
            return self._buffer(0, 0, stream)
        address = self.served.allocate(size, handle, stream)
        try:
            return self._buffer(address, size, stream)
        except BaseException:
            self.served.free(address, handle, stream)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Take a buffer back, last used on `stream`."""
        if address := int(ptr):
            handle = None if stream is None else _handle(stream)
            self.served.free(address, handle if takes_the_stream() or handle not in DEFAULT else None, stream)

    def close(self) -> None:
        """Serve nothing from now on; the memory goes back when the last buffer is closed. Twice does nothing."""
        self.served.close()

    def __enter__(self) -> PoolMemoryResource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def device_id(self) -> int:
        """Number of the device."""
        return int(self._device_id)

    @property
    def is_device_accessible(self) -> bool:
        """True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False."""
        return False

    @property
    def is_managed(self) -> bool:
        """False."""
        return False

    @property
    def is_ipc_enabled(self) -> bool:
        """False."""
        return False

    @property
    def allocation_handle(self) -> NoReturn:
        """What other processes would import: there is none."""
        raise RuntimeError(_PRIVATE)

    def __reduce__(self) -> NoReturn:
        raise TypeError(_PRIVATE)

    @property
    def statistics(self) -> Any:
        """What the allocator counts, all that was freed so far included."""
        return self.served.statistics

    @property
    def planned(self) -> float:
        """Share of requests that were served from a plan, 0 to 1."""
        counts = self.statistics
        hits, misses = getattr(counts, "hits", 0), getattr(counts, "misses", 0)
        return float(hits / (hits + misses)) if hits else 0.0

    def _buffer(self, address: int, size: int, stream: Any) -> Any:
        keywords = {"stream": stream} if takes_the_stream() else {}
        return Buffer.from_handle(address, size, mr=self, **keywords)


@cache
def takes_the_stream() -> bool:
    """Whether a buffer is told its stream: cuda.core 1.0 frees on the default one, so there that one says nothing."""
    return "stream" in inspect.signature(Buffer.from_handle).parameters


_PRIVATE = (
    "the memory of a PoolMemoryResource belongs to this process alone: "
    "cuda.core's DeviceMemoryResource with ipc_enabled=True has memory that others can open"
)


def _capacity(device: int, asked: int | str) -> int:
    """Return how many bytes that is, of those that are free now."""
    with closing(Events(device)) as events, events.current():
        status, free, _ = driver.cuMemGetInfo()
    if status:
        raise RuntimeError(f"device {device}: how much memory is free is not known: {status.name}")
    return amount(asked, int(free), "capacity")


def _handle(stream: Any) -> int:
    if not isinstance(stream, Stream):
        what = f"stream: {type(stream).__name__} is no cuda.core.Stream"
        raise TypeError(f"{what}; memory for a graph is allocated before it is built, and kept as long as the graph")
    return int(stream.handle)


def _quietly_close(served: Served) -> None:
    with suppress(Exception):
        served.close()
