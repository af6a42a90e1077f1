"""Batch norm as in training, and its gradient: a block for each channel, so that every sum has one order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.channels import first, following, strides
from gpumem.kernels.numba_cuda import block_each, block_sum, cuda, kernel

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
