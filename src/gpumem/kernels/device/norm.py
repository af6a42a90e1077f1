"""Batch norm as in training, and its gradient: a block for each channel, so that every sum has one order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.words import element, hashed
from gpumem.kernels.hash import S32, kept_from, seed as start_of
from gpumem.kernels.numba_cuda import (
    block_each,
    block_sum,
    cuda,
    each,
    first,
    following,
    kernel,
    position,
    stride,
    strides,
)

_ZERO, _ONE = np.float32(0), np.float32(1)


@kernel
def _batch_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    out: Any,
    mean: Any,
    inverse_std: Any,
    running_mean: Any,
    running_var: Any,
    update: Any,
    inner: Any,
    momentum: Any,
    epsilon: Any,
) -> None:
    channels, count = gamma.size, x.size // gamma.size
    steps = strides(channels, inner)
    for channel in range(cuda.blockIdx.x, channels, cuda.gridDim.x):
        total = _ZERO
        at, place = first(channel, channels, inner)
        for _ in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            total += x[np.uint64(at)]
            at, place = following(at, place, steps)
        middle = block_sum(total) / np.float32(count)
        total = _ZERO
        at, place = first(channel, channels, inner)
        for _ in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            off = x[np.uint64(at)] - middle
            total += off * off
            at, place = following(at, place, steps)
        squares = block_sum(total)
        scale = _ONE / math.sqrt(squares / np.float32(count) + epsilon)
        slope, shift = gamma[channel], beta[channel]
        at, place = first(channel, channels, inner)
        for _ in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            k = np.uint64(at)
            out[k] = (x[k] - middle) * scale * slope + shift
            at, place = following(at, place, steps)
        if cuda.threadIdx.x == 0:
            mean[channel], inverse_std[channel] = middle, scale
            if update:
                var = squares / np.float32(max(count - 1, 1))
                running_mean[channel] += momentum * (middle - running_mean[channel])
                running_var[channel] += momentum * (var - running_var[channel])


@kernel
def _batch_norm_gradient(
    dy: Any, x: Any, gamma: Any, mean: Any, inverse_std: Any, dx: Any, dgamma: Any, dbeta: Any, inner: Any
) -> None:
    channels, count = gamma.size, x.size // gamma.size
    steps = strides(channels, inner)
    for channel in range(cuda.blockIdx.x, channels, cuda.gridDim.x):
        middle, scale = mean[channel], inverse_std[channel]
        plain, weighted = _ZERO, _ZERO
        at, place = first(channel, channels, inner)
        for _ in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            k = np.uint64(at)
            plain += dy[k]
            weighted += dy[k] * ((x[k] - middle) * scale)
            at, place = following(at, place, steps)
        plain = block_sum(plain)
        weighted = block_sum(weighted)
        slope, flat, along = gamma[channel] * scale, plain / np.float32(count), weighted / np.float32(count)
        at, place = first(channel, channels, inner)
        for _ in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            k = np.uint64(at)
            dx[k] = slope * (dy[k] - flat - (x[k] - middle) * scale * along)
            at, place = following(at, place, steps)
        if cuda.threadIdx.x == 0:
            dgamma[channel], dbeta[channel] = weighted, plain


def batch_norm(
    stream: object,
    x: Any,
    gamma: Any,
    beta: Any,
    out: Any,
    mean: Any,
    inverse_std: Any,
    running_mean: Any = None,
    running_var: Any = None,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> None:
    """As in `reference`; out may be x."""
    columns = {"gamma": gamma, "beta": beta, "mean": mean, "inverse_std": inverse_std}
    running = {"running_mean": running_mean, "running_var": running_var}
    _, channels, inner = _shapes.batch_norm({"x": x, "out": out}, {**columns, **running}, epsilon)
    n, update = _shapes.size(x), running_mean is not None
    statistics = (running_mean, running_var) if update else (mean, inverse_std)  # there for the signature: not touched
    arrays = x.reshape(n), gamma, beta, out.reshape(n), mean, inverse_std, *statistics
    numbers = np.int64(update), np.int64(inner), np.float32(momentum), np.float32(epsilon)
    block_each(_batch_norm, channels, n // channels, stream, *arrays, *numbers)


def batch_norm_gradient(
    stream: object, dy: Any, x: Any, gamma: Any, mean: Any, inverse_std: Any, dx: Any, dgamma: Any, dbeta: Any
) -> None:
    """As in `reference`; dx may be dy."""
    columns = {"gamma": gamma, "mean": mean, "inverse_std": inverse_std, "dgamma": dgamma, "dbeta": dbeta}
    _, channels, inner = _shapes.batch_norm({"dy": dy, "x": x, "dx": dx}, columns)
    n = _shapes.size(x)
    arrays = dy.reshape(n), x.reshape(n), gamma, mean, inverse_std, dx.reshape(n), dgamma, dbeta
    block_each(_batch_norm_gradient, channels, n // channels, stream, *arrays, np.int64(inner))


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


@kernel
def _layer_norm(x: Any, gamma: Any, beta: Any, out: Any, mean: Any, inverse_std: Any, epsilon: Any) -> None:
    rows, columns = x.shape
    for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        total = _ZERO
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            total += x[row, c]
        middle = block_sum(total) / np.float32(columns)
        total = _ZERO
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            total += (x[row, c] - middle) * (x[row, c] - middle)
        scale = _ONE / math.sqrt(block_sum(total) / np.float32(columns) + epsilon)
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            out[row, c] = (x[row, c] - middle) * scale * gamma[c] + beta[c]
        if cuda.threadIdx.x == 0:
            mean[row], inverse_std[row] = middle, scale


@kernel
def _column_sums(dy: Any, x: Any, mean: Any, inverse_std: Any, dgamma: Any, dbeta: Any) -> None:
    rows, columns = x.shape
    for c in range(cuda.blockIdx.x, columns, cuda.gridDim.x):
        plain, weighted = _ZERO, _ZERO
        for row in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
            plain += dy[row, c]
            weighted += dy[row, c] * ((x[row, c] - mean[row]) * inverse_std[row])
        plain = block_sum(plain)
        weighted = block_sum(weighted)
        if cuda.threadIdx.x == 0:
            dgamma[c], dbeta[c] = weighted, plain


@kernel
def _input_gradient(dy: Any, x: Any, gamma: Any, mean: Any, inverse_std: Any, dx: Any) -> None:
    rows, columns = x.shape
    for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        middle, scale = mean[row], inverse_std[row]
        plain, weighted = _ZERO, _ZERO
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            slope = dy[row, c] * gamma[c]
            plain += slope
            weighted += slope * ((x[row, c] - middle) * scale)
        plain = block_sum(plain) / np.float32(columns)
        weighted = block_sum(weighted) / np.float32(columns)
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            along = plain + (x[row, c] - middle) * scale * weighted
            dx[row, c] = scale * (dy[row, c] * gamma[c] - along)


def layer_norm(
    stream: object, x: Any, gamma: Any, beta: Any, out: Any, mean: Any, inverse_std: Any, epsilon: float = 1e-5
) -> None:
    """As in `reference`; out may be x."""
    columns, saved = {"gamma": gamma, "beta": beta}, {"mean": mean, "inverse_std": inverse_std}
    shape = _shapes.layer_norm({"x": x, "out": out}, columns, saved, epsilon)
    block_each(_layer_norm, *shape, stream, x, gamma, beta, out, mean, inverse_std, np.float32(epsilon))


def layer_norm_gradient(
    stream: object, dy: Any, x: Any, gamma: Any, mean: Any, inverse_std: Any, dx: Any, dgamma: Any, dbeta: Any
) -> None:
    """As in `reference`; dx may be dy."""
    columns, saved = {"gamma": gamma, "dgamma": dgamma, "dbeta": dbeta}, {"mean": mean, "inverse_std": inverse_std}
    shape = _shapes.layer_norm({"dy": dy, "x": x, "dx": dx}, columns, saved)
    block_each(_column_sums, *shape[::-1], stream, dy, x, mean, inverse_std, dgamma, dbeta)  # before dx replaces dy
    block_each(_input_gradient, *shape, stream, dy, x, gamma, mean, inverse_std, dx)
