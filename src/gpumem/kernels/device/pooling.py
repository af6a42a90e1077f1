"""The maximum of each window, and where it was."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.conv2d import unravel
from gpumem.kernels.numba_cuda import cuda, each, kernel

_ZERO = np.float32(0)


@kernel
def _max_pool(x: Any, out: Any, index: Any, size: Any, stride: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        n, c, p, q = unravel(i, out.shape)
        best, where = x[n, c, p * stride, q * stride], p * stride * x.shape[3] + q * stride
        for h in range(p * stride, p * stride + size):
            for v in range(q * stride, q * stride + size):
                if x[n, c, h, v] > best:
                    best, where = x[n, c, h, v], h * x.shape[3] + v
        out[n, c, p, q] = best
        index[n, c, p, q] = where


@kernel
def _max_pool_gradient(dy: Any, index: Any, dx: Any, size: Any, stride: Any) -> None:
    for i in range(cuda.grid(1), dx.size, cuda.gridsize(1)):
        n, c, h, v = unravel(i, dx.shape)
        total = _ZERO
        for p in range(max(0, (h - size) // stride + 1), min(dy.shape[2], h // stride + 1)):  # windows over the element
            for q in range(max(0, (v - size) // stride + 1), min(dy.shape[3], v // stride + 1)):
                if index[n, c, p, q] == h * dx.shape[3] + v:
                    total += dy[n, c, p, q]
        dx[n, c, h, v] = total


def max_pool(stream: object, x: Any, out: Any, index: Any, size: int = 2, stride: int = 2) -> None:
    """Set out (N, C, P, Q) to the maximum of each window of x (N, C, H, W), P = (H - size) // stride + 1.

    index int32 (N, C, P, Q) is the position h * W + w of the first maximum. Windows may overlap.
    """
    _shapes.max_pool("x", x, "out", out, index=index, window=size, stride=stride)
    each(_max_pool, _shapes.size(out), stream, x, out, index, np.int64(size), np.int64(stride))


def max_pool_gradient(stream: object, dy: Any, index: Any, dx: Any, size: int = 2, stride: int = 2) -> None:
    """Set each element of dx (N, C, H, W) to the sum of dy (N, C, P, Q) over the windows whose maximum it was."""
    _shapes.max_pool("dx", dx, "dy", dy, index=index, window=size, stride=stride)
    each(_max_pool_gradient, _shapes.size(dx), stream, dy, index, dx, np.int64(size), np.int64(stride))


@kernel
def _average_pool(x: Any, out: Any, size: Any, stride: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        n, c, p, q = unravel(i, out.shape)
        total = _ZERO
        for h in range(p * stride, p * stride + size):
            for v in range(q * stride, q * stride + size):
                total += x[n, c, h, v]
        out[n, c, p, q] = total / np.float32(size * size)


@kernel
def _average_pool_gradient(dy: Any, dx: Any, size: Any, stride: Any) -> None:
    for i in range(cuda.grid(1), dx.size, cuda.gridsize(1)):
        n, c, h, v = unravel(i, dx.shape)
        total = _ZERO
        for p in range(max(0, (h - size) // stride + 1), min(dy.shape[2], h // stride + 1)):  # windows over the element
            for q in range(max(0, (v - size) // stride + 1), min(dy.shape[3], v // stride + 1)):
                total += dy[n, c, p, q]
        dx[n, c, h, v] = total / np.float32(size * size)


def average_pool(stream: object, x: Any, out: Any, size: int = 2, stride: int = 2) -> None:
    """Set out (N, C, P, Q) to the mean of each window of x (N, C, H, W), P = (H - size) // stride + 1."""
    _shapes.average_pool("x", x, "out", out, window=size, stride=stride)
    each(_average_pool, _shapes.size(out), stream, x, out, np.int64(size), np.int64(stride))


def average_pool_gradient(stream: object, dy: Any, dx: Any, size: int = 2, stride: int = 2) -> None:
    """Set each element of dx (N, C, H, W) to its share of dy (N, C, P, Q), summed over the windows that cover it."""
    _shapes.average_pool("dx", dx, "dy", dy, window=size, stride=stride)
    each(_average_pool_gradient, _shapes.size(dx), stream, dy, dx, np.int64(size), np.int64(stride))
