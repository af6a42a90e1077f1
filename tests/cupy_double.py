"""What CuPy has that an allocator meets, without CuPy, which needs more of CUDA than the fake driver has.

As in CuPy 14: `PythonFunctionAllocator(malloc, free).malloc(size)` asks `malloc(size, device)` and returns a pointer
whose memory calls `free(address, device)` when it goes; nothing is asked for where there are no bytes, and what `free`
raises is printed. The current stream is each thread's own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any


class Memory:
    """`cupy.cuda.memory.PythonFunctionAllocatorMemory`."""

    def __init__(self, size: int, malloc: Callable[[int, int], int], free: Callable[[int, int], None], device: int):
        self.free, self.device_id, self.size, self.ptr = free, device, size, 0
        if size > 0:
            self.ptr = malloc(size, device)

    def __del__(self) -> None:
        if self.ptr:
            self.free(self.ptr, self.device_id)


class Stream:
    """`cupy.cuda.Stream`, of a handle."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class Current(threading.local):
    """The current stream and device."""

    def __init__(self) -> None:
        self.stream, self.device = Stream(0), 0


class Cuda:
    """`cupy.cuda`."""

    def __init__(self) -> None:
        self.current = Current()
        self.alloc: Callable[[int], Any] | None = None

    def PythonFunctionAllocator(self, malloc: Callable[[int, int], int], free: Callable[[int, int], None]) -> Any:
        def allocate(size: int) -> Any:
            memory = Memory(size, malloc, free, self.current.device)
            return SimpleNamespace(mem=memory, ptr=memory.ptr)

        return SimpleNamespace(malloc=allocate)

    def set_allocator(self, allocator: Callable[[int], Any] | None = None) -> None:
        self.alloc = allocator

    def get_current_stream(self) -> Any:
        return self.current.stream

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """`with stream:`."""
        before, self.current.stream = self.current.stream, Stream(stream)
        try:
            yield
        finally:
            self.current.stream = before


@contextmanager
def installed() -> Iterator[Cuda]:
    """Have `import cupy` find the double."""
    before, double = sys.modules.get("cupy"), ModuleType("cupy")
    double.cuda = Cuda()  # type: ignore[attr-defined]
    sys.modules["cupy"] = double
    try:
        yield double.cuda  # type: ignore[attr-defined]
    finally:
        del sys.modules["cupy"]
        if before is not None:
            sys.modules["cupy"] = before
