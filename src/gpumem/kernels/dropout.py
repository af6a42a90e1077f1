"""Dropout: some elements at random become 0. Which ones is a hash, so that the same can be drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.words import element, hashed
from gpumem.kernels.hash import S32, kept_from, seed as start_of
from gpumem.kernels.numba_cuda import each, kernel, position, stride

_ZERO = np.float32(0)


@kernel
def _dropout(x: Any, out: Any, mask: Any, counter: Any, start: Any, least: Any, scale: Any) -> None:
    begin = hashed(counter[0] ^ start)
    i, step, end = position(), stride(), np.uint64(out.size)
    while i < end:
        kept = element(begin, i) >> S32 >= least
        mask[i] = np.uint8(kept)
        out[i] = x[i] * scale if kept else _ZERO
        i += step


@kernel
def _dropout_gradient(dy: Any, mask: Any, dx: Any, scale: Any) -> None:
    i, step, end = position(), stride(), np.uint64(dx.size)
    while i < end:
        dx[i] = dy[i] * scale if mask[i] else _ZERO
        i += step


def dropout(stream: object, x: Any, out: Any, mask: Any, counter: Any, seed: int, p: float = 0.5) -> None:
    """Set out to x / (1 - p), or to 0 with probability p, and mask uint8 to 1, or to 0 there: any shape; out may be x.

    What is drawn depends on counter[0], uint64[1], and the seed alone: after an `advance` it is drawn anew.
    """
    n = _shapes.dropout(p, counter, x=x, out=out, mask=mask)
    least, scale = kept_from(p)
    each(_dropout, n, stream, x.reshape(n), out.reshape(n), mask.reshape(n), counter, start_of(seed), least, scale)


def dropout_gradient(stream: object, dy: Any, mask: Any, dx: Any, p: float = 0.5) -> None:
    """Set dx to dy / (1 - p) where the mask is 1, else to 0: any shape, mask uint8; dx may be dy."""
    n = _shapes.dropout(p, dy=dy, mask=mask, dx=dx)
    each(_dropout_gradient, n, stream, dy.reshape(n), mask.reshape(n), dx.reshape(n), kept_from(p)[1])
