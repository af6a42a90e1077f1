"""Direct convolution: no workspace, every thread gathers what one result needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import block_each, block_sum, cuda, device, each, kernel
from gpumem.kernels.matmul import flat

_ZERO = np.float32(0)
_KERNELS = 4  # whose weights a block sums at once: they meet the same input


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


@device
def _ways(sizes: Any, stride: Any) -> Any:
    """Return how far (h, v, x_at, dy_at) of a thread's next place are: on, over the end of a row, of an image."""
    _, channels, height, width, kernels, rows, columns = sizes
    n, _, p, q = unravel(cuda.blockDim.x, (0, 1, rows, columns))
    x_on = (n * channels * height + p * stride) * width + q * stride
    on = p * stride, q * stride, x_on, n * kernels * rows * columns + p * columns + q
    row = stride, -columns * stride, stride * (width - columns), 0
    return on, row, (-rows * stride, 0, (channels * height - rows * stride) * width, (kernels - 1) * rows * columns)


@device
def _moved(place: Any, way: Any) -> Any:
    return place[0] + way[0], place[1] + way[1], place[2] + way[2], place[3] + way[3]


@device
def _first(k: Any, c: Any, r: Any, s: Any, sizes: Any, stride: Any) -> Any:
    """Return (h, v, x_at, dy_at) of a thread's first place: what window element (r, s) meets, in two flat arrays."""
    _, channels, height, width, kernels, rows, columns = sizes
    n, _, p, q = unravel(cuda.threadIdx.x, (0, 1, rows, columns))
    h, v = p * stride + r, q * stride + s
    return h, v, ((n * channels + c) * height + h) * width + v, ((n * kernels + k) * rows + p) * columns + q


@kernel
def _weight_gradient(
    x: Any, dy: Any, dw: Any, n: Any, height: Any, width: Any, rows: Any, columns: Any, padding: Any, stride: Any
) -> None:
    kernels, channels, plane = dw.shape[0], dw.shape[1], rows * columns
    sizes = n, channels, height, width, kernels, rows, columns
    on, over_row, over_image = _ways(sizes, stride)
    total = cuda.local.array(_KERNELS, np.float32)
    for block in range(cuda.blockIdx.x, (kernels + _KERNELS - 1) // _KERNELS * dw.size // kernels, cuda.gridDim.x):
        k, c, r, s = unravel(block, dw.shape)
        k *= _KERNELS
        last = kernels - 1 - k
        for i in range(_KERNELS):
            total[i] = _ZERO
        place = _first(k, c, r - padding, s - padding, sizes, stride)
        bottom, right = rows * stride + r - padding, columns * stride + s - padding
        for _ in range(cuda.threadIdx.x, n * plane, cuda.blockDim.x):
            h, v, x_at, dy_at = place
            if 0 <= h < height and 0 <= v < width:
                pixel = x[np.uint64(x_at)]
                for i in range(_KERNELS):
                    total[i] += pixel * dy[np.uint64(dy_at)]
                    dy_at += plane if i < last else 0  # beyond the last kernel its sum is made again, and not used
            place = _moved(place, on)
            if place[1] >= right:
                place = _moved(place, over_row)
            if place[0] >= bottom:
                place = _moved(place, over_image)
        for i in range(_KERNELS):
            if k + i < kernels:
                whole = block_sum(total[i])
                if cuda.threadIdx.x == 0:
                    dw[k + i, c, r, s] = whole


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
    (images, kernels, rows, columns), (_, _, height, width) = dy.shape, x.shape
    blocks = -(-kernels // _KERNELS) * _shapes.size(dw) // max(kernels, 1)
    numbers = [np.int64(n) for n in (images, height, width, rows, columns, padding, stride)]
    block_each(_weight_gradient, blocks, images * rows * columns, stream, flat(x), flat(dy), dw, *numbers)
