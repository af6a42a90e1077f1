"""The memory half of the CUDA backend: a slab of device memory, a pinned one, views, copies, values in and out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver as api
from cuda.core import Buffer, Device
from numpy.typing import DTypeLike

from gpumem.execute.backend import Backend, Bytes, Call, nbytes
from gpumem.execute.layout import Block, Layout

STAGING = 2**24  # bytes of pinned memory for values that go in and out between runs. Not tuned
SCRATCH = 2**16  # bytes that scratch arrays are cut from. Not tuned
ALIGNMENT = 256  # bytes, as of cudaMalloc


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A C-contiguous array in device memory, for anything that knows the CUDA array interface."""

    pointer: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
            "strides": None,
            "stream": None,  # the order is the executor's business
        }


def for_numba(array: DeviceArray) -> Any:
    """Return `array` as Numba's kernels take it."""
    from gpumem.kernels.numba_cuda import cuda

    return cuda.from_cuda_array_interface(array.__cuda_array_interface__, sync=False)


class CudaMemory(Backend):
    """The two slabs and the streams; whatever is taken is given back by `close`, in reverse order.

    A program that comes after another has the slabs of the one before where they are large enough, and its scratch:
    page-locking gigabytes takes seconds, and giving back memory lets the whole device run dry. The device's slab must
    be just as large, since what is too much belongs to others.
    """

    streams: list[Any]

    def __init__(self, device: int, array: Callable[[DeviceArray], Any], pinned: Any) -> None:
        self.array = array
        self.device = Device(device)
        self.device.set_current()
        self.pinned = pinned
        self._held = ExitStack()
        self._slabs: dict[str, tuple[Any, ExitStack]] = {}
        self.streams = []

    def open(self, layout: Layout) -> None:
        """Create the streams and take both slabs; what an earlier program had and this one cannot use goes first."""
        self._end()
        try:
            for _ in layout.trace.ops.streams:
                self.streams.append(self._keep(self.device.create_stream()))
            self.slabs = self._slab("device", layout.device), self._slab("pinned", layout.host)
            largest = max((block.size for block in layout.blocks if not block.host), default=0)
            self.staging = self._slab("staging", min(largest, STAGING))
        except BaseException:
            self.close()
            raise
        self.scratched, self.chunks = (0, 0), 0

    def close(self) -> None:
        """Wait for what is under way and give everything back, in reverse order; from any thread."""
        self._end()
        self.layout = None
        for name in [*reversed(self._slabs)]:
            self._slabs.pop(name)[1].close()

    def _end(self) -> None:
        """Give back all but the slabs."""
        self.device.set_current()
        self._drain()
        self._held.close()
        self.streams = []

    def _drain(self) -> None:
        """Let every stream run dry; what failed has been reported."""
        for stream in self.streams:
            with suppress(Exception):
                stream.sync()

    def _keep(self, thing: Any) -> Any:
        self._held.callback(_quietly, thing.close)
        return thing

    def _slab(self, name: str, size: int) -> Any:
        """A slab that is there already and will do, or a new one in its place."""
        if name in self._slabs:
            slab, held = self._slabs[name]
            if slab.size == size if name == "device" else slab.size >= size:
                return slab
            del self._slabs[name]
            held.close()
        with ExitStack() as held:
            slab = self._device(size, held) if name.startswith(("device", "scratch")) else self._pinned(size, held)
            self._slabs[name] = slab, held.pop_all()
        return slab

    def _device(self, size: int, held: ExitStack) -> Any:
        """Take device memory from the driver itself: what goes back to a pool would not be there for others."""
        if not size:
            return Buffer.from_handle(0, 0)
        status, address = api.cuMemAlloc(size)
        if status:
            raise MemoryError(f"{size} bytes of device memory: {status.name}")
        held.callback(_quietly, api.cuMemFree, address)
        return Buffer.from_handle(int(address), size)

    def _pinned(self, size: int, held: ExitStack) -> Any:
        """Take host memory, which the driver must know to be page-locked."""
        if not size:
            return Buffer.from_handle(0, 0)
        if self.pinned is None:
            status, address = api.cuMemAllocHost(size)
            if status:
                raise MemoryError(f"{size} bytes of pinned memory: {status.name}")
            held.callback(_quietly, api.cuMemFreeHost, address)
            return Buffer.from_handle(int(address), size)
        try:
            buffer = self.pinned.allocate(size, stream=self.streams[0])
        except Exception as error:
            raise MemoryError(f"{size} bytes of pinned memory: {error}") from error
        held.callback(_quietly, buffer.close)
        self.streams[0].sync()  # memory may come in stream order, and other streams and the host use it too
        if not all(_is_pinned(int(buffer.handle) + at) for at in (0, size - 1)):
            raise ValueError(f"the host slab of {size} bytes is pageable: asynchronous copies need pinned memory")
        return buffer

    def _part(self, block: Block) -> Any:
        """The block as a buffer of its own, which owns nothing."""
        slab = self.slabs[block.host]
        return Buffer.from_handle(int(slab.handle) + block.offset, block.size, owner=slab)

    def view(self, block: Block, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return a device array over the block, or a NumPy array if it lies on the host."""
        size = nbytes(block, dtype, shape)
        if block.host:
            return _host_bytes(self.slabs[1], block.offset, size).view(dtype).reshape(shape)
        return self.array(DeviceArray(int(self.slabs[0].handle) + block.offset, np.dtype(dtype), shape))

    def scratch(self, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return a zeroed device array."""
        return self.array(self._scratch(np.dtype(dtype), shape))

    def counter(self, first: int) -> Any:
        """Return a device array of one number that begins with `first`, below 2^32."""
        array = self._scratch(np.dtype(np.uint64), (1,))
        low = Buffer.from_handle(array.pointer, 4)
        low.fill(first.to_bytes(4, "little"), stream=self.streams[0])
        self.streams[0].sync()
        return self.array(array)

    def _scratch(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> DeviceArray:
        """Cut a zeroed array from a chunk that is allocated when needed."""
        array = DeviceArray(0, dtype, shape)
        at, end = self.scratched
        if at + array.nbytes > end:
            chunk = self._slab(f"scratch {self.chunks}", max(SCRATCH, array.nbytes))
            self.chunks += 1
            chunk.fill(0, stream=self.streams[0])
            self.streams[0].sync()
            at, end = int(chunk.handle), int(chunk.handle) + chunk.size
        self.scratched = at + -(-array.nbytes // ALIGNMENT) * ALIGNMENT, end
        return DeviceArray(at, dtype, shape)

    def copier(self, source: Block, target: Block) -> Call:
        """Return an asynchronous copy."""
        if not source.size:
            return lambda stream: None
        there, here = self._part(target), self._part(source)
        return lambda stream: there.copy_from(here, stream=stream)

    def put(self, block: Block, data: Bytes) -> None:
        """Write bytes through pinned staging memory; the rest of the block becomes zero."""
        if block.host:
            here = _host_bytes(self.slabs[1], block.offset, block.size)
            here[: len(data)], here[len(data) :] = data, 0
            return
        for at, stage, size in self._pieces(block):
            part = data[at : at + size]
            stage[: len(part)], stage[len(part) :] = part, 0
            self._transfer(block, at, size, into=True)

    def get(self, block: Block) -> Bytes:
        """Return a copy of the bytes, through pinned staging memory."""
        if block.host:
            return _host_bytes(self.slabs[1], block.offset, block.size).copy()
        result = np.empty(block.size, np.uint8)
        for at, stage, size in self._pieces(block):
            self._transfer(block, at, size, into=False)
            result[at : at + size] = stage
        return result

    def _pieces(self, block: Block) -> list[tuple[int, Bytes, int]]:
        """Cut a block into pieces that fit into the staging memory: where, the staging bytes, how many."""
        cuts = range(0, block.size, max(self.staging.size, 1))
        sizes = [min(self.staging.size, block.size - at) for at in cuts]
        return [(at, _host_bytes(self.staging, 0, size), size) for at, size in zip(cuts, sizes)]

    def _transfer(self, block: Block, at: int, size: int, *, into: bool) -> None:
        piece = self._part(Block(block.buffer, block.of, False, block.offset + at, size))
        stage = Buffer.from_handle(int(self.staging.handle), size, owner=self.staging)
        target, source = (piece, stage) if into else (stage, piece)
        target.copy_from(source, stream=self.streams[0])
        self.streams[0].sync()


def _quietly(close: Callable[..., object], *arguments: object) -> None:
    """Give something back, whatever the driver says: after a failure that stays it says that of every call."""
    with suppress(Exception):
        close(*arguments)


def _is_pinned(address: int) -> bool:
    """Whether an address is page-locked host memory, as the driver says, not the resource that it came from."""
    kind = api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, kind_of = api.cuPointerGetAttribute(kind, address)
    return not status and kind_of == api.CUmemorytype.CU_MEMORYTYPE_HOST


def _host_bytes(buffer: Any, offset: int, size: int) -> Bytes:
    return host_bytes(int(buffer.handle) + offset, size)


def host_bytes(address: int, size: int) -> Bytes:
    """Return bytes of pinned memory as a NumPy array."""
    if not size:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
