"""Direct convolution: no workspace, every thread gathers what one result needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import THREADS, block_sum, cuda, device, each, kernel, launch

_ZERO = np.float32(0)


@device
def unravel(i: Any, shape: Any) -> Any:
    """Return the four indices of element i."""
    rest = i // shape[3]
    return rest // shape[2] // shape[1], rest // shape[2] % shape[1], rest % shape[2], i % shape[3]


@kernel
def _forward(x: Any, w: Any, out: Any, padding: Any, stride: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        n, k, p, q = unravel(i, out.shape)
        total = _ZERO
        for c in range(w.shape[1]):
            for r in range(w.shape[2]):
                h = p * stride + r - padding
                if 0 <= h < x.shape[2]:
                    for s in range(w.shape[3]):
                        v = q * stride + s - padding
                        if 0 <= v < x.shape[3]:
                            total += x[n, c, h, v] * w[k, c, r, s]
        out[n, k, p, q] = total


@kernel
def _input_gradient(dy: Any, w: Any, dx: Any, padding: Any, stride: Any) -> None:
    for i in range(cuda.grid(1), dx.size, cuda.gridsize(1)):
        n, c, h, v = unravel(i, dx.shape)
        total = _ZERO
        for r in range(w.shape[2]):
            p = (h + padding - r) // stride
            if p * stride == h + padding - r and 0 <= p < dy.shape[2]:
                for s in range(w.shape[3]):
                    q = (v + padding - s) // stride
                    if q * stride == v + padding - s and 0 <= q < dy.shape[3]:
                        for k in range(w.shape[0]):
                            total += dy[n, k, p, q] * w[k, c, r, s]
        dx[n, c, h, v] = total


@kernel
def _weight_gradient(x: Any, dy: Any, dw: Any, padding: Any, stride: Any) -> None:
    places = dy.shape[2] * dy.shape[3]
    for i in range(cuda.blockIdx.x, dw.size, cuda.gridDim.x):  # a block for each weight
        k, c, r, s = unravel(i, dw.shape)
        total = _ZERO
        for j in range(cuda.threadIdx.x, dy.shape[0] * places, THREADS):
            n, p, q = j // places, j % places // dy.shape[3], j % dy.shape[3]
            h, v = p * stride + r - padding, q * stride + s - padding
            if 0 <= h < x.shape[2] and 0 <= v < x.shape[3]:
                total += x[n, c, h, v] * dy[n, k, p, q]
        total = block_sum(total)
        if cuda.threadIdx.x == 0:
            dw[k, c, r, s] = total


def conv2d(stream: object, x: Any, w: Any, out: Any, padding: int = 1, stride: int = 1) -> None:
    """Set out (N, K, P, Q) to the cross-correlation of x (N, C, H, W) with w (K, C, R, S), as `reference` does."""
    _shapes.conv2d(x, w, out, padding, stride, ("x", "w", "out"))
    each(_forward, _shapes.size(out), stream, x, w, out, np.int64(padding), np.int64(stride))


def conv2d_input_gradient(stream: object, dy: Any, w: Any, dx: Any, padding: int = 1, stride: int = 1) -> None:
    """Set dx (N, C, H, W) to the gradient by the input, from dy (N, K, P, Q) and w (K, C, R, S)."""
    _shapes.conv2d(dx, w, dy, padding, stride, ("dx", "w", "dy"))
    each(_input_gradient, _shapes.size(dx), stream, dy, w, dx, np.int64(padding), np.int64(stride))


def conv2d_weight_gradient(stream: object, x: Any, dy: Any, dw: Any, padding: int = 1, stride: int = 1) -> None:
    """Set dw (K, C, R, S) to the gradient by the weights, from x (N, C, H, W) and dy (N, K, P, Q)."""
    _shapes.conv2d(x, dw, dy, padding, stride, ("x", "dw", "dy"))
    launch(_weight_gradient, _shapes.size(dw), THREADS, stream, x, dy, dw, np.int64(padding), np.int64(stride))
