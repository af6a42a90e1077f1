"""Softmax of each row, scaled and masked as attention wants it, and its gradient: a block for each row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.matmul import flat
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
