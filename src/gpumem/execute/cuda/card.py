"""A GPU by `cuda.core`: pinned memory, copies, streams and events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from cuda.bindings import driver as api
from cuda.core import EventOptions

from gpumem.execute.cuda.driver_calls import done


class Placed(Protocol):
    """What lies at an address, and how many bytes it has there."""

    size: int
    memory: Any


class DriverMemory:
    """Memory of the driver's own pool, in the order of streams (`cuMemAllocAsync`)."""

    def allocate(self, size: int, stream: int) -> int:
        """Allocate."""
        status, address = api.cuMemAllocAsync(size, stream)
        if status:
            raise MemoryError(f"{size} bytes of device memory: {status.name}")
        return int(address)

    def free(self, address: int, stream: int) -> None:
        """Free."""
        done(api.cuMemFreeAsync(address, stream), "cuMemFreeAsync")


class CudaEvent:
    """An event of `cuda.core` as a mark."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of

    def record(self, stream: CudaStream) -> None:
        stream.of.record(self.of)

    def synchronize(self) -> None:
        self.of.sync()


class CudaStream:
    """A stream of `cuda.core` as copies need it."""

    __slots__ = ("handle", "of")

    def __init__(self, of: Any) -> None:
        self.of, self.handle = of, int(of.handle)

    def wait_event(self, event: CudaEvent) -> None:
        self.of.wait(event.of)


class CudaCard:
    """A device by `cuda.core`, as copies need it; what it has made is given back by `close`."""

    def __init__(self, device: Any, stream: Any) -> None:
        self.device = device
        self.kept: list[Callable[[], object]] = []
        self.compute = self.stream() if stream is None else CudaStream(stream)

    def current(self) -> CudaStream:
        return self.compute

    def stream(self) -> CudaStream:
        made = self.device.create_stream()
        self.kept.append(made.close)
        return CudaStream(made)

    def event(self, *, timed: bool = False) -> CudaEvent:
        made = self.device.create_event(EventOptions(timing_enabled=timed))
        self.kept.append(made.close)
        return CudaEvent(made)

    def size(self, storage: Placed) -> int:
        return storage.size

    def pinned(self, size: int) -> int:
        status, address = api.cuMemAllocHost(size)
        if status:
            raise MemoryError(f"{size} bytes of pinned memory: {status.name}")
        self.kept.append(lambda: api.cuMemFreeHost(address))
        return int(address)

    def copy(self, stream: CudaStream, target: Placed | int, source: Placed | int, size: int) -> None:
        there, here = (operand if isinstance(operand, int) else operand.memory for operand in (target, source))
        if size:
            done(api.cuMemcpyAsync(there, here, size, stream.handle), "cuMemcpyAsync")

    def close(self) -> None:
        while self.kept:
            with suppress(Exception):
                self.kept.pop()()
