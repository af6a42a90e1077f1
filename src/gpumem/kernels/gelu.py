"""The Gaussian error linear unit in its tanh form, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.elementwise import binary, unary
from gpumem.kernels.numba_cuda import each

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
    n = _shapes.same(x=x, out=out)
    each(_gelu, n, stream, x.reshape(n), out.reshape(n))


def gelu_gradient(stream: object, x: Any, dy: Any, dx: Any) -> None:
    """As in `reference`; dx may be dy."""
    n = _shapes.same(x=x, dy=dy, dx=dx)
    each(_gelu_gradient, n, stream, x.reshape(n), dy.reshape(n), dx.reshape(n))
