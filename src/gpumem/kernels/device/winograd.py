"""Convolution with 3 x 3 windows by Winograd's F(2 x 2, 3 x 3): 16 products for 4 results, instead of 36.

Of one axis, with two results of three weights g and four pixels d: y = results(weights(g) * pixels(d)), the product
taken number by number. Of two axes, each transform runs down the columns, then along the rows, and the sum over
channels makes a matrix product of each of the 16 products (Lavin and Gray, Fast Algorithms for Convolutional Neural
Networks, 2015, section 4.1). The workspace holds 16 matrices each: weights (K, C), pixels (C, tiles), their products
(K, tiles).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.conv2d import unravel
from gpumem.kernels.device.matmul import flat, product
from gpumem.kernels.numba_cuda import cuda, device, each, kernel

_ZERO, _HALF = np.float32(0), np.float32(0.5)


def weights(a: Any, b: Any, c: Any) -> Any:
    """Return G g of three weights."""
    return a, _HALF * (a + b + c), _HALF * (a - b + c), c


def pixels(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return B^T d of four pixels."""
    return a - c, b + c, c - b, b - d


def results(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return A^T m of four products."""
    return a + b + c, b - c - d


_of_weights, _of_pixels, _of_products = device(weights), device(pixels), device(results)


@device
def _spread(out: Any, at: Any, step: Any, four: Any) -> None:
    """Set out[at] and what follows by steps to four numbers."""
    out[np.uint64(at)], out[np.uint64(at + step)] = four[0], four[1]
    out[np.uint64(at + 2 * step)], out[np.uint64(at + 3 * step)] = four[2], four[3]


@kernel
def _weights(w: Any, out: Any, kernels: Any, channels: Any, turned: Any) -> None:
    """Set out (16, K, C); turned, out (16, C, K) of the windows turned by half a circle, for the way back."""
    size = kernels * channels
    half = cuda.local.array((4, 3), np.float32)
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        first, step = (i * 9 + 8, -1) if turned else (i * 9, 1)
        for s in range(3):
            at = first + s * step
            a, b, c = w[np.uint64(at)], w[np.uint64(at + 3 * step)], w[np.uint64(at + 6 * step)]
            half[0, s], half[1, s], half[2, s], half[3, s] = _of_weights(a, b, c)
        to = i % channels * kernels + i // channels if turned else i
        for r in range(4):
            _spread(out, 4 * r * size + to, size, _of_weights(half[r, 0], half[r, 1], half[r, 2]))


@kernel
def _pixels(
    x: Any, out: Any, images: Any, channels: Any, height: Any, width: Any, rows: Any, columns: Any, padding: Any
) -> None:
    """Set out (16, C, tiles), from tiles of 4 x 4 pixels, which overlap by two."""
    size = channels * images * rows * columns
    tile = cuda.local.array((4, 4), np.float32)
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        c, n, p, q = unravel(i, (channels, images, rows, columns))
        top, left = 2 * p - padding, 2 * q - padding
        for r in range(4):
            at = ((n * channels + c) * height + top + r) * width + left
            for s in range(4):
                inside = 0 <= top + r < height and 0 <= left + s < width
                tile[r, s] = x[np.uint64(at + s)] if inside else _ZERO
        for s in range(4):
            tile[0, s], tile[1, s], tile[2, s], tile[3, s] = _of_pixels(tile[0, s], tile[1, s], tile[2, s], tile[3, s])
        for r in range(4):
            four = _of_pixels(tile[r, 0], tile[r, 1], tile[r, 2], tile[r, 3])
            _spread(out, 4 * r * size + i, size, four)


@kernel
def _results(
    products: Any, out: Any, images: Any, kernels: Any, height: Any, width: Any, rows: Any, columns: Any
) -> None:
    """Set out (N, K, H, W) from products (16, K, tiles)."""
    size = kernels * images * rows * columns
    half = cuda.local.array((2, 4), np.float32)
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        k, n, p, q = unravel(i, (kernels, images, rows, columns))
        for s in range(4):
            at, row = i + s * size, 4 * size
            a, b = products[np.uint64(at)], products[np.uint64(at + row)]
            c, d = products[np.uint64(at + 2 * row)], products[np.uint64(at + 3 * row)]
            half[0, s], half[1, s] = _of_products(a, b, c, d)
        for r in range(2):
            left, right = _of_products(half[r, 0], half[r, 1], half[r, 2], half[r, 3])
            at = ((n * kernels + k) * height + 2 * p + r) * width + 2 * q
            if 2 * p + r < height:
                out[np.uint64(at)] = left
                if 2 * q + 1 < width:
                    out[np.uint64(at + 1)] = right


def _convolve(stream: object, x: Any, w: Any, out: Any, workspace: Any, padding: int, turned: bool) -> None:
    """Set out (N, K, P, Q) from x (N, C, H, W), and from w, which is (C, K, 3, 3) if it is to be turned."""
    (images, channels, height, width), (_, kernels, bottom, right) = x.shape, out.shape
    rows, columns = -(-bottom // 2), -(-right // 2)
    tiles, matrix = images * rows * columns, kernels * channels
    u, v, m = 0, 16 * matrix, 16 * (matrix + channels * tiles)
    left, spread, products = workspace[u:v], workspace[v:m], workspace[m : m + 16 * kernels * tiles]
    numbers = [np.int64(n) for n in (*w.shape[:2], turned)]
    each(_weights, matrix, stream, flat(w), left, *numbers)
    numbers = [np.int64(n) for n in (images, channels, height, width, rows, columns, padding)]
    each(_pixels, channels * tiles, stream, flat(x), spread, *numbers)
    operands = (left, matrix, channels, 1), (spread, channels * tiles, tiles, 1)
    product(stream, *operands, products, 16, 1, (kernels, tiles, channels))
    numbers = [np.int64(n) for n in (images, kernels, bottom, right, rows, columns)]
    each(_results, kernels * tiles, stream, products, flat(out), *numbers)


def conv2d_winograd(
    stream: object, x: Any, w: Any, out: Any, workspace: Any, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d`, for w (K, C, 3, 3) and stride 1; workspace holds at least `winograd_floats` floats."""
    _shapes.conv2d(x, w, out, padding=padding, stride=stride, names=("x", "w", "out"))
    _shapes.workspace(workspace, _shapes.winograd_floats(x.shape, w.shape, padding, stride))
    _convolve(stream, x, w, out, workspace, padding, turned=False)


def conv2d_input_gradient_winograd(
    stream: object, dy: Any, w: Any, dx: Any, workspace: Any, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d_input_gradient`, for w (K, C, 3, 3) and stride 1: the convolution of dy with the turned windows."""
    _shapes.conv2d(dx, w, dy, padding=padding, stride=stride, names=("dx", "w", "dy"))
    _shapes.workspace(workspace, _shapes.winograd_floats(dx.shape, w.shape, padding, stride))
    _convolve(stream, dy, w, dx, workspace, 2 - padding, turned=True)
