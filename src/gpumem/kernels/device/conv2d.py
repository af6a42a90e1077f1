"""Direct convolution: no workspace, every thread gathers what one result needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.matmul import flat
from gpumem.kernels.numba_cuda import block_each, block_sum, cuda, device, each, kernel

_ZERO = np.float32(0)
_AT_ONCE = 4  # sums of a thread, over different weights: they meet the same input. Not tuned


@device
def unravel(i: Any, shape: Any) -> Any:
    """Return the four indices of element i."""
    rest = i // shape[3]
    return rest // shape[2] // shape[1], rest // shape[2] % shape[1], rest % shape[2], i % shape[3]


@device
def met(at: Any, window: Any, places: Any, stride: Any) -> Any:
    """Return from which of the places of a window on and up to which it covers an element of the padded axis."""
    return max(0, (at - window + stride) // stride), min(places, at // stride + 1)


@device
def _clear(total: Any) -> None:
    for i in range(_AT_ONCE):
        total[i] = _ZERO


@device
def _add(total: Any, factor: Any, x: Any, at: Any, step: Any, last: Any) -> None:
    """Add products with the elements at x[at] and a step further each; beyond the last, that again: it is not used."""
    for i in range(_AT_ONCE):
        total[i] += factor * x[np.uint64(at)]
        at += step if i < last else 0


@device
def _write(total: Any, out: Any, at: Any, step: Any, last: Any) -> None:
    for i in range(_AT_ONCE):
        if i <= last:
            out[np.uint64(at + i * step)] = total[i]


@kernel
def _forward(
    x: Any, w: Any, out: Any, images: Any, channels: Any, height: Any, width: Any,
    kernels: Any, rows: Any, columns: Any, window_h: Any, window_w: Any, padding: Any, stride: Any,
) -> None:  # fmt: skip
    taps, plane = channels * window_h * window_w, rows * columns
    groups = (kernels + _AT_ONCE - 1) // _AT_ONCE
    total = cuda.local.array(_AT_ONCE, np.float32)
    for i in range(cuda.grid(1), images * groups * plane, cuda.gridsize(1)):
        n, k, p, q = unravel(i, (images, groups, rows, columns))
        k *= _AT_ONCE
        last = kernels - 1 - k
        h, v = p * stride - padding, q * stride - padding
        left, right = max(0, -v), min(window_w, width - v)
        _clear(total)
        for c in range(channels):
            for r in range(max(0, -h), min(window_h, height - h)):
                x_at = ((n * channels + c) * height + h + r) * width + v
                w_at = ((k * channels + c) * window_h + r) * window_w
                for s in range(left, right):
                    _add(total, x[np.uint64(x_at + s)], w, w_at + s, taps, last)
        _write(total, out, ((n * kernels + k) * rows + p) * columns + q, plane, last)


@kernel
def _input_gradient(
    dy: Any, w: Any, dx: Any, images: Any, channels: Any, height: Any, width: Any,
    kernels: Any, rows: Any, columns: Any, window_h: Any, window_w: Any, padding: Any, stride: Any,
) -> None:  # fmt: skip
    window, places = window_h * window_w, rows * columns
    groups = (channels + _AT_ONCE - 1) // _AT_ONCE
    total = cuda.local.array(_AT_ONCE, np.float32)
    for i in range(cuda.grid(1), images * groups * height * width, cuda.gridsize(1)):
        n, c, h, v = unravel(i, (images, groups, height, width))
        c *= _AT_ONCE
        last = channels - 1 - c
        first_p, end_p = met(h + padding, window_h, rows, stride)
        first_q, end_q = met(v + padding, window_w, columns, stride)
        _clear(total)
        for p in range(first_p, end_p):
            for q in range(first_q, end_q):
                dy_at = (n * kernels * rows + p) * columns + q
                w_at = (c * window_h + h + padding - p * stride) * window_w + v + padding - q * stride
                for k in range(kernels):
                    _add(total, dy[np.uint64(dy_at + k * places)], w, w_at + k * channels * window, window, last)
        _write(total, dx, ((n * channels + c) * height + h) * width + v, height * width, last)


@device
def _first(n: Any, k: Any, c: Any, h: Any, v: Any, p: Any, q: Any, sizes: Any) -> Any:
    """Return (h, v, x_at, dy_at): what an element of the window meets at place (p, q), in two flat arrays."""
    channels, height, width, kernels, rows, columns = sizes
    return h, v, ((n * channels + c) * height + h) * width + v, ((n * kernels + k) * rows + p) * columns + q


@device
def _strides(sizes: Any, stride: Any) -> Any:
    """Return how far (h, v, x_at, dy_at) of a thread's next place are: on, over the end of a row, of an image."""
    channels, height, width, kernels, rows, columns = sizes
    n, _, p, q = unravel(cuda.blockDim.x, (0, 1, rows, columns))
    on = _first(n, 0, 0, p * stride, q * stride, p, q, sizes)
    row = stride, -columns * stride, stride * (width - columns), 0
    return on, row, (-rows * stride, 0, (channels * height - rows * stride) * width, (kernels - 1) * rows * columns)


