"""Gradient descent with momentum and weight decay."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import cuda, each, kernel


@kernel
def _sgd(w: Any, dw: Any, velocity: Any, rate: Any, momentum: Any, decay: Any) -> None:
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        velocity[i] = momentum * velocity[i] + (dw[i] + decay * w[i])
        w[i] -= rate * velocity[i]


def sgd(stream: object, w: Any, dw: Any, velocity: Any, rate: float, momentum: float, decay: float) -> None:
    """Update w in place: velocity = momentum * velocity + (dw + decay * w); w -= rate * velocity. Any shape."""
    n = _shapes.same(w=w, dw=dw, velocity=velocity)
    arrays = [array.reshape(n) for array in (w, dw, velocity)]
    each(_sgd, n, stream, *arrays, np.float32(rate), np.float32(momentum), np.float32(decay))
