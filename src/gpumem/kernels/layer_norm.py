"""Layer norm and its gradient: a block for each row, and one for each column where numbers of columns are learned."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.numba_cuda import block_each, block_sum, cuda, kernel

_ZERO, _ONE = np.float32(0), np.float32(1)


@kernel
def _layer_norm(x: Any, gamma: Any, beta: Any, out: Any, mean: Any, inverse_std: Any, epsilon: Any) -> None:
    rows, columns = x.shape
    for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        total = _ZERO
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            total += x[row, c]
        middle = block_sum(total) / np.float32(columns)
        total = _ZERO
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            total += (x[row, c] - middle) * (x[row, c] - middle)
        scale = _ONE / math.sqrt(block_sum(total) / np.float32(columns) + epsilon)
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            out[row, c] = (x[row, c] - middle) * scale * gamma[c] + beta[c]
        if cuda.threadIdx.x == 0:
            mean[row], inverse_std[row] = middle, scale


@kernel
def _column_sums(dy: Any, x: Any, mean: Any, inverse_std: Any, dgamma: Any, dbeta: Any) -> None:
    rows, columns = x.shape
    for c in range(cuda.blockIdx.x, columns, cuda.gridDim.x):
        plain, weighted = _ZERO, _ZERO
        for row in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
            plain += dy[row, c]
            weighted += dy[row, c] * ((x[row, c] - mean[row]) * inverse_std[row])
        plain = block_sum(plain)
        weighted = block_sum(weighted)
        if cuda.threadIdx.x == 0:
            dgamma[c], dbeta[c] = weighted, plain


@kernel
def _input_gradient(dy: Any, x: Any, gamma: Any, mean: Any, inverse_std: Any, dx: Any) -> None:
    rows, columns = x.shape
    for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        middle, scale = mean[row], inverse_std[row]
        plain, weighted = _ZERO, _ZERO
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            slope = dy[row, c] * gamma[c]
            plain += slope
            weighted += slope * ((x[row, c] - middle) * scale)
        plain = block_sum(plain) / np.float32(columns)
        weighted = block_sum(weighted) / np.float32(columns)
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            along = plain + (x[row, c] - middle) * scale * weighted
            dx[row, c] = scale * (dy[row, c] * gamma[c] - along)


def layer_norm(
    stream: object, x: Any, gamma: Any, beta: Any, out: Any, mean: Any, inverse_std: Any, epsilon: float = 1e-5
) -> None:
    """As in `reference`; out may be x."""
    columns, saved = {"gamma": gamma, "beta": beta}, {"mean": mean, "inverse_std": inverse_std}
    shape = _shapes.layer_norm({"x": x, "out": out}, columns, saved, epsilon)
    block_each(_layer_norm, *shape, stream, x, gamma, beta, out, mean, inverse_std, np.float32(epsilon))


def layer_norm_gradient(
    stream: object, dy: Any, x: Any, gamma: Any, mean: Any, inverse_std: Any, dx: Any, dgamma: Any, dbeta: Any
) -> None:
    """As in `reference`; dx may be dy."""
    columns, saved = {"gamma": gamma, "dgamma": dgamma, "dbeta": dbeta}, {"mean": mean, "inverse_std": inverse_std}
    shape = _shapes.layer_norm({"dy": dy, "x": x, "dx": dx}, columns, saved)
    block_each(_column_sums, *shape[::-1], stream, dy, x, mean, inverse_std, dgamma, dbeta)  # before dx replaces dy
    block_each(_input_gradient, *shape, stream, dy, x, gamma, mean, inverse_std, dx)
