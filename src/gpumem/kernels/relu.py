"""The rectifier and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import cuda, each, kernel

_ZERO = np.float32(0)


@kernel
def _relu(x: Any, out: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = _ZERO if x[i] < _ZERO else x[i]  # NaN stays NaN


@kernel
def _relu_gradient(y: Any, dy: Any, dx: Any) -> None:
    for i in range(cuda.grid(1), dx.size, cuda.gridsize(1)):
        dx[i] = dy[i] if y[i] > _ZERO else _ZERO


def relu(stream: object, x: Any, out: Any) -> None:
    """Set out to x where it is not negative, else to 0: any shape; out may be x."""
    n = _shapes.same(x=x, out=out)
    each(_relu, n, stream, x.reshape(n), out.reshape(n))


def relu_gradient(stream: object, y: Any, dy: Any, dx: Any) -> None:
    """Set dx to dy where y, the forward OUTPUT, is positive, else to 0: any shape; dx may be dy."""
    n = _shapes.same(y=y, dy=dy, dx=dx)
    each(_relu_gradient, n, stream, y.reshape(n), dy.reshape(n), dx.reshape(n))
