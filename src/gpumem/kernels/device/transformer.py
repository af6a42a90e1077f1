"""Softmax of each row, scaled and masked as attention wants it, and its gradient: a block for each row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.elementwise import binary, launch_each, unary
from gpumem.kernels.device.matmul import batched_matmul, flat, product
from gpumem.kernels.numba_cuda import block_each, block_max, block_sum, cuda, kernel

_ZERO, _LEAST = np.float32(0), np.float32(-np.inf)


@kernel
def _softmax(x: Any, out: Any, scale: Any, first: Any, period: Any) -> None:
    rows, columns = x.shape
    for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        seen = min(first + row % period, columns)
        top = _LEAST
        for c in range(cuda.threadIdx.x, seen, cuda.blockDim.x):
            top = x[row, c] * scale if x[row, c] * scale > top else top
        top = block_max(top)
        total = _ZERO
        for c in range(cuda.threadIdx.x, seen, cuda.blockDim.x):
            total += math.exp(x[row, c] * scale - top)
        total = block_sum(total)
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            out[row, c] = math.exp(x[row, c] * scale - top) / total if c < seen else _ZERO


@kernel
def _softmax_gradient(y: Any, dy: Any, dx: Any, columns: Any, scale: Any) -> None:
    for row in range(cuda.blockIdx.x, y.size // columns, cuda.gridDim.x):
        begin, end = row * columns, row * columns + columns
        total = _ZERO
        for i in range(begin + cuda.threadIdx.x, end, cuda.blockDim.x):
            total += y[i] * dy[i]
        total = block_sum(total)
        for i in range(begin + cuda.threadIdx.x, end, cuda.blockDim.x):
            dx[i] = scale * y[i] * (dy[i] - total)


def softmax(stream: object, x: Any, out: Any, scale: float = 1.0, causal: bool = False) -> None:
    """As in `reference`; out may be x."""
    shape = _shapes.softmax(causal, x=x, out=out)
    # the columns that a first row sees, each next one sees one more, and after how many rows it begins anew
    first, period = (1, x.shape[len(x.shape) - 2]) if causal else (shape[1], 1)
    numbers = np.float32(scale), np.int64(first), np.int64(period)
    block_each(_softmax, *shape, stream, x.reshape(shape), out.reshape(shape), *numbers)


def softmax_gradient(stream: object, y: Any, dy: Any, dx: Any, scale: float = 1.0) -> None:
    """As in `reference`; dx may be dy."""
    _, columns = _shapes.softmax(y=y, dy=dy, dx=dx)
    rows_gradient(stream, flat(y), flat(dy), flat(dx), columns, scale)


def rows_gradient(stream: object, y: Any, dy: Any, dx: Any, columns: int, scale: float) -> None:
    """Do as `softmax_gradient` for rows in flat arrays; dy and dx may be longer than y."""
    numbers = np.int64(columns), np.float32(scale)
    block_each(_softmax_gradient, _shapes.size(y) // columns, columns, stream, y, dy, dx, *numbers)


def attention(stream: object, q: Any, k: Any, v: Any, out: Any, probs: Any, causal: bool = False) -> None:
    """As in `reference`; three kernels."""
    *_, width = _shapes.attention({"q": q, "out": out}, {"k": k, "v": v}, probs)
    batched_matmul(stream, q, k, probs, transpose_b=True)
    softmax(stream, probs, probs, width**-0.5, causal)
    batched_matmul(stream, probs, v, out)


def attention_gradient(
    stream: object, dy: Any, q: Any, k: Any, v: Any, probs: Any, dq: Any, dk: Any, dv: Any, workspace: Any
) -> None:
    """As in `reference`; five kernels."""
    like_q, like_k = {"q": q, "dy": dy, "dq": dq}, {"k": k, "v": v, "dk": dk, "dv": dv}
    groups, rows, columns, width = _shapes.attention(like_q, like_k, probs)
    _shapes.workspace(workspace, _shapes.size(probs))
    batched_matmul(stream, probs, dy, dv, transpose_a=True)
    slopes = workspace, rows * columns  # the gradient by the weights, then by the scores
    left, right = (flat(dy), rows * width, width, 1), (flat(v), columns * width, 1, width)
    product(stream, left, right, workspace, groups, 1, (rows, columns, width))
    rows_gradient(stream, flat(probs), workspace, workspace, columns, width**-0.5)
    right = flat(k), columns * width, width, 1
    product(stream, (*slopes, columns, 1), right, flat(dq), groups, 1, (rows, width, columns))
    right = flat(q), rows * width, width, 1
    product(stream, (*slopes, 1, columns), right, flat(dk), groups, 1, (columns, width, rows))


_NAN = np.float32(np.nan)


@kernel
def _embedding(table: Any, ids: Any, out: Any) -> None:
    rows, columns = table.shape
    for n in range(cuda.blockIdx.x, ids.size, cuda.gridDim.x):
        row = ids[n]
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            out[n, c] = table[row, c] if 0 <= row < rows else _NAN


@kernel
def _embedding_gradient(dy: Any, ids: Any, dtable: Any) -> None:
    rows, columns = dtable.shape
    for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):  # a block looks for its row among the ids, in their order
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            dtable[row, c] = _ZERO
        for n in range(ids.size):
            if ids[n] == row:
                for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
                    dtable[row, c] += dy[n, c]


def embedding(stream: object, table: Any, ids: Any, out: Any) -> None:
    """As in `reference`."""
    _shapes.embedding("table", table, ids, "out", out)
    block_each(_embedding, *out.shape, stream, table, ids, out)


def embedding_gradient(stream: object, dy: Any, ids: Any, dtable: Any) -> None:
    """As in `reference`; without atomics, so the order of each sum is that of the ids."""
    _shapes.embedding("dtable", dtable, ids, "dy", dy)
    block_each(_embedding_gradient, *dtable.shape, stream, dy, ids, dtable)


_HALF, _ONE, _THREE = np.float32(0.5), np.float32(1), np.float32(3)
_SCALE, _CUBE = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)


@unary
def _gelu(x: Any) -> Any:
    bend = math.tanh(_SCALE * (x + _CUBE * x * x * x))
    return _HALF * x * (_ONE + bend)


@binary
def _gelu_gradient(x: Any, dy: Any) -> Any:
    square = x * x
    bend = math.tanh(_SCALE * (x + _CUBE * square * x))
    slope = (_ONE - bend * bend) * _SCALE * (_ONE + _THREE * _CUBE * square)
    return dy * _HALF * (_ONE + bend + x * slope)


def gelu(stream: object, x: Any, out: Any) -> None:
    """As in `reference`; out may be x."""
    launch_each(_gelu, stream, x=x, out=out)


def gelu_gradient(stream: object, x: Any, dy: Any, dx: Any) -> None:
    """As in `reference`; dx may be dy."""
    launch_each(_gelu_gradient, stream, x=x, dy=dy, dx=dx)
