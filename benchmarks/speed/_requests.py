"""A malloc and its free on a device, over the requests of a training step: the driver against a lookup."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as api

from benchmarks.papers.smartpool import costs
from gpumem import best_fit
from gpumem.io import bundled
from gpumem.pool.allocators.caching import Caching
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.allocators.protocol import Allocator
from gpumem.pool.smartpool.online import SmartPool

TITLE = "a malloc and its free, VGG16, wall time; all but cuMemAlloc are Python and call no driver"


class Driver:
    """An allocator without a pool: cuMemAlloc and cuMemFree, which cudaMalloc and cudaFree come to."""

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return an address."""
        status, address = api.cuMemAlloc(size)
        if status != api.CUresult.CUDA_SUCCESS:
            raise MemoryError(f"cuMemAlloc of {size} bytes: {status.name}")
        return int(address)

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Give the bytes back; the driver waits until the device is done with them."""
        (status,) = api.cuMemFree(offset)
        if status != api.CUresult.CUDA_SUCCESS:
            raise ValueError(f"cuMemFree of {offset}: {status.name}")


def requests(replays: int) -> list[dict[str, Any]]:
    """Return microseconds of a malloc and its free, the median of some iterations of the bundled VGG16."""
    trace = bundled("vgg16")
    placed = best_fit(trace)
    ways: dict[str, Callable[[], Allocator]] = {
        "cuMemAlloc": Driver,
        "SmartPool": lambda: SmartPool.of(trace, placed),
        "Caching": Caching,
        "CnMem": CnMem,
    }
    found = costs(trace, ways, replays=replays, clock=time.perf_counter_ns)
    driver = found[0].ns
    return [{"way": c.allocator, "pairs": c.pairs, "us": c.ns / 1e3, "part": c.ns / driver} for c in found]
