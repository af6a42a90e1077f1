"""Where buffers come from: the driver, a pool of its own, of CuPy, of PyTorch; and what one costs to get."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as api
from cuda.core import Buffer

from benchmarks.gpu.shared import MIB, Bench, Row

TITLE = "getting a buffer of 1 MiB and giving it back: us"


def done(status: Any, *values: Any) -> Any:
    """Return what a call of the driver returned, if it went well."""
    if status != api.CUresult.CUDA_SUCCESS:
        raise MemoryError(f"the driver says {status.name}")
    return values[0] if values else None


class Source(ABC):
    """Gives out device memory in the order of a stream."""

    def __init__(self, bench: Bench, stream: Any) -> None:
        self.stream = stream

    @abstractmethod
    def get(self, size: int) -> int:
        """Return the address of `size` bytes, at least 1."""

    @abstractmethod
    def give(self, address: int) -> None:
        """Take them back."""

    @abstractmethod
    def reserved(self) -> int:
        """Return the bytes of the device that it holds, used or not."""

    def close(self) -> None:  # noqa: B027
        """Give back what is not used; all buffers have been."""


class Direct(Source):
    """`cuMemAlloc` and `cuMemFree`, which waits for the device."""

    def __init__(self, bench: Bench, stream: Any) -> None:
        super().__init__(bench, stream)
        self.before = done(*api.cuMemGetInfo())

    def get(self, size: int) -> int:
        return int(done(*api.cuMemAlloc(size)))

    def give(self, address: int) -> None:
        done(*api.cuMemFree(address))

    def reserved(self) -> int:
        return max(int(self.before) - int(done(*api.cuMemGetInfo())), 0)  # what others take in the meantime counts, too


class Pool(Source):
    """`cuMemAllocAsync` from a pool of its own that keeps what it has."""

    def __init__(self, bench: Bench, stream: Any) -> None:
        super().__init__(bench, stream)
        props = api.CUmemPoolProps()
        props.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        props.location.id = bench.device.device_id
        self.pool = done(*api.cuMemPoolCreate(props))
        keep = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        done(*api.cuMemPoolSetAttribute(self.pool, keep, api.cuuint64_t(2**63)))
        self.handle = api.CUstream(int(stream.handle))

    def get(self, size: int) -> int:
        return int(done(*api.cuMemAllocFromPoolAsync(size, self.pool, self.handle)))

    def give(self, address: int) -> None:
        done(*api.cuMemFreeAsync(address, self.handle))

    def reserved(self) -> int:
        high = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
        return int(done(*api.cuMemPoolGetAttribute(self.pool, high)))

    def close(self) -> None:
        done(*api.cuMemPoolDestroy(self.pool))


class CuPy(Source):
    """CuPy's pool. Raises ImportError where CuPy is not there."""

    def __init__(self, bench: Bench, stream: Any) -> None:
        import cupy

        super().__init__(bench, stream)
        self.pool, self.held = cupy.cuda.MemoryPool(), {}
        self.on = cupy.cuda.ExternalStream(int(stream.handle))  # each stream has buffers of its own

    def get(self, size: int) -> int:
        with self.on:
            memory = self.pool.malloc(size)
        self.held[memory.ptr] = memory
        return int(memory.ptr)

    def give(self, address: int) -> None:
        with self.on:
            del self.held[address]

    def reserved(self) -> int:
        return int(self.pool.total_bytes())

    def close(self) -> None:
        self.pool.free_all_blocks()


class PyTorch(Source):
    """PyTorch's caching allocator. Raises ImportError where PyTorch is not there, or has no CUDA."""

    def __init__(self, bench: Bench, stream: Any) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("PyTorch has no CUDA here")
        super().__init__(bench, stream)
        self.cuda, self.ordinal = torch.cuda, bench.device.device_id
        self.cuda.init()  # until then it has no allocator
        self.cuda.empty_cache()
        self.before = self.cuda.memory_reserved(self.ordinal)

    def get(self, size: int) -> int:
        return int(self.cuda.caching_allocator_alloc(size, self.ordinal, int(self.stream.handle)))

    def give(self, address: int) -> None:
        self.cuda.caching_allocator_delete(address)

    def reserved(self) -> int:
        return int(self.cuda.memory_reserved(self.ordinal) - self.before)

    def close(self) -> None:
        self.cuda.empty_cache()


SOURCES: dict[str, Callable[[Bench, Any], Source]] = {
    "cuMemAllocAsync": Pool,
    "cuMemAlloc": Direct,
    "CuPy's pool": CuPy,
    "PyTorch's caching": PyTorch,
}


def available(bench: Bench, stream: Any) -> dict[str, Source]:
    """Return the sources that are there; of the others it is said that they are not."""
    found = {}
    for name, make in SOURCES.items():
        try:
            found[name] = make(bench, stream)
        except ImportError as absent:
            print(f"# {name}: left out: {absent}")
    return found


def allocators(bench: Bench) -> list[Row]:
    """A line for each way to get a buffer."""
    stream, size = bench.device.create_stream(), MIB
    slab = bench.device.allocate(16 * size, stream=stream)
    ways: dict[str, Callable[[], object]] = {
        "planned offset": lambda: Buffer.from_handle(int(slab.handle) + 4 * size, size, owner=slab)
    }
    sources = available(bench, stream)
    for name, source in sources.items():
        ways[name] = lambda source=source: source.give(source.get(size))
    rows: list[Row] = []
    for name, get in ways.items():
        begin = time.perf_counter()
        get()
        times = bench.times(time.perf_counter() - begin, 20 if bench.quick else 2000, 0.2)
        begin = time.perf_counter()
        for _ in range(times):
            get()
        stream.sync()
        rows.append({"way": name, "us": (time.perf_counter() - begin) / times * 1e6})
    for source in sources.values():
        source.close()
    slab.close()
    stream.sync()
    return rows
