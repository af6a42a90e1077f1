"""Convolution as a matrix product: the workspace holds a (C*R*S, P*Q) matrix of taps by places for each image."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import cuda, each, kernel
from gpumem.kernels.conv2d import unravel
from gpumem.kernels.matmul import flat, product

_ZERO = np.float32(0)


@kernel
def _im2col(x: Any, columns: Any, window_h: Any, window_w: Any, p_n: Any, q_n: Any, padding: Any, stride: Any) -> None:
    count = x.shape[0] * x.shape[1] * window_h * window_w * p_n * q_n
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        p, q = i // q_n % p_n, i % q_n
        tap = i // q_n // p_n
        r, s = tap // window_w % window_h, tap % window_w
        plane = tap // window_w // window_h
        h, v = p * stride + r - padding, q * stride + s - padding
        inside = 0 <= h < x.shape[2] and 0 <= v < x.shape[3]
        columns[i] = x[plane // x.shape[1], plane % x.shape[1], h, v] if inside else _ZERO


@kernel
def _col2im(columns: Any, dx: Any, window_h: Any, window_w: Any, p_n: Any, q_n: Any, padding: Any, stride: Any) -> None:
    for i in range(cuda.grid(1), dx.size, cuda.gridsize(1)):
        n, c, h, v = unravel(i, dx.shape)
        total = _ZERO
        for r in range(window_h):
            p = (h + padding - r) // stride
            if p * stride == h + padding - r and 0 <= p < p_n:
                for s in range(window_w):
                    q = (v + padding - s) // stride
                    if q * stride == v + padding - s and 0 <= q < q_n:
                        total += columns[((((n * dx.shape[1] + c) * window_h + r) * window_w + s) * p_n + p) * q_n + q]
        dx[n, c, h, v] = total


def _geometry(w: Any, y: Any, padding: int, stride: int) -> list[np.int64]:
    return [np.int64(n) for n in (w.shape[2], w.shape[3], y.shape[2], y.shape[3], padding, stride)]


def _sizes(w: Any, y: Any) -> tuple[int, int, int, int]:
    """Return images, kernels, taps of a kernel and places of a window."""
    return y.shape[0], w.shape[0], w.shape[1] * w.shape[2] * w.shape[3], y.shape[2] * y.shape[3]


def conv2d_im2col(stream: object, x: Any, w: Any, out: Any, workspace: Any, padding: int = 1, stride: int = 1) -> None:
    """Do as `conv2d`, by a matrix product; workspace holds at least `im2col_floats` floats."""
    _shapes.conv2d(x, w, out, padding, stride, ("x", "w", "out"))
    floats = _shapes.im2col(workspace, x, w, padding, stride)
    each(_im2col, floats, stream, x, workspace, *_geometry(w, out, padding, stride))
    images, kernels, taps, places = _sizes(w, out)
    left, right = (flat(w), 0, taps, 1), (workspace, taps * places, places, 1)
    product(stream, left, right, flat(out), images, 1, (kernels, places, taps))


def conv2d_input_gradient_im2col(
    stream: object, dy: Any, w: Any, dx: Any, workspace: Any, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d_input_gradient`, by a matrix product; workspace holds at least `im2col_floats` floats."""
    _shapes.conv2d(dx, w, dy, padding, stride, ("dx", "w", "dy"))
    _shapes.im2col(workspace, dx, w, padding, stride)
    images, kernels, taps, places = _sizes(w, dy)
    left, right = (flat(w), 0, 1, taps), (flat(dy), kernels * places, places, 1)
    product(stream, left, right, workspace, images, 1, (taps, places, kernels))
    each(_col2im, _shapes.size(dx), stream, workspace, dx, *_geometry(w, dy, padding, stride))


def conv2d_weight_gradient_im2col(
    stream: object, x: Any, dy: Any, dw: Any, workspace: Any, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d_weight_gradient`, by a matrix product; workspace holds at least `im2col_floats` floats."""
    _shapes.conv2d(x, dw, dy, padding, stride, ("x", "dw", "dy"))
    floats = _shapes.im2col(workspace, x, dw, padding, stride)
    each(_im2col, floats, stream, x, workspace, *_geometry(dw, dy, padding, stride))
    images, kernels, taps, places = _sizes(dw, dy)
    left, right = (flat(dy), kernels * places, places, 1), (workspace, taps * places, 1, places)
    product(stream, left, right, flat(dw), 1, images, (kernels, taps, places))
