"""Adam, with its step counter in device memory so that a captured launch can be replayed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import cuda, each, kernel, launch

_ONE = np.float32(1)


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
    n = _shapes.same(w=w, dw=dw, m=m, v=v)
    _shapes.one(step=step)
    arrays = [array.reshape(n) for array in (w, dw, m, v)]
    each(_adam, n, stream, *arrays, step, *map(np.float32, (rate, beta1, beta2, epsilon)))
