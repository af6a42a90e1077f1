"""What a transformer needs beside the rest, in NumPy; `reference` re-exports it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpumem.kernels import shapes as _shapes

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


def batched_matmul(
    stream: object, a: Array, b: Array, out: Array, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """Set out (G, M, N) to op(a) @ op(b) of each batch, where op(a) is (G, M, K) and op(b) is (G, K, N).

    One of a and b may be a single matrix, the same for each batch; out (M, N) is the sum over the batches.

    >>> a, b, out = np.array([[1, 2]], np.float32), np.array([[[1], [1]], [[3], [4]]], np.float32), np.zeros((1, 1))
    >>> batched_matmul(None, a, b, out)
    >>> float(out[0, 0])  # 1 + 2 and 3 + 8
    14.0
    """
    _shapes.batched_matmul(a, b, out, transpose_a, transpose_b)
    products = np.matmul(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b)
    out[...] = products if out.ndim == 3 else products.sum(axis=0)


def attention(stream: object, q: Array, k: Array, v: Array, out: Array, probs: Array, causal: bool = False) -> None:
    """Set probs to softmax(q @ k.T / sqrt(D)) and out to probs @ v, for each of G heads of sequences.

    q and out are (G, T, D), k and v (G, S, D), probs (G, T, S). With `causal`, place t looks at the places 0 to t only.

    >>> q, k, v = np.zeros((1, 2, 1), np.float32), np.zeros((1, 2, 1)), np.array([[[4], [6]]], np.float32)
    >>> out, probs = np.zeros((1, 2, 1), np.float32), np.zeros((1, 2, 2), np.float32)
    >>> attention(None, q, k, v, out, probs, causal=True)
    >>> probs.tolist(), out.tolist()
    ([[[1.0, 0.0], [0.5, 0.5]]], [[[4.0], [5.0]]])
    """
    *_, width = _shapes.attention({"q": q, "out": out}, {"k": k, "v": v}, probs)
    batched_matmul(stream, q, k, probs, transpose_b=True)
    softmax(stream, probs, probs, width**-0.5, causal)
    batched_matmul(stream, probs, v, out)


def attention_gradient(
    stream: object,
    dy: Array,
    q: Array,
    k: Array,
    v: Array,
    probs: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    workspace: Array,
) -> None:
    """Set dq, dk and dv from dy and from what `attention` read and wrote; workspace holds at least G * T * S floats."""
    like_q, like_k = {"q": q, "dy": dy, "dq": dq}, {"k": k, "v": v, "dk": dk, "dv": dv}
    *_, width = _shapes.attention(like_q, like_k, probs)
    _shapes.workspace(workspace, probs.size)
    slopes = workspace[: probs.size].reshape(probs.shape)  # the gradient by the weights, then by the scores
    batched_matmul(stream, probs, dy, dv, transpose_a=True)
    batched_matmul(stream, dy, v, slopes, transpose_b=True)
    softmax_gradient(stream, probs, slopes, slopes, width**-0.5)
    batched_matmul(stream, slopes, k, dq)
    batched_matmul(stream, slopes, q, dk, transpose_a=True)


def embedding(stream: object, table: Array, ids: NDArray[np.int32], out: Array) -> None:
    """Set out (N, D) to rows of table (V, D), those that ids int32 (N,) name; NaN where there is no such row.

    >>> out = np.zeros((3, 1), np.float32)
    >>> embedding(None, np.array([[5], [6]], np.float32), np.array([1, 0, 2], np.int32), out)
    >>> out.tolist()
    [[6.0], [5.0], [nan]]
    """
    _shapes.embedding("table", table, ids, "out", out)
    valid = (ids >= 0) & (ids < len(table))
    out[...] = np.nan
    out[valid] = table[ids[valid]]


def embedding_gradient(stream: object, dy: Array, ids: NDArray[np.int32], dtable: Array) -> None:
    """Set each row of dtable (V, D) to the sum of dy (N, D) where ids int32 (N,) name it; others are left out."""
    _shapes.embedding("dtable", dtable, ids, "dy", dy)
    valid = (ids >= 0) & (ids < len(dtable))
    dtable[...] = 0
    np.add.at(dtable, ids[valid], dy[valid])


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
