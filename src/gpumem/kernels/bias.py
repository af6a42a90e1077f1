"""A number for each channel, added to all of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.channels import first, following, strides
from gpumem.kernels.numba_cuda import block_each, block_sum, cuda, each, kernel

_ZERO = np.float32(0)


@kernel
def _bias(x: Any, b: Any, out: Any, inner: Any) -> None:
    begin, hop, size = cuda.grid(1), cuda.gridsize(1), b.size
    channel, place = begin // inner % size, begin % inner
    over, along = hop // inner % size, hop % inner
    for i in range(begin, out.size, hop):
        out[np.uint64(i)] = x[np.uint64(i)] + b[np.uint64(channel)]
        channel, place = channel + over, place + along
        if place >= inner:
            channel, place = channel + 1, place - inner
        if channel >= size:
            channel -= size


@kernel
def _bias_gradient(dy: Any, db: Any, outer: Any, inner: Any) -> None:
    steps = strides(db.size, inner)
    for channel in range(cuda.blockIdx.x, db.size, cuda.gridDim.x):  # a block for each channel
        total = _ZERO
        at, place = first(channel, db.size, inner)
        for _ in range(cuda.threadIdx.x, outer * inner, cuda.blockDim.x):
            total += dy[np.uint64(at)]
            at, place = following(at, place, steps)
        total = block_sum(total)
        if cuda.threadIdx.x == 0:
            db[channel] = total


def bias(stream: object, x: Any, b: Any, out: Any) -> None:
    """Set out to x plus b of the channel: x (N, C) or (N, C, H, W), b (C,); out may be x."""
    _, channels, inner = _shapes.channels("x", x)
    _shapes.expect("b", b, (channels,))
    n = _shapes.same(x=x, out=out)
    each(_bias, n, stream, x.reshape(n), b, out.reshape(n), np.int64(inner))


def bias_gradient(stream: object, dy: Any, db: Any) -> None:
    """Set db (C,) to the sums of dy, (N, C) or (N, C, H, W), over each channel."""
    outer, channels, inner = _shapes.channels("dy", dy)
    _shapes.expect("db", db, (channels,))
    flat = dy.reshape(outer * channels * inner)
    block_each(_bias_gradient, channels, outer * inner, stream, flat, db, np.int64(outer), np.int64(inner))
