"""The one place that imports `numba.cuda`: decorators, launches, launch configurations, sums over a block.

Numba is a compiler here: it makes PTX, and `cuda.core` loads and launches it (`ptx`).

Kernels keep to a plain subset (no cooperative groups, no float atomics, no dynamic shared memory), so that a successor
of numba-cuda means a change here only. `NUMBA_ENABLE_CUDASIM=1` in the environment before the first import selects the
simulator, `GPUMEM_KERNEL_COMPILER=numba-cuda-mlir` that successor, which has none.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from gpumem.base.names import one_of
from gpumem.kernels.prebound import Script, Start

# numba-cuda 0.30 looks up np.row_stack when it first compiles, and NumPy 2.5 has removed it.
vars(np).setdefault("row_stack", np.vstack)

COMPILERS = {"numba-cuda": "pip install 'gpumem[cu13]' (or [cu12])", "numba-cuda-mlir": "pip install numba-cuda-mlir"}
COMPILER = os.environ.get("GPUMEM_KERNEL_COMPILER", "numba-cuda")
one_of("GPUMEM_KERNEL_COMPILER", COMPILER, COMPILERS)

if TYPE_CHECKING:
    cuda: Any  # what kernels use of it exists on the device only
    config: Any
else:
    try:
        if COMPILER == "numba-cuda-mlir":
            from numba_cuda_mlir import cuda
            from numba_cuda_mlir.cuda import config
        else:
            import numba_cuda  # noqa: F401  (without it, `numba.cuda` would be Numba's own outdated copy)
            from numba import cuda
            from numba.cuda.core import config
    except ImportError as error:
        raise ImportError(f"gpumem.kernels.device needs {COMPILER}: {COMPILERS[COMPILER]}") from error

F = TypeVar("F", bound=Callable[..., Any])
SIMULATOR = bool(getattr(config, "ENABLE_CUDASIM", 0))  # the successor has none
TILE = 16  # blocks of TILE x TILE threads for matrices: 256 threads. Not tuned
THREADS = 64  # of a 1-D block: few enough for the simulator, and for blocks with little to do each. Not tuned
_WIDE = 256  # of a block that is nothing but threads. Not tuned
_WAVES = 4096  # such blocks at most: a million threads, some four times what a GPU has at once. Not tuned
_MANY = 512  # of a block with long sums; each may have 128 registers then
_PARTS = 16  # of a block's sum: threads that add up first. Not tuned
_STRIDE = np.uint64(_PARTS)
_BLOCKS = 1 << 16  # at most, of kernels that loop over the rest. Not tuned
_lock = threading.RLock()  # Numba's simulator keeps state between `kernel[...]` and the call

config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small grids are normal here, and a warning for each launch is noise

if not SIMULATOR:
    from gpumem.kernels.ptx import bind, on
else:
    from numba.cuda.simulator import kernelapi

    class _Shared(kernelapi.FakeCUDAShared):  # type: ignore[misc]
        """Shared arrays of the simulator, by the line that asks. Numba's own are two where two threads ask at once, are
        refused an alignment, and take their time over the line."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._making = threading.Lock()

        def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
            caller = sys._getframe(1)  # noqa: SLF001  CPython's own way to know the caller, documented
            with self._making:
                place = caller.f_code.co_filename, caller.f_lineno
                return self._allocations.setdefault(place, np.empty(shape, dtype))

    kernelapi.FakeCUDAShared = _Shared


def kernel(function: Callable[..., None]) -> Any:
    """Mark a kernel; it is compiled when it is first bound to arguments."""
    return cuda.jit(function)


def named(made: Callable[..., None], function: Callable[..., Any]) -> Any:
    """Return the kernel that a function has been made of, under the function's name."""
    made.__name__, made.__qualname__, made.__module__ = function.__name__, function.__qualname__, function.__module__
    return kernel(made)


def device(function: F) -> F:
    """Compile a function that kernels call."""
    return cast(F, cuda.jit(device=True)(function))


def modular(function: F) -> F:
    """Do as `device`, for integers modulo 2**64: NumPy's scalars, which the simulator uses, warn when they wrap."""
    return device(np.errstate(over="ignore")(function) if SIMULATOR else function)


def launch(kernel: Any, blocks: int, threads: int | tuple[int, int], stream: object, *arguments: Any) -> None:
    """Launch so many blocks of threads on a stream, or nothing where there are none: CUDA refuses an empty grid.

    A `Script` for a stream takes the launch down.
    """
    if not blocks:
        return
    start = _bound(kernel, blocks, threads, arguments)
    if isinstance(stream, Script):
        stream.append(start)
    else:
        start(stream if SIMULATOR else on(stream))


