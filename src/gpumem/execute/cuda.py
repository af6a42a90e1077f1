"""CUDA as a backend: one slab of device memory, one of pinned memory, a stream for each of the trace's, events.

An event is recorded only after an op that another stream waits for, and waited for only where `hazards`
says so. A running iteration allocates nothing, and the host waits for nothing before the end of a run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpumem.columns import UNKNOWN
from gpumem.execute.backend import Backend, Block, Bytes, Call, Token, Work, nbytes
from gpumem.execute.program import Layout
from gpumem.timeline import Span

try:
    from cuda.core import Buffer, Device, EventOptions, LegacyPinnedMemoryResource
except ImportError as error:
    raise ImportError(f"CUDA needs the package cuda-core: pip install 'gpumem[cu13]' ({error})") from error

STAGING = 2**24  # bytes of pinned memory for values that go in and out between runs
SCRATCH = 2**16  # bytes that scratch arrays are cut from
ALIGNMENT = 256


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
    from gpumem.kernels._numba import cuda

    return cuda.from_cuda_array_interface(array.__cuda_array_interface__, sync=False)


@dataclass(slots=True)
class _Token:
    """An op that was issued: the stream it is on, its events where it has some, whether it went into a graph."""

    op: int
    stream: Any
    start: Any = None
    end: Any = None
    captured: bool = False


class Cuda(Backend):
    """Runs programs on a GPU.

    Parameters
    ----------
    device : int
        Ordinal of the device.
    timing : bool
        Record two timing events around every op, so that the timeline shows each; else only when iterations end.
    graph : bool
        Run the first iteration op by op (it compiles and loads), capture the second into a CUDA graph, and
        replay that from then on. Replays follow one another, so what would overlap the boundary does not.
    array : callable
        What a `DeviceArray` is turned into for the launches, once for each view; by default a Numba array.
    pinned : MemoryResource, optional
        Where the host slab comes from; page-locked memory only.

    Raises
    ------
    MemoryError
        A slab does not fit; nothing stays allocated.
    ValueError
        Host memory that is pageable: copies from and to it would not be asynchronous.

    Notes
    -----
    A context manager. `close` waits for what is under way, then gives everything back, after failures too.
    """

    def __init__(
        self,
        device: int = 0,
        *,
        timing: bool = False,
        graph: bool = False,
        array: Callable[[DeviceArray], Any] = for_numba,
        pinned: Any = None,
    ) -> None:
        if timing and graph:
            raise ValueError("Cuda: the ops of a graph cannot be timed one by one; choose timing or graph")
        self.timing, self.graph = timing, graph
        self.array = array
        self.device = Device(device)
        self.device.set_current()
        self.pinned = LegacyPinnedMemoryResource() if pinned is None else pinned
        self._held = ExitStack()
        self.streams: list[Any] = []

    def open(self, layout: Layout) -> None:
        """Create the streams and take both slabs; what an earlier program had is given back first."""
        self.close()
        self.device.set_current()
        try:
            for _ in layout.trace.ops.streams:
                self.streams.append(self._keep(self.device.create_stream()))
            self._held.callback(self._drain)  # after the slabs have been freed in stream order, before the streams go
            self.slabs = self._take(layout.device, "device"), self._take(layout.host, "pinned")
            largest = max((x.size for x in layout.blocks if not x.host), default=0)
            self.staging = self._take(min(largest, STAGING), "pinned")
        except BaseException:
            self.close()
            raise
        self.ops = len(layout.trace.ops)
        self.executable: Any = None
        self.warm = self.capturing = False
        self.scratched: tuple[int, int] = (0, 0)
        self.signals: dict[int, Any] = {}

    def close(self) -> None:
        """Wait for what is under way and give everything back, in reverse order."""
        self._drain()
        self.executable = None
        self._held.close()
        self.streams = []

    def _drain(self) -> None:
        """Let every stream run dry; what failed has been reported."""
        for stream in self.streams:
            with suppress(Exception):
                stream.sync()

    def _keep(self, thing: Any) -> Any:
        self._held.callback(thing.close)
        return thing

    def _take(self, size: int, kind: str) -> Any:
        """Allocate `size` bytes; a size of 0 is no allocation."""
        if not size:
            return Buffer.from_handle(0, 0)
        try:
            if kind == "device":
                buffer = self.device.allocate(size, stream=self.streams[0])
                self.streams[0].sync()
            else:
                buffer = self.pinned.allocate(size, stream=self.streams[0])
        except Exception as error:
            raise MemoryError(f"{size} bytes of {kind} memory: {error}") from error
        self._keep(buffer)
        if kind == "pinned" and not (buffer.is_host_accessible and buffer.is_device_accessible):
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
        """Return a zeroed device array cut from a chunk that is allocated when needed."""
        array = DeviceArray(0, np.dtype(dtype), shape)
        at, end = self.scratched
        if at + array.nbytes > end:
            chunk = self._take(max(SCRATCH, array.nbytes), "device")
            chunk.fill(0, stream=self.streams[0])
            self.streams[0].sync()
            at, end = int(chunk.handle), int(chunk.handle) + chunk.size
        self.scratched = at + -(-array.nbytes // ALIGNMENT) * ALIGNMENT, end
        return self.array(DeviceArray(at, array.dtype, shape))

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

    def begin(self, works: Sequence[Work], iterations: int) -> None:
        """Let an earlier run end, and create the events that this one needs."""
        self._drain()
        last = set({work.stream: work.op for work in works}.values())
        if not self.signals:
            self.signals = {work.op: self._event() for work in works if work.signals}
        eager = min(iterations, 1) if self.graph else iterations
        self.ends = [{op: self._event(timed=True) for op in last} for _ in range(eager)]
        self.starts: list[dict[int, Any]] = [{} for _ in range(eager)]
        if self.timing:
            self.starts, self.ends = (
                [{w.op: self._event(timed=True) for w in works} for _ in range(eager)] for _ in "se"
            )
        self.replays = [self._event(timed=True) for _ in range(iterations if self.graph else 0)]
        self.k = -1
        self.origin = self._event(timed=True)
        self.streams[0].record(self.origin)

    def _event(self, *, timed: bool = False) -> Any:
        return self._keep(self.device.create_event(EventOptions(timing_enabled=timed)))

    def iteration(self, issue: Callable[[], list[Token]]) -> list[Token]:
        """Issue an iteration, or replay the graph of one."""
        self.k += 1
        if not self.graph or not self.warm:
            self.warm = True
            return issue()
        if self.executable is None:
            self._join()
            self.executable = self._keep(self._capture(issue))
        self.executable.launch(self.streams[0])
        self.streams[0].record(self.replays[self.k])
        return [_Token(UNKNOWN, self.streams[0], end=self.replays[self.k])] * self.ops

    def _join(self) -> None:
        """Let the first stream wait for all others."""
        for stream in self.streams[1:]:
            self.streams[0].wait(stream)

    def _capture(self, issue: Callable[[], list[Token]]) -> Any:
        """Record one iteration as a graph: all streams fork from the first and join it again."""
        builder = self.streams[0].create_graph_builder()
        self.capturing = True
        try:
            builder.begin_building()
            for stream in self.streams[1:]:
                stream.wait(self.streams[0])
            issue()
            self._join()
            builder.end_building()
            return builder.complete()
        except BaseException:
            with suppress(Exception):
                builder.end_building()
            raise
        finally:
            self.capturing = False
            builder.close()

    def submit(self, work: Work, reads: Sequence[Block], writes: Sequence[Block], after: Sequence[Token]) -> Token:
        """Put the waits, the op and its event on the op's stream."""
        stream = self.streams[work.stream]
        for token in after:
            if token.captured == self.capturing:  # a graph comes after everything before it anyway
                stream.wait(token.end)
        start = end = None
        if not self.capturing:
            start, end = self.starts[self.k].get(work.op), self.ends[self.k].get(work.op)
        if start is not None:
            stream.record(start)
        if work.call is not None:
            work.call(stream)
        end = self.signals.get(work.op) if end is None else end
        if end is not None:
            stream.record(end)
        return _Token(work.op, stream, start, end, self.capturing)

    def wait(self, token: Token) -> Span:
        """Wait on the host for an op; its times are -1 where no timing event was recorded."""
        (token.stream if token.end is None else token.end).sync()
        return Span(token.op, self._ns(token.start), self._ns(token.end))

    def _ns(self, event: Any) -> int:
        """When a timing event was reached, in ns since the run began."""
        return round((event - self.origin) * 1e6) if event is not None and event.is_timing_enabled else UNKNOWN


