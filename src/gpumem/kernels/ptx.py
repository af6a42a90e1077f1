"""PTX to a kernel of `cuda.core`, arguments made flat, and a launch of which only the stream is still open.

Numba's own launch looks at every argument each time, which costs the host 40 us. All of that is done once here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from cuda.bindings import driver as api
from cuda.core import LEGACY_DEFAULT_STREAM, Device, LaunchConfig, Program, ProgramOptions, launch

from gpumem.kernels.prebound import Start

_ENTRY = re.compile(r"\.visible\s+\.entry\s+([\w$]+)")
_lock = threading.RLock()
_kernels: dict[Hashable, Any] = {}


def bind(
    what: Hashable,
    ptx: Callable[[tuple[int, int]], str],
    grid: int,
    block: int | tuple[int, int],
    arguments: Sequence[Any],
) -> Start:
    """Return what launches a kernel on a stream; `ptx(compute capability)` is asked once for each `what` and device."""
    capability = Device().compute_capability
    key = what, (capability.major, capability.minor)
    if key not in _kernels:  # else nobody waits for a thread that loads, and so perhaps for the device
        with _lock:
            if key not in _kernels:
                _kernels[key] = _loaded(ptx(key[1]), key[1])
    kernel = _kernels[key]
    config, words = LaunchConfig(grid=grid, block=block), tuple(_flat(arguments))
    return lambda stream: launch(stream, config, kernel, *words)


def on(stream: Any) -> Any:
    """Return the stream to launch on: 0 and None are the default one, as Numba has it."""
    return LEGACY_DEFAULT_STREAM if stream is None or (isinstance(stream, int) and stream == 0) else stream


def _loaded(ptx: str, capability: tuple[int, int]) -> Any:
    """Link for the device at hand: a driver older than the toolkit refuses its PTX, but takes its machine code."""
    entry = _ENTRY.search(ptx)
    if entry is None:
        raise ValueError(f"PTX without an entry: {ptx!r:.60}")
    options = ProgramOptions(arch=f"sm_{capability[0]}{capability[1]}")
    kernel = Program(ptx, "ptx", options).compile("cubin").get_kernel(entry[1])
    _load(kernel)
    return kernel


def _load(kernel: Any) -> None:
    """Bring it onto the device. A first launch would, and may wait for all streams: behind a gate that is for ever."""
    status, function = api.cuKernelGetFunction(api.CUkernel(int(kernel.handle)))
    if not status:
        with suppress(RuntimeError):  # drivers before CUDA 12.4 have no such call
            api.cuFuncLoad(function)


def _flat(arguments: Sequence[Any]) -> Iterator[Any]:
    """The words of Numba's calling convention; an array is seven of them and more, the first two of no use here."""
    for argument in arguments:
        if hasattr(argument, "device_ctypes_pointer"):  # Numba's own, which is quicker to ask
            yield from (0, 0, argument.size, argument.dtype.itemsize, argument.device_ctypes_pointer.value or 0)
            yield from argument.shape
            yield from argument.strides
        elif hasattr(argument, "__cuda_array_interface__"):
            array = argument.__cuda_array_interface__
            shape, item = tuple(map(int, array["shape"])), np.dtype(array["typestr"]).itemsize
            strides = array.get("strides") or [item * prod(shape[k + 1 :]) for k in range(len(shape))]
            yield from (0, 0, prod(shape), item, array["data"][0], *shape, *strides)
        else:
            yield int(argument) if isinstance(argument, np.int64) else argument  # what `launch` is quickest with