def _bound(kernel: Any, grid: int, block: int | tuple[int, int], arguments: tuple[Any, ...]) -> Start:
    """Return what launches a kernel on a stream."""
    if SIMULATOR:

        def start(stream: object) -> None:
            with _lock:
                kernel[grid, block, stream](*arguments)

        return start
    types = tuple(kernel.typeof_pyval(_numba_array(argument)) for argument in arguments)
    return bind(
        (kernel, types),
        lambda cc: str(cuda.compile_ptx(kernel.py_func, types, cc=cc, device=False)[0]),
        grid,
        block,
        arguments,
    )


def _numba_array(argument: Any) -> Any:
    """An array on the device as one of Numba's, which it is as a rule; numbers as they are."""
    if hasattr(argument, "device_ctypes_pointer") or not hasattr(argument, "__cuda_array_interface__"):
        return argument
    return cuda.as_cuda_array(argument, sync=False)


def spread(kernel: Any, blocks: int, threads: int | tuple[int, int], stream: object, *arguments: Any) -> None:
    """Launch so many blocks or fewer; the kernel must loop with a stride of the grid."""
    launch(kernel, min(blocks, _BLOCKS), threads, stream, *arguments)


def each(kernel: Any, n: int, stream: object, *arguments: Any) -> None:
    """Launch about a thread for each of n elements; the kernel must loop from `position` with a stride of the grid."""
    threads = THREADS if SIMULATOR else _WIDE
    launch(kernel, min(-(-n // threads), _WAVES), threads, stream, *arguments)


@device
def position() -> Any:
    """Return the first element of this thread, without a sign: Numba would see whether it counts from the end."""
    return np.uint64(cuda.grid(1))


@device
def stride() -> Any:
    """Return how far this thread's elements are apart. A `while` loop, since a range divides for its length."""
    return np.uint64(cuda.gridsize(1))


def block_each(kernel: Any, n: int, terms: int, stream: object, *arguments: Any) -> None:
    """Launch a block for each of n results, with threads for sums of `terms` numbers; the kernel must loop with strides
    of the grid and of the block."""
    many = terms > 16 * THREADS and not SIMULATOR
    spread(kernel, n, _MANY if many else THREADS, stream, *arguments)


def _over_block(combine: Callable[[Any, Any], Any]) -> Any:
    """Return a device function that combines a number of each thread of a block into one, always in the same order."""
    two = device(combine)

    def all_of(value: Any) -> Any:
        values = cuda.shared.array(_MANY, np.float32)
        parts = cuda.shared.array(_PARTS, np.float32, alignment=16)
        me = np.uint64(cuda.threadIdx.x)
        values[me] = value
        cuda.syncthreads()
        if me < _PARTS:
            part, i = values[me], me + _STRIDE
            while i < np.uint64(cuda.blockDim.x):
                part, i = two(part, values[i]), i + _STRIDE
            parts[me] = part
        cuda.syncthreads()  # the next call writes `parts` after one more, so nobody is still reading here
        whole = parts[0]
        for k in range(1, _PARTS):  # by every thread, since all want it
            whole = two(whole, parts[k])
        return whole

    return cuda.jit(device=True, inline="always")(all_of)  # the successor places no shared array of a called one


block_sum = _over_block(lambda a, b: a + b)
"""Return the sum of a float32 of each thread of a block. All threads must call this together."""
block_max = _over_block(lambda a, b: b if b > a else a)
"""Return the maximum of a float32 of each thread of a block. All threads must call this together."""


# The elements of a channel of (N, C, ...), dealt out to the threads of a block: without a division for each.


@device
def first(channel: Any, channels: Any, inner: Any) -> Any:
    """Return where this thread's first element of a channel is, in the array and in its plane of `inner` elements."""
    place = cuda.threadIdx.x % inner
    return (cuda.threadIdx.x // inner * channels + channel) * inner + place, place


@device
def strides(channels: Any, inner: Any) -> Any:
    """Return what `following` adds: from element to element of a thread, and over to the channel's next plane."""
    place = cuda.blockDim.x % inner
    return cuda.blockDim.x // inner * channels * inner + place, place, (channels - 1) * inner, inner


@device
def following(at: Any, place: Any, strides: Any) -> Any:
    """Return where this thread's next element is, in the array and in its plane."""
    hop, step, over, inner = strides
    at, place = at + hop, place + step
    return (at + over, place - inner) if place >= inner else (at, place)
