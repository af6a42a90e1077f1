"""A GPU as the environment of a transparent device: ops on one stream, copies on two more, memory from an allocator.

`residency/copy_engine` has every wait. Memory is taken and given back in the order of the stream that computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any, Protocol

import numpy as np
from cuda.bindings import driver as api
from cuda.core import Device
from numpy.typing import DTypeLike

from gpumem.execute.cuda import DeviceArray, for_numba
from gpumem.execute.cuda.card import CudaCard, CudaEvent, CudaStream, DriverMemory
from gpumem.execute.cuda.driver_calls import done
from gpumem.execute.cuda.memory import host_bytes
from gpumem.runtime.residency.copy_engine import Beside, Slab
from gpumem.runtime.residency.environment import Bytes, LiveBlock, LiveCall

UNTIMED = -1, -1  # start and end of what was not timed


class Addresses(Protocol):
    """Where memory comes from: an allocator of addresses, as `Served` is."""

    def allocate(self, size: int, stream: int) -> int:
        """Return the address of `size` bytes for work on a stream."""

    def free(self, address: int, stream: int) -> None:
        """Take them back, last used on a stream."""


class OnStreams(Beside):
    """A GPU: `call(stream, *arrays)` gets a `cuda.core.Stream` and an array on the device for each block.

    Parameters
    ----------
    device : int
        Its number.
    memory : Addresses, optional
        Where blocks lie; the driver's own pool where left out. `Served` over a `SmartPool` is one.
    array : callable
        What a `DeviceArray` is turned into for the calls; by default a Numba array.
    timing : bool
        Measure ops whose duration the program does not tell, for the plan; each such op takes two timing events.
    stream : cuda.core.Stream, optional
        On which ops run; a new one where left out.

    Raises
    ------
    MemoryError
        From an op: no memory on the device, or no pinned memory.

    Notes
    -----
    The host does not wait for copies, but for those of the program's own bytes (`write`, `read`). The device is made
    the thread's current one; a program that makes another one current meanwhile makes this one so before its ops.
    """

    card: CudaCard

    def __init__(
        self,
        device: int = 0,
        *,
        memory: Addresses | None = None,
        array: Callable[[DeviceArray], Any] = for_numba,
        timing: bool = True,
        stream: Any = None,
    ) -> None:
        self.device = Device(device)
        self.device.set_current()
        super().__init__(self._card(stream))
        self.memory: Addresses = DriverMemory() if memory is None else memory
        self.array, self.timing = array, timing
        self.span = UNTIMED
        self._timers: list[tuple[CudaEvent, CudaEvent]] = []
        self._staging: Slab | None = None
        self._scratches: list[int] = []

    def _card(self, stream: Any) -> CudaCard:
        return CudaCard(self.device, stream)

    @property
    def _stream(self) -> int:
        return self.card.compute.handle

    def fill(self, storage: LiveBlock, size: int) -> None:
        """Take memory for what the stream computes next."""
        storage.memory = self.memory.allocate(size, self._stream) if size else 0

    def empty(self, storage: LiveBlock) -> None:
        """Give memory back, behind what the stream was given so far."""
        if storage.memory:
            self.memory.free(storage.memory, self._stream)
        storage.memory = None

    def run(self, call: LiveCall | None, blocks: Sequence[LiveBlock], duration: int, timed: bool) -> Any:
        """Begin an op on the stream; return what it is timed by, if it is."""
        if call is None:
            return None
        return self._call(self.card.compute, call, [self._array(block) for block in blocks], timed)

    def _call(self, stream: CudaStream, call: LiveCall, arrays: Sequence[Any], timed: bool) -> Any:
        """Call what gives a stream its work, between two events where it is timed; return these."""
        if not (timed and self.timing):
            call(stream.of, *arrays)
            return None
        begin, end = self._timers.pop() if self._timers else (self.card.event(timed=True), self.card.event(timed=True))
        try:
            begin.record(stream)
            call(stream.of, *arrays)
            end.record(stream)
        except BaseException:
            self._timers.append((begin, end))
            raise
        return begin, end

    def lasted(self, timer: Any) -> int:
        """Wait for an op that was timed; return how long it took, in ns."""
        begin, end = timer
        end.synchronize()
        self._timers.append(timer)
        return round(float(end.of - begin.of) * 1e6)

    def _array(self, block: LiveBlock) -> Any:
        if block.shape is None or not block.dtype:
            return self.array(DeviceArray(block.memory, np.dtype(np.uint8), (block.size,)))
        return self.array(DeviceArray(block.memory, np.dtype(block.dtype), block.shape))

    def scratch(self, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return an array of zeros that is no block, such as ops have to themselves; gone with `close`."""
        kind = np.dtype(dtype)
        size = prod(shape, start=kind.itemsize)
        address = self.memory.allocate(size, self._stream) if size else 0
        if size:
            self._scratches.append(address)
            done(api.cuMemsetD8Async(address, 0, size, self._stream), "cuMemsetD8Async")
        return self.array(DeviceArray(address, kind, shape))

    def put(self, block: LiveBlock, data: Bytes) -> None:
        """Copy through pinned memory, once that is free of the copy before."""
        slab = self._stage(block.size)
        here = host_bytes(slab.memory, block.size)
        here[: len(data)], here[len(data) :] = data, 0
        self.card.copy(self.card.compute, block, slab.memory, block.size)
        slab.done.record(self.card.compute)

    def get(self, block: LiveBlock) -> Bytes:
        """Copy through pinned memory, and wait."""
        slab = self._stage(block.size)
        self.card.copy(self.card.compute, slab.memory, block, block.size)
        slab.done.record(self.card.compute)
        slab.done.synchronize()
        return host_bytes(slab.memory, block.size).copy()

    def _stage(self, size: int) -> Slab:
        """Pinned memory of which no copy is under way."""
        slab = self._staging
        if slab is not None:
            slab.done.synchronize()
        if slab is None or slab.whole < size:
            if slab is not None:
                self.drop(slab)
            slab = self._staging = self._slab(size)
            slab.done.synchronize()
        return slab

    def now(self) -> int:
        """The host's clock."""
        return time.perf_counter_ns()

    def close(self) -> None:
        """Wait for what is under way, and give streams, events and pinned memory back."""
        self.device.set_current()
        while self._scratches:
            with suppress(Exception):
                self.memory.free(self._scratches.pop(), self._stream)
        self._run_dry()
        self.card.close()

    def _run_dry(self) -> None:
        """Wait for what is under way on the streams of this environment; what failed has been told."""
        self.device.set_current()
        for stream in (self.compute, self.d2h, self.h2d):
            with suppress(Exception):
                stream.of.sync()  # type: ignore[attr-defined]
