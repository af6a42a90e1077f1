"""Ops on 64-bit words: checksums that see positions, bytes that depend on one, a counter, a loop that takes time."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.hash import GOLDEN, LCG_FACTOR, LCG_TERM, ONE, S56, mix, seed
from gpumem.kernels.numba_cuda import THREADS, cuda, each, kernel, launch, modular, position, stride

_BLOCKS = 2048  # enough to fill a GPU; each ends with an atomic on the same word. Not tuned
_FACTOR, _TERM = np.uint64(LCG_FACTOR), np.uint64(LCG_TERM)
hashed = modular(mix)


@modular
def element(start: Any, i: Any) -> Any:
    """Return element i of the stream from `start`."""
    return hashed(start + (i + ONE) * GOLDEN)


@modular
def _weighted(byte: Any, weight: Any) -> Any:
    return (np.uint64(byte) + ONE) * (weight | ONE)


@modular
def _plus(a: Any, b: Any) -> Any:
    return a + b


@modular
def _add_to(digest: Any, total: Any) -> None:
    cuda.atomic.add(digest, 0, total)  # integers commute, so the order of blocks does not matter


@kernel
def _checksum(x: Any, digest: Any, start: Any) -> None:
    totals = cuda.shared.array(THREADS, np.uint64)
    total = np.uint64(0)
    i, step, end = position(), stride(), np.uint64(x.size)
    while i < end:
        total = _plus(total, _weighted(x[i], element(start, i)))
        i += step
    totals[cuda.threadIdx.x] = total
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        for i in range(1, THREADS):
            total = _plus(total, totals[i])
        _add_to(digest, total)


@kernel
def _fill(digest: Any, out: Any, start: Any) -> None:
    begin = hashed(digest[0] ^ start)
    i, step, end = position(), stride(), np.uint64(out.size)
    while i < end:
        out[i] = np.uint8(element(begin, i) >> S56)
        i += step


@kernel
def _clear(digest: Any) -> None:
    digest[0] = np.uint64(0)


@kernel
def _advance(counter: Any) -> None:
    counter[0] = _plus(counter[0], ONE)


@modular
def _next(state: Any) -> Any:
    return state * _FACTOR + _TERM


@kernel
def _delay(steps: Any, out: Any) -> None:
    state = np.uint64(0)
    for _ in range(steps):  # one thread, each step needs the one before
        state = _next(state)
    out[0] = state


def checksum(stream: object, x: Any, digest: Any, salt: int = 0) -> None:
    """Add the sum of (x[i] + 1) * w(i, salt) to digest[0], modulo 2**64: x uint8[k], digest uint64[1]."""
    (n,) = _shapes.axes("x", x, "k")
    _shapes.one(digest=digest)
    launch(_checksum, min(-(-n // THREADS), _BLOCKS), THREADS, stream, x, digest, seed(salt))


def fill(stream: object, digest: Any, out: Any, salt: int = 0) -> None:
    """Set out[i] to the top byte of a hash of digest[0], i and the salt: digest uint64[1], out uint8[k]."""
    (n,) = _shapes.axes("out", out, "k")
    _shapes.one(digest=digest)
    each(_fill, n, stream, digest, out, seed(salt))


def clear(stream: object, digest: Any) -> None:
    """Set digest[0] to 0: digest uint64[1]."""
    _shapes.one(digest=digest)
    launch(_clear, 1, 1, stream, digest)


def advance(stream: object, counter: Any) -> None:
    """Add 1 to counter[0], modulo 2**64, before a random op draws from it: counter uint64[1]."""
    _shapes.one(counter=counter)
    launch(_advance, 1, 1, stream, counter)


def delay(stream: object, steps: int, out: Any) -> None:
    """Set out[0] to the state of a 64-bit LCG, `steps` steps from 0: out uint64[1]."""
    _shapes.delay(steps, out)
    launch(_delay, 1, 1, stream, np.int64(steps), out)
