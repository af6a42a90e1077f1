"""The Gaussian error linear unit in its tanh form, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import cuda, each, kernel

_HALF, _ONE, _THREE = np.float32(0.5), np.float32(1), np.float32(3)
_SCALE, _CUBE = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)


@kernel
def _gelu(x: Any, out: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        bend = math.tanh(_SCALE * (x[i] + _CUBE * x[i] * x[i] * x[i]))
        out[i] = _HALF * x[i] * (_ONE + bend)


@kernel
def _gelu_gradient(x: Any, dy: Any, dx: Any) -> None:
    for i in range(cuda.grid(1), dx.size, cuda.gridsize(1)):
        square = x[i] * x[i]
        bend = math.tanh(_SCALE * (x[i] + _CUBE * square * x[i]))
        slope = (_ONE - bend * bend) * _SCALE * (_ONE + _THREE * _CUBE * square)
        dx[i] = dy[i] * _HALF * (_ONE + bend + x[i] * slope)


def gelu(stream: object, x: Any, out: Any) -> None:
    """As in `reference`; out may be x."""
    n = _shapes.same(x=x, out=out)
    each(_gelu, n, stream, x.reshape(n), out.reshape(n))


def gelu_gradient(stream: object, x: Any, dy: Any, dx: Any) -> None:
    """As in `reference`; dx may be dy."""
    n = _shapes.same(x=x, dy=dy, dx=dx)
    each(_gelu_gradient, n, stream, x.reshape(n), dy.reshape(n), dx.reshape(n))
