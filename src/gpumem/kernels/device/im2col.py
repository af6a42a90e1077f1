"""Convolution as a matrix product: the workspace holds a (C*R*S, P*Q) matrix of taps by places for each image."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.conv2d import met, unravel
from gpumem.kernels.device.matmul import flat, product
from gpumem.kernels.numba_cuda import block_each, cuda, each, kernel

_ZERO = np.float32(0)


@kernel
def _im2col(
    x: Any, columns: Any, planes: Any, height: Any, width: Any, window_h: Any, window_w: Any,
    p_n: Any, q_n: Any, padding: Any, stride: Any,
) -> None:  # fmt: skip
    """A block for each row of a matrix: what one element of the window meets."""
    hop_p, hop_q = cuda.blockDim.x // q_n, cuda.blockDim.x % q_n
    for row in range(cuda.blockIdx.x, planes * window_h * window_w, cuda.gridDim.x):
        _, plane, r, s = unravel(row, (1, planes, window_h, window_w))
        h, v = cuda.threadIdx.x // q_n * stride + r - padding, cuda.threadIdx.x % q_n * stride + s - padding
        right = q_n * stride + s - padding
        for at in range(row * p_n * q_n + cuda.threadIdx.x, (row + 1) * p_n * q_n, cuda.blockDim.x):
            inside = 0 <= h < height and 0 <= v < width
            columns[np.uint64(at)] = x[np.uint64((plane * height + h) * width + v)] if inside else _ZERO
            h, v = h + hop_p * stride, v + hop_q * stride
            if v >= right:
                h, v = h + stride, v - q_n * stride


@kernel
def _col2im(
    columns: Any, dx: Any, planes: Any, height: Any, width: Any, window_h: Any, window_w: Any,
    p_n: Any, q_n: Any, padding: Any, stride: Any,
) -> None:  # fmt: skip
    for i in range(cuda.grid(1), planes * height * width, cuda.gridsize(1)):
        _, plane, h, v = unravel(i, (1, planes, height, width))
        first_p, end_p = met(h + padding, window_h, p_n, stride)
        first_q, end_q = met(v + padding, window_w, q_n, stride)
        total = _ZERO
        for p in range(first_p, end_p):
            row = (plane * window_h + h + padding - p * stride) * window_w + v + padding
            for q in range(first_q, end_q):
                total += columns[np.uint64(((row - q * stride) * p_n + p) * q_n + q)]
        dx[np.uint64(i)] = total


def _geometry(x: Any, w: Any, y: Any, padding: int, stride: int) -> list[np.int64]:
    planes = x.shape[0] * x.shape[1]
    return [np.int64(n) for n in (planes, *x.shape[2:], *w.shape[2:], *y.shape[2:], padding, stride)]


def _unfold(stream: object, x: Any, w: Any, y: Any, workspace: Any, padding: int, stride: int) -> None:
    """Check the workspace and fill it with what the windows meet."""
    _shapes.im2col(workspace, x, w, padding=padding, stride=stride)
    numbers = _geometry(x, w, y, padding, stride)
    rows = x.shape[0] * x.shape[1] * w.shape[2] * w.shape[3]
    block_each(_im2col, rows, y.shape[2] * y.shape[3], stream, flat(x), workspace, *numbers)


def _sizes(w: Any, y: Any) -> tuple[int, int, int, int]:
    """Return images, kernels, taps of a kernel and places of a window."""
    return y.shape[0], w.shape[0], w.shape[1] * w.shape[2] * w.shape[3], y.shape[2] * y.shape[3]


def conv2d_im2col(stream: object, x: Any, w: Any, out: Any, workspace: Any, padding: int = 1, stride: int = 1) -> None:
    """Do as `conv2d`, by a matrix product; workspace holds at least `im2col_floats` floats."""
    _shapes.conv2d(x, w, out, padding=padding, stride=stride, names=("x", "w", "out"))
    _unfold(stream, x, w, out, workspace, padding, stride)
    images, kernels, taps, places = _sizes(w, out)
    left, right = (flat(w), 0, taps, 1), (workspace, taps * places, places, 1)
    product(stream, left, right, flat(out), images, 1, (kernels, places, taps))


def conv2d_input_gradient_im2col(
    stream: object, dy: Any, w: Any, dx: Any, workspace: Any, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d_input_gradient`, by a matrix product; workspace holds at least `im2col_floats` floats."""
    _shapes.conv2d(dx, w, dy, padding=padding, stride=stride, names=("dx", "w", "dy"))
    _shapes.im2col(workspace, dx, w, padding=padding, stride=stride)
    images, kernels, taps, places = _sizes(w, dy)
    left, right = (flat(w), 0, 1, taps), (flat(dy), kernels * places, places, 1)
    product(stream, left, right, workspace, images, 1, (taps, places, kernels))
    each(_col2im, _shapes.size(dx), stream, workspace, flat(dx), *_geometry(dx, w, dy, padding, stride))


def conv2d_weight_gradient_im2col(
    stream: object, x: Any, dy: Any, dw: Any, workspace: Any, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d_weight_gradient`, by a matrix product; workspace holds at least `im2col_floats` floats."""
    _shapes.conv2d(x, dw, dy, padding=padding, stride=stride, names=("x", "dw", "dy"))
    _unfold(stream, x, dw, dy, workspace, padding, stride)
    images, kernels, taps, places = _sizes(dw, dy)
    left, right = (flat(dy), kernels * places, places, 1), (workspace, taps * places, 1, places)
    product(stream, left, right, flat(dw), 1, images, (kernels, taps, places))
