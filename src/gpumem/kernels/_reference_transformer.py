"""What a transformer needs beside the rest, in NumPy; `reference` re-exports it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpumem.kernels import _shapes

Array = NDArray[np.float32]
_HALF, _ONE, _THREE = np.float32(0.5), np.float32(1), np.float32(3)
_SCALE, _CUBE = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)


def softmax(stream: object, x: Array, out: Array, scale: float = 1.0, causal: bool = False) -> None:
    """Set out to the softmax of scale * x along the last axis: any shape; out may be x.

    With `causal`, x is (..., T, S), and row t of each matrix is the softmax of its elements 0 to t, the others are 0.

    >>> out = np.zeros((2, 2), np.float32)
    >>> softmax(None, np.zeros((2, 2), np.float32), out, causal=True)
    >>> out.tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    _shapes.softmax(causal, x=x, out=out)
    scores = np.float32(scale) * x
    if causal:
        scores = np.where(np.tri(*x.shape[-2:]) > 0, scores, np.float32(-np.inf))
    np.exp(scores - scores.max(axis=-1, keepdims=True), out=out)
    out /= out.sum(axis=-1, keepdims=True)


def softmax_gradient(stream: object, y: Array, dy: Array, dx: Array, scale: float = 1.0) -> None:
    """Set dx from dy and y, the forward OUTPUT, causal or not: dx = scale * y * (dy - sum(y * dy)); dx may be dy."""
    _shapes.softmax(y=y, dy=dy, dx=dx)
    dx[...] = np.float32(scale) * y * (dy - (y * dy).sum(axis=-1, keepdims=True))


def gelu(stream: object, x: Array, out: Array) -> None:
    """Set out to x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2: any shape; out may be x.

    >>> x = np.array([-3, -1, 0, 1, 3], np.float32)
    >>> gelu(None, x, x)
    >>> x.round(3).tolist()
    [-0.004000000189989805, -0.1589999943971634, 0.0, 0.8410000205039978, 2.996000051498413]
    """
    _shapes.same(x=x, out=out)
    out[...] = _HALF * x * (_ONE + np.tanh(_SCALE * (x + _CUBE * x * x * x)))


def gelu_gradient(stream: object, x: Array, dy: Array, dx: Array) -> None:
    """Set dx to dy times the slope of `gelu` at x, the forward INPUT: any shape; dx may be dy."""
    _shapes.same(x=x, dy=dy, dx=dx)
    square = x * x
    bend = np.tanh(_SCALE * (x + _CUBE * square * x))
    slope = (_ONE - bend * bend) * _SCALE * (_ONE + _THREE * _CUBE * square)
    dx[...] = dy * _HALF * (_ONE + bend + x * slope)
