"""Ops that look at each element alone: copies, sums, the rectifier, the optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.numba_cuda import (
    block_each,
    block_sum,
    cuda,
    device,
    each,
    first,
    following,
    kernel,
    launch,
    named,
    position,
    stride,
    strides,
)

_ZERO, _ONE = np.float32(0), np.float32(1)
_TWO, _THREE, _FOUR = np.uint64(2), np.uint64(3), np.uint64(4)


def unary(function: Callable[[Any], Any]) -> Any:
    """Return a kernel that sets out[i] to function(x[i]); out may be x.

    A thread asks for four elements before it writes one, so their reads of memory overlap.
    """
    of = device(function)

    def each_of(x: Any, out: Any) -> None:
        i, step, end = position(), stride(), np.uint64(out.size)
        while i + _THREE * step < end:
            j, k, m = i + step, i + _TWO * step, i + _THREE * step
            a, b, c, d = x[i], x[j], x[k], x[m]
            out[i], out[j], out[k], out[m] = of(a), of(b), of(c), of(d)
            i += _FOUR * step
        while i < end:
            out[i] = of(x[i])
            i += step

    return named(each_of, function)


def binary(function: Callable[[Any, Any], Any]) -> Any:
    """Return a kernel that sets out[i] to function(x[i], y[i]); out may be x or y."""
    of = device(function)

    def each_of(x: Any, y: Any, out: Any) -> None:
        i, step, end = position(), stride(), np.uint64(out.size)
        while i + _THREE * step < end:
            j, k, m = i + step, i + _TWO * step, i + _THREE * step
            a, b, c, d, s, t, u, v = x[i], x[j], x[k], x[m], y[i], y[j], y[k], y[m]
            out[i], out[j], out[k], out[m] = of(a, s), of(b, t), of(c, u), of(d, v)
            i += _FOUR * step
        while i < end:
            out[i] = of(x[i], y[i])
            i += step

    return named(each_of, function)


@unary
def _copy(x: Any) -> Any:
    return x


@unary
def _relu(x: Any) -> Any:
    return _ZERO if x < _ZERO else x  # NaN stays NaN


@binary
def _add(a: Any, b: Any) -> Any:
    return a + b


@binary
def _relu_gradient(y: Any, dy: Any) -> Any:
    return dy if y > _ZERO else _ZERO


@kernel
def _sgd(w: Any, dw: Any, velocity: Any, rate: Any, momentum: Any, decay: Any) -> None:
    i, step, end = position(), stride(), np.uint64(w.size)
    while i < end:
        old = w[i]
        moved = momentum * velocity[i] + (dw[i] + decay * old)
        velocity[i], w[i] = moved, old - rate * moved
        i += step


@kernel
def _tick(step: Any) -> None:
    step[0] += _ONE


@kernel
def _adam(w: Any, dw: Any, m: Any, v: Any, step: Any, rate: Any, beta1: Any, beta2: Any, epsilon: Any) -> None:
    once, twice = rate / (_ONE - beta1 ** step[0]), _ONE / (_ONE - beta2 ** step[0])  # undo the start from zero
    i, hop, end = position(), stride(), np.uint64(w.size)
    while i < end:
        slope = dw[i]
        mean, square = beta1 * m[i] + (_ONE - beta1) * slope, beta2 * v[i] + (_ONE - beta2) * (slope * slope)
        m[i], v[i] = mean, square
        w[i] -= once * mean / (math.sqrt(square * twice) + epsilon)
        i += hop


def launch_each(kernel: Any, stream: object, *others: Any, **arrays: Any) -> None:
    """Check that the arrays have one shape, and hand the kernel their elements, then `others`."""
    n = _shapes.same(**arrays)
    each(kernel, n, stream, *(array.reshape(n) for array in arrays.values()), *others)


def copy(stream: object, x: Any, out: Any) -> None:
    """Copy x to out: any dtype and shape, the same dtype and number of elements. No copy engine takes part."""
    n = _shapes.copy(x, out)
    each(_copy, n, stream, x.reshape(n), out.reshape(n))


def add(stream: object, a: Any, b: Any, out: Any) -> None:
    """Set out to a + b: any shape; out may be a or b."""
    launch_each(_add, stream, a=a, b=b, out=out)


def relu(stream: object, x: Any, out: Any) -> None:
    """Set out to x where it is not negative, else to 0: any shape; out may be x."""
    launch_each(_relu, stream, x=x, out=out)


def relu_gradient(stream: object, y: Any, dy: Any, dx: Any) -> None:
    """Set dx to dy where y, the forward OUTPUT, is positive, else to 0: any shape; dx may be dy."""
    launch_each(_relu_gradient, stream, y=y, dy=dy, dx=dx)


def sgd(stream: object, w: Any, dw: Any, velocity: Any, rate: float, momentum: float, decay: float) -> None:
    """Update w in place: velocity = momentum * velocity + (dw + decay * w); w -= rate * velocity. Any shape."""
    launch_each(_sgd, stream, *map(np.float32, (rate, momentum, decay)), w=w, dw=dw, velocity=velocity)


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
    launch_each(_adam, stream, step, *map(np.float32, (rate, beta1, beta2, epsilon)), w=w, dw=dw, m=m, v=v)


@kernel
def _bias(x: Any, b: Any, out: Any, inner: Any) -> None:
    begin, hop, size = cuda.grid(1), cuda.gridsize(1), b.size
    channel, place = begin // inner % size, begin % inner
    over, along = hop // inner % size, hop % inner
    for i in range(begin, out.size, hop):
        out[np.uint64(i)] = x[np.uint64(i)] + b[np.uint64(channel)]
        channel, place = channel + over, place + along
        if place >= inner:
            channel, place = channel + 1, place - inner
        if channel >= size:
            channel -= size


@kernel
def _bias_gradient(dy: Any, db: Any, outer: Any, inner: Any) -> None:
    steps = strides(db.size, inner)
    for channel in range(cuda.blockIdx.x, db.size, cuda.gridDim.x):  # a block for each channel
        total = _ZERO
        at, place = first(channel, db.size, inner)
        for _ in range(cuda.threadIdx.x, outer * inner, cuda.blockDim.x):
            total += dy[np.uint64(at)]
            at, place = following(at, place, steps)
        total = block_sum(total)
        if cuda.threadIdx.x == 0:
            db[channel] = total


def bias(stream: object, x: Any, b: Any, out: Any) -> None:
    """Set out to x plus b of the channel: x (N, C) or (N, C, H, W), b (C,); out may be x."""
    _, channels, inner = _shapes.channels("x", x)
    _shapes.expect("b", b, (channels,))
    n = _shapes.same(x=x, out=out)
    each(_bias, n, stream, x.reshape(n), b, out.reshape(n), np.int64(inner))


def bias_gradient(stream: object, dy: Any, db: Any) -> None:
    """Set db (C,) to the sums of dy, (N, C) or (N, C, H, W), over each channel."""
    outer, channels, inner = _shapes.channels("dy", dy)
    _shapes.expect("db", db, (channels,))
    flat = dy.reshape(outer * channels * inner)
    block_each(_bias_gradient, channels, outer * inner, stream, flat, db, np.int64(outer), np.int64(inner))