def _host_bytes(buffer: Any, offset: int, size: int) -> Bytes:
    """Bytes of pinned memory as a NumPy array."""
    if not size:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(int(buffer.handle) + offset))


def driver() -> tuple[str, str]:
    """Return the driver's CUDA version and, where there is no usable driver, the reason."""
    from cuda.bindings import driver as api

    try:
        (status,) = api.cuInit(0)
        _, version = api.cuDriverGetVersion()
    except RuntimeError:
        return "", "no library libcuda.so.1"
    if status not in (api.CUresult.CUDA_SUCCESS, api.CUresult.CUDA_ERROR_NO_DEVICE):
        return "", f"cuInit: {status.name}"
    return f"CUDA {version // 1000}.{version % 1000 // 10}", ""


def devices() -> list[str]:
    """Return the devices' names, with compute capability and memory."""
    from cuda.bindings import driver as api

    (status,) = api.cuInit(0)
    if status != api.CUresult.CUDA_SUCCESS:
        return []
    found = []
    for i in range(api.cuDeviceGetCount()[1]):
        device = Device(i)
        _, size = api.cuDeviceTotalMem(api.cuDeviceGet(i)[1])
        capability = device.compute_capability
        found.append(f"{device.name} ({capability.major}.{capability.minor}, {size / 2**30:.1f} GiB)")
    return found


def compiler() -> str:
    """Return which of the libraries that compile kernels is missing, or nothing."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    missing = []
    for name in ("nvrtc", "nvvm", "nvJitLink"):
        try:
            load_nvidia_dynamic_lib(name)
        except Exception:  # pathfinder has several ways to say that it is not there
            missing.append(name)
    return f"{', '.join(missing)} not found" if missing else ""
