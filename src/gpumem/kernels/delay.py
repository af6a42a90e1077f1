"""A kernel that takes time: one thread, each step needs the one before."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._hash import LCG_FACTOR, LCG_TERM
from gpumem.kernels._numba import kernel, launch, modular

_FACTOR, _TERM = np.uint64(LCG_FACTOR), np.uint64(LCG_TERM)


@modular
def _next(state: Any) -> Any:
    return state * _FACTOR + _TERM


@kernel
def _delay(steps: Any, out: Any) -> None:
    state = np.uint64(0)
    for _ in range(steps):
        state = _next(state)
    out[0] = state


def delay(stream: object, steps: int, out: Any) -> None:
    """Set out[0] to the state of a 64-bit LCG, `steps` steps from 0: out uint64[1]."""
    _shapes.delay(steps, out)
    launch(_delay, 1, 1, stream, np.int64(steps), out)
