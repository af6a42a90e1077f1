"""Softmax and cross entropy in one op, and the gradient of the mean loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import THREADS, block_max, block_sum, cuda, each, kernel, launch

_ZERO, _ONE, _LEAST, _NAN = np.float32(0), np.float32(1), np.float32(-np.inf), np.float32(np.nan)


@kernel
def _cross_entropy(logits: Any, labels: Any, probs: Any, loss: Any) -> None:
    classes = logits.shape[1]
    for row in range(cuda.blockIdx.x, logits.shape[0], cuda.gridDim.x):  # a block for each row
        top = _LEAST
        for c in range(cuda.threadIdx.x, classes, THREADS):
            top = logits[row, c] if logits[row, c] > top else top
        top = block_max(top)
        total = _ZERO
        for c in range(cuda.threadIdx.x, classes, THREADS):
            total += math.exp(logits[row, c] - top)
        total = block_sum(total)
        for c in range(cuda.threadIdx.x, classes, THREADS):
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


def softmax_cross_entropy(stream: object, logits: Any, labels: Any, probs: Any, loss: Any) -> None:
    """Set probs (N, C) to the softmax of logits (N, C) and loss (N,) to -log of the label's: labels int32 (N,).

    The loss is NaN where the label is not a class.
    """
    rows, _ = _shapes.softmax(logits, labels, probs, loss)
    launch(_cross_entropy, rows, THREADS, stream, logits, labels, probs, loss)


def softmax_cross_entropy_gradient(stream: object, probs: Any, labels: Any, dlogits: Any) -> None:
    """Set dlogits to (probs - onehot(labels)) / N, the gradient of the mean loss: (N, C), labels int32 (N,)."""
    rows, _ = _shapes.axes("probs", probs, "NC")
    _shapes.expect("labels", labels, (rows,))
    n = _shapes.same(probs=probs, dlogits=dlogits)
    each(_cross_entropy_gradient, n, stream, probs, labels, dlogits)
