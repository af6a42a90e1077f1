"""Convolution and pooling in NumPy; `reference` re-exports them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpumem.kernels import shapes as _shapes

Array = NDArray[np.float32]


def _pad(x: Array, padding: int) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))


def _taps(image: Array, window: tuple[int, ...], out: tuple[int, ...], stride: int) -> Iterator[tuple[int, int, Array]]:
    """Yield r, s and the view of the image that meets tap (r, s) of a window, one element for each place of it."""
    for r in range(window[0]):
        for s in range(window[1]):
            yield r, s, image[:, :, r : r + out[0] * stride : stride, s : s + out[1] * stride : stride]


def conv2d(stream: object, x: Array, w: Array, out: Array, padding: int = 1, stride: int = 1) -> None:
    """Set out (N, K, P, Q) to the cross-correlation of x (N, C, H, W) with w (K, C, R, S), P = (H + 2p - R) // s + 1.

    >>> x, w, out = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 3, 3), np.float32), np.empty((1, 1, 2, 2))
    >>> conv2d(None, x, w, out)
    >>> out.tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    _shapes.conv2d(x, w, out, padding=padding, stride=stride, names=("x", "w", "out"))
    out[...] = 0
    for r, s, part in _taps(_pad(x, padding), w.shape[2:], out.shape[2:], stride):
        out += np.einsum("nchw,kc->nkhw", part, w[:, :, r, s], optimize=True)


def conv2d_input_gradient(stream: object, dy: Array, w: Array, dx: Array, padding: int = 1, stride: int = 1) -> None:
    """Set dx (N, C, H, W) to the gradient by the input, from dy (N, K, P, Q) and w (K, C, R, S)."""
    _shapes.conv2d(dx, w, dy, padding=padding, stride=stride, names=("dx", "w", "dy"))
    padded = _pad(np.zeros_like(dx), padding)
    for r, s, part in _taps(padded, w.shape[2:], dy.shape[2:], stride):
        part += np.einsum("nkhw,kc->nchw", dy, w[:, :, r, s], optimize=True)
    dx[...] = padded[:, :, padding : padding + dx.shape[2], padding : padding + dx.shape[3]]


def conv2d_weight_gradient(stream: object, x: Array, dy: Array, dw: Array, padding: int = 1, stride: int = 1) -> None:
    """Set dw (K, C, R, S) to the gradient by the weights, from x (N, C, H, W) and dy (N, K, P, Q)."""
    _shapes.conv2d(x, dw, dy, padding=padding, stride=stride, names=("x", "dw", "dy"))
    for r, s, part in _taps(_pad(x, padding), dw.shape[2:], dy.shape[2:], stride):
        dw[:, :, r, s] = np.einsum("nkhw,nchw->kc", dy, part, optimize=True)


