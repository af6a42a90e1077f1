"""A plan that is on the device already: the bytes alive at each step, and what `gpumem.check.placement` asks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.numba_cuda import THREADS, cuda, device, each, kernel, launch
from gpumem.kernels.shapes import FINE, MISPLACED, ON_HOST, OVERLAP, TOO_HIGH

_ZERO, _NONE = np.int64(0), np.int64(2**63 - 1)


@kernel
def _set(out: Any, value: Any) -> None:
    for t in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[t] = value


@kernel
def _changes(size: Any, start: Any, end: Any, out: Any) -> None:
    steps = out.size
    for i in range(cuda.grid(1), size.size, cuda.gridsize(1)):
        stop = end[i]
        if stop > steps:  # the tail of an arc that wraps is alive from step 0 on
            stop -= steps
            cuda.atomic.add(out, 0, size[i])  # integers commute, so the order of threads does not matter
        cuda.atomic.add(out, start[i], size[i])
        if stop < steps:
            cuda.atomic.add(out, stop, -size[i])


@kernel
def _sums(out: Any) -> None:
    """Replace numbers by their running sums: one block, each thread a part of them."""
    totals = cuda.shared.array(THREADS, np.int64)
    me, part = cuda.threadIdx.x, (out.size + THREADS - 1) // THREADS
    begin, end = me * part, min(me * part + part, out.size)
    total = _ZERO
    for t in range(begin, end):
        total += out[t]
    totals[me] = total
    cuda.syncthreads()
    total = _ZERO
    for other in range(me):
        total += totals[other]
    for t in range(begin, end):
        total += out[t]
        out[t] = total


def load_profile(stream: object, size: Any, start: Any, end: Any, out: Any) -> None:
    """Set out[t] to the bytes alive during step t: size, start, end int64 (B,), out int64 (n,) for a circle of n."""
    count, steps = _shapes.load_profile(size, start, end, out)
    each(_set, steps, stream, out, _ZERO)
    each(_changes, count, stream, size, start, end, out)
    launch(_sums, 1, THREADS, stream, out)


@device
def _share(offset: Any, size: Any, start: Any, end: Any, steps: Any, i: Any, j: Any) -> Any:
    """Say whether buffers i and j share a byte during a step."""
    above = offset[j] - offset[i]  # of two offsets >= 0, so nothing overflows
    if offset[j] < 0 or above >= size[i] or -above >= size[j] or size[i] == 0 or size[j] == 0:
        return False
    if start[i] < end[j] and start[j] < end[i]:
        return True
    return start[i] + steps < end[j] or start[j] + steps < end[i]


@kernel
def _overlap(offset: Any, size: Any, start: Any, end: Any, steps: Any, least: Any) -> None:
    count = offset.size
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        if offset[i] >= 0:
            for j in range(i + 1, count):
                if _share(offset, size, start, end, steps, i, j):
                    cuda.atomic.min(least, 0, i * count + j)  # the least, whatever the order
                    break


@kernel
def _pair(least: Any, count: Any) -> None:
    key = least[0]
    least[0] = -1 if key == _NONE else key // count
    least[1] = -1 if key == _NONE else key % count


def overlap(stream: object, offset: Any, size: Any, start: Any, end: Any, steps: int, pair: Any) -> None:
    """As in `reference`; a thread for each i looks at all j."""
    count = _shapes.overlap(offset, size, start=start, end=end, steps=steps, pair=pair)
    launch(_set, 1, 1, stream, pair, _NONE)
    each(_overlap, count, stream, offset, size, start, end, np.int64(steps), pair)
    launch(_pair, 1, 1, stream, pair, np.int64(count))


@kernel
def _alone(offset: Any, size: Any, host: Any, alignment: Any, height: Any, fault: Any) -> None:
    for j in range(cuda.grid(1), offset.size, cuda.gridsize(1)):
        code = FINE
        if host[j]:
            if offset[j] != -1:
                code = ON_HOST
        elif offset[j] < 0 or offset[j] % alignment != 0:
            code = MISPLACED
        elif size[j] > height - offset[j]:
            code = TOO_HIGH
        if code != FINE:
            cuda.atomic.min(fault, 0, j * OVERLAP + code)  # the least j, whatever the order


@kernel
def _verdict(fault: Any) -> None:
    key = fault[0]
    if key != _NONE:
        fault[0], fault[1], fault[2] = key % OVERLAP, key // OVERLAP, -1
    else:
        fault[0] = FINE if fault[1] < 0 else OVERLAP


def placement(
    stream: object,
    offset: Any,
    size: Any,
    start: Any,
    end: Any,
    host: Any,
    steps: int,
    alignment: int,
    height: int,
    fault: Any,
) -> None:
    """As in `reference`."""
    columns = {"offset": offset, "size": size, "start": start, "end": end, "host": host}
    count = _shapes.placement(steps, alignment, height, fault, **columns)
    overlap(stream, offset, size, start, end, steps, fault[1:])
    launch(_set, 1, 1, stream, fault[:1], _NONE)
    each(_alone, count, stream, offset, size, host, np.int64(alignment), np.int64(height), fault)
    launch(_verdict, 1, 1, stream, fault)
