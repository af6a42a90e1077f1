"""The bytes alive at each step."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _placement
from gpumem.kernels._numba import THREADS, cuda, each, kernel, launch

_ZERO = np.int64(0)


@kernel
def _clear(out: Any) -> None:
    for t in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[t] = _ZERO


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
    count, steps = _placement.load_profile(size, start, end, out)
    each(_clear, steps, stream, out)
    each(_changes, count, stream, size, start, end, out)
    launch(_sums, 1, THREADS, stream, out)
