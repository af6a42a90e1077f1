"""Ops that look at each element alone: copies, sums, the rectifier, the optimizers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import cuda, each, kernel, launch

_ZERO, _ONE = np.float32(0), np.float32(1)


@kernel
def _copy(x: Any, out: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = x[i]


@kernel
def _add(a: Any, b: Any, out: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a[i] + b[i]


@kernel
def _relu(x: Any, out: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = _ZERO if x[i] < _ZERO else x[i]  # NaN stays NaN


@kernel
def _relu_gradient(y: Any, dy: Any, dx: Any) -> None:
    for i in range(cuda.grid(1), dx.size, cuda.gridsize(1)):
        dx[i] = dy[i] if y[i] > _ZERO else _ZERO


@kernel
def _sgd(w: Any, dw: Any, velocity: Any, rate: Any, momentum: Any, decay: Any) -> None:
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        velocity[i] = momentum * velocity[i] + (dw[i] + decay * w[i])
        w[i] -= rate * velocity[i]


@kernel
def _tick(step: Any) -> None:
    step[0] += _ONE


@kernel
def _adam(w: Any, dw: Any, m: Any, v: Any, step: Any, rate: Any, beta1: Any, beta2: Any, epsilon: Any) -> None:
    first, second = _ONE - beta1 ** step[0], _ONE - beta2 ** step[0]  # undo the start from zero
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        m[i] = beta1 * m[i] + (_ONE - beta1) * dw[i]
        v[i] = beta2 * v[i] + (_ONE - beta2) * (dw[i] * dw[i])
        w[i] -= rate * (m[i] / first) / (math.sqrt(v[i] / second) + epsilon)


def _launch(kernel: Any, stream: object, *others: Any, **arrays: Any) -> None:
    """Check that the arrays have one shape, and hand the kernel their elements, then `others`."""
    n = _shapes.same(**arrays)
    each(kernel, n, stream, *(array.reshape(n) for array in arrays.values()), *others)


def copy(stream: object, x: Any, out: Any) -> None:
    """Copy x to out: any dtype and shape, the same dtype and number of elements. No copy engine takes part."""
    n = _shapes.copy(x, out)
    each(_copy, n, stream, x.reshape(n), out.reshape(n))


def add(stream: object, a: Any, b: Any, out: Any) -> None:
    """Set out to a + b: any shape; out may be a or b."""
    _launch(_add, stream, a=a, b=b, out=out)


def relu(stream: object, x: Any, out: Any) -> None:
    """Set out to x where it is not negative, else to 0: any shape; out may be x."""
    _launch(_relu, stream, x=x, out=out)


def relu_gradient(stream: object, y: Any, dy: Any, dx: Any) -> None:
    """Set dx to dy where y, the forward OUTPUT, is positive, else to 0: any shape; dx may be dy."""
    _launch(_relu_gradient, stream, y=y, dy=dy, dx=dx)


def sgd(stream: object, w: Any, dw: Any, velocity: Any, rate: float, momentum: float, decay: float) -> None:
    """Update w in place: velocity = momentum * velocity + (dw + decay * w); w -= rate * velocity. Any shape."""
    _launch(_sgd, stream, *map(np.float32, (rate, momentum, decay)), w=w, dw=dw, velocity=velocity)


def tick(stream: object, step: Any) -> None:
    """Add 1 to step (1,), the counter that `adam` reads: call it first."""
    _shapes.one(step=step)
    launch(_tick, 1, 1, stream, step)


def adam(
    stream: object,
    w: Any,
    dw: Any,
    m: Any,
    v: Any,
    step: Any,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    """Update w, m and v in place as Adam does at step[0] >= 1: any shape. step (1,) is memory, so graphs can replay."""
    _shapes.one(step=step)
    _launch(_adam, stream, step, *map(np.float32, (rate, beta1, beta2, epsilon)), w=w, dw=dw, m=m, v=v)