def _matrices(workspace: Array, x: Array, w: Array, padding: int, stride: int) -> Array:
    """Return the workspace as (N, C*R*S, P*Q) matrices."""
    floats = _shapes.im2col(workspace, x, w, padding=padding, stride=stride)
    _, _, rows, columns = _shapes.conv_output(x.shape, w.shape, padding, stride)
    return workspace[:floats].reshape(x.shape[0], w.size // w.shape[0], rows * columns)


def _im2col(workspace: Array, x: Array, w: Array, out: Array, padding: int, stride: int) -> Array:
    """Fill the workspace with the taps of x; return it as matrices."""
    matrices = _matrices(workspace, x, w, padding, stride)
    view = matrices.reshape(*x.shape[:2], *w.shape[2:], *out.shape[2:])
    for r, s, part in _taps(_pad(x, padding), w.shape[2:], out.shape[2:], stride):
        view[:, :, r, s] = part
    return matrices


def conv2d_im2col(
    stream: object, x: Array, w: Array, out: Array, workspace: Array, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d`, by a matrix product; workspace holds at least `im2col_floats` floats."""
    _shapes.conv2d(x, w, out, padding=padding, stride=stride, names=("x", "w", "out"))
    matrices = _im2col(workspace, x, w, out, padding, stride)
    out[...] = (w.reshape(len(w), -1) @ matrices).reshape(out.shape)


def conv2d_input_gradient_im2col(
    stream: object, dy: Array, w: Array, dx: Array, workspace: Array, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d_input_gradient`, by a matrix product; workspace holds at least `im2col_floats` floats."""
    _shapes.conv2d(dx, w, dy, padding=padding, stride=stride, names=("dx", "w", "dy"))
    matrices = _matrices(workspace, dx, w, padding, stride)
    np.matmul(w.reshape(len(w), -1).T, dy.reshape(*dy.shape[:2], matrices.shape[2]), out=matrices)
    view = matrices.reshape(*dx.shape[:2], *w.shape[2:], *dy.shape[2:])
    padded = _pad(np.zeros_like(dx), padding)
    for r, s, part in _taps(padded, w.shape[2:], dy.shape[2:], stride):
        part += view[:, :, r, s]
    dx[...] = padded[:, :, padding : padding + dx.shape[2], padding : padding + dx.shape[3]]


def conv2d_weight_gradient_im2col(
    stream: object, x: Array, dy: Array, dw: Array, workspace: Array, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d_weight_gradient`, by a matrix product; workspace holds at least `im2col_floats` floats."""
    _shapes.conv2d(x, dw, dy, padding=padding, stride=stride, names=("x", "dw", "dy"))
    matrices = _im2col(workspace, x, dw, dy, padding, stride)
    products = dy.reshape(*dy.shape[:2], matrices.shape[2]) @ matrices.transpose(0, 2, 1)
    dw[...] = products.sum(axis=0).reshape(dw.shape)


def conv2d_winograd(
    stream: object, x: Array, w: Array, out: Array, workspace: Array, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d`, for w (K, C, 3, 3) and stride 1; workspace holds at least `winograd_floats` floats.

    What is in the workspace afterwards is not said: here nothing new, since this is `conv2d`.
    """
    _shapes.conv2d(x, w, out, padding=padding, stride=stride, names=("x", "w", "out"))
    _shapes.workspace(workspace, _shapes.winograd_floats(x.shape, w.shape, padding, stride))
    conv2d(stream, x, w, out, padding, stride)


def conv2d_input_gradient_winograd(
    stream: object, dy: Array, w: Array, dx: Array, workspace: Array, padding: int = 1, stride: int = 1
) -> None:
    """Do as `conv2d_input_gradient`, for w (K, C, 3, 3) and stride 1; workspace as for `conv2d_winograd`."""
    _shapes.conv2d(dx, w, dy, padding=padding, stride=stride, names=("dx", "w", "dy"))
    _shapes.workspace(workspace, _shapes.winograd_floats(dx.shape, w.shape, padding, stride))
    conv2d_input_gradient(stream, dy, w, dx, padding, stride)


def max_pool(stream: object, x: Array, out: Array, index: NDArray[np.int32], size: int = 2, stride: int = 2) -> None:
    """Set out (N, C, P, Q) to the maximum of each window of x (N, C, H, W), P = (H - size) // stride + 1.

    index int32 (N, C, P, Q) is the position h * W + w of the first maximum. Windows may overlap.
    """
    _shapes.max_pool("x", x, "out", out, index=index, window=size, stride=stride)
    rows = np.arange(out.shape[2])[:, None] * stride
    columns = np.arange(out.shape[3]) * stride
    for r, s, part in _taps(x, (size, size), out.shape[2:], stride):
        better = (part > out) if r or s else np.ones(out.shape, bool)
        out[better] = part[better]
        index[better] = np.broadcast_to((rows + r) * x.shape[3] + columns + s, out.shape)[better]


def max_pool_gradient(
    stream: object, dy: Array, index: NDArray[np.int32], dx: Array, size: int = 2, stride: int = 2
) -> None:
    """Set each element of dx (N, C, H, W) to the sum of dy (N, C, P, Q) over the windows whose maximum it was."""
    _shapes.max_pool("dx", dx, "dy", dy, index=index, window=size, stride=stride)
    flat = dx.reshape(dx.shape[0] * dx.shape[1], -1)
    flat[...] = 0
    planes = np.arange(flat.shape[0])[:, None]
    np.add.at(flat, (planes, index.reshape(flat.shape[0], -1)), dy.reshape(flat.shape[0], -1))


def average_pool(stream: object, x: Array, out: Array, size: int = 2, stride: int = 2) -> None:
    """Set out (N, C, P, Q) to the mean of each window of x (N, C, H, W), P = (H - size) // stride + 1."""
    _shapes.average_pool("x", x, "out", out, window=size, stride=stride)
    out[...] = 0
    for _, _, part in _taps(x, (size, size), out.shape[2:], stride):
        out += part
    out /= np.float32(size * size)


def average_pool_gradient(stream: object, dy: Array, dx: Array, size: int = 2, stride: int = 2) -> None:
    """Set each element of dx (N, C, H, W) to its share of dy (N, C, P, Q), summed over the windows that cover it."""
    _shapes.average_pool("dx", dx, "dy", dy, window=size, stride=stride)
    dx[...] = 0
    for _, _, part in _taps(dx, (size, size), dy.shape[2:], stride):
        part += dy
    dx /= np.float32(size * size)
