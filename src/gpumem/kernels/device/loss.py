"""Losses: softmax and cross entropy in one op, the gradient of their mean, a mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.numba_cuda import block_each, block_max, block_sum, cuda, each, kernel

_ZERO, _ONE, _LEAST, _NAN = np.float32(0), np.float32(1), np.float32(-np.inf), np.float32(np.nan)


@kernel
def _cross_entropy(logits: Any, labels: Any, probs: Any, loss: Any) -> None:
    classes = logits.shape[1]
    for row in range(cuda.blockIdx.x, logits.shape[0], cuda.gridDim.x):  # a block for each row
        top = _LEAST
        for c in range(cuda.threadIdx.x, classes, cuda.blockDim.x):
            top = logits[row, c] if logits[row, c] > top else top
        top = block_max(top)
        total = _ZERO
        for c in range(cuda.threadIdx.x, classes, cuda.blockDim.x):
            total += math.exp(logits[row, c] - top)
        total = block_sum(total)
        for c in range(cuda.threadIdx.x, classes, cuda.blockDim.x):
            probs[row, c] = math.exp(logits[row, c] - top) / total
        if cuda.threadIdx.x == 0:
            label = labels[row]
            valid = 0 <= label < classes
            loss[row] = math.log(total) - (logits[row, label] - top) if valid else _NAN


@kernel
def _cross_entropy_gradient(probs: Any, labels: Any, dlogits: Any) -> None:
    rows, classes = probs.shape
    for i in range(cuda.grid(1), dlogits.size, cuda.gridsize(1)):
        row, c = i // classes, i % classes
        hit = _ONE if labels[row] == c else _ZERO
        dlogits[row, c] = (probs[row, c] - hit) / np.float32(rows)


@kernel
def _mean(x: Any, out: Any) -> None:
    total = _ZERO
    for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        total += x[i]
    total = block_sum(total)
    if cuda.threadIdx.x == 0:
        out[0] = total / np.float32(x.size)


def softmax_cross_entropy(stream: object, logits: Any, labels: Any, probs: Any, loss: Any) -> None:
    """As in `reference`; a block for each row."""
    rows, classes = _shapes.cross_entropy(logits, labels, probs, loss)
    block_each(_cross_entropy, rows, classes, stream, logits, labels, probs, loss)


def softmax_cross_entropy_gradient(stream: object, probs: Any, labels: Any, dlogits: Any) -> None:
    """Set dlogits to (probs - onehot(labels)) / N, the gradient of the mean loss: (N, C), labels int32 (N,)."""
    rows, _ = _shapes.axes("probs", probs, "NC")
    _shapes.expect("labels", labels, (rows,))
    n = _shapes.same(probs=probs, dlogits=dlogits)
    each(_cross_entropy_gradient, n, stream, probs, labels, dlogits)


def mean(stream: object, x: Any, out: Any) -> None:
    """Set out[0] to the mean of x, of any shape but empty: out (1,). One block, so the order of the sum is fixed."""
    n = _shapes.mean(x, out)
    block_each(_mean, 1, n, stream, x.reshape(n), out)