@device
def _moved(place: Any, way: Any) -> Any:
    return place[0] + way[0], place[1] + way[1], place[2] + way[2], place[3] + way[3]


@kernel
def _weight_gradient(
    x: Any, dy: Any, dw: Any, images: Any, channels: Any, height: Any, width: Any,
    kernels: Any, rows: Any, columns: Any, window_h: Any, window_w: Any, padding: Any, stride: Any,
) -> None:  # fmt: skip
    taps, plane = channels * window_h * window_w, rows * columns
    sizes = channels, height, width, kernels, rows, columns
    on, over_row, over_image = _strides(sizes, stride)
    total = cuda.local.array(_AT_ONCE, np.float32)
    for block in range(cuda.blockIdx.x, (kernels + _AT_ONCE - 1) // _AT_ONCE * taps, cuda.gridDim.x):
        k, c, r, s = unravel(block, (0, channels, window_h, window_w))
        k *= _AT_ONCE
        last = kernels - 1 - k
        n, _, p, q = unravel(cuda.threadIdx.x, (0, 1, rows, columns))
        place = _first(n, k, c, p * stride + r - padding, q * stride + s - padding, p, q, sizes)
        bottom, right = rows * stride + r - padding, columns * stride + s - padding
        _clear(total)
        for _ in range(cuda.threadIdx.x, images * plane, cuda.blockDim.x):
            h, v, x_at, dy_at = place
            if 0 <= h < height and 0 <= v < width:
                _add(total, x[np.uint64(x_at)], dy, dy_at, plane, last)
            place = _moved(place, on)
            if place[1] >= right:
                place = _moved(place, over_row)
            if place[0] >= bottom:
                place = _moved(place, over_image)
        for i in range(_AT_ONCE):
            if i <= last:
                whole = block_sum(total[i])
                if cuda.threadIdx.x == 0:
                    dw[np.uint64(block % taps + (k + i) * taps)] = whole


def _geometry(x: Any, w: Any, y: Any, padding: int, stride: int) -> list[np.int64]:
    """Return what the kernels want to know: images, channels, height, width, kernels, rows, columns, the window's."""
    return [np.int64(n) for n in (*x.shape, *y.shape[1:], *w.shape[2:], padding, stride)]


def _shared(y: Any) -> int:
    """Return for how many threads there are sums, for y (N, C, H, W)."""
    n, channels, height, width = map(int, y.shape)
    return n * -(-channels // _AT_ONCE) * height * width


def conv2d(stream: object, x: Any, w: Any, out: Any, padding: int = 1, stride: int = 1) -> None:
    """Set out (N, K, P, Q) to the cross-correlation of x (N, C, H, W) with w (K, C, R, S), as `reference` does."""
    _shapes.conv2d(x, w, out, padding=padding, stride=stride, names=("x", "w", "out"))
    numbers = _geometry(x, w, out, padding, stride)
    each(_forward, _shared(out), stream, flat(x), flat(w), flat(out), *numbers)


def conv2d_input_gradient(stream: object, dy: Any, w: Any, dx: Any, padding: int = 1, stride: int = 1) -> None:
    """Set dx (N, C, H, W) to the gradient by the input, from dy (N, K, P, Q) and w (K, C, R, S)."""
    _shapes.conv2d(dx, w, dy, padding=padding, stride=stride, names=("dx", "w", "dy"))
    numbers = _geometry(dx, w, dy, padding, stride)
    each(_input_gradient, _shared(dx), stream, flat(dy), flat(w), flat(dx), *numbers)


def conv2d_weight_gradient(stream: object, x: Any, dy: Any, dw: Any, padding: int = 1, stride: int = 1) -> None:
    """Set dw (K, C, R, S) to the gradient by the weights, from x (N, C, H, W) and dy (N, K, P, Q)."""
    _shapes.conv2d(x, dw, dy, padding=padding, stride=stride, names=("x", "dw", "dy"))
    blocks = -(-dw.shape[0] // _AT_ONCE) * _shapes.size(dw) // max(dw.shape[0], 1)
    terms = dy.shape[0] * dy.shape[2] * dy.shape[3]
    numbers = _geometry(x, dw, dy, padding, stride)
    block_each(_weight_gradient, blocks, terms, stream, flat(x), flat(dy), flat(dw), *numbers)
