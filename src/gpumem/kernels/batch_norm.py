"""Batch norm as in training, and its gradient: a block for each channel, so that every sum has one order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import THREADS, block_sum, cuda, device, kernel, launch

_ZERO, _ONE = np.float32(0), np.float32(1)


@device
def _place(i: Any, channel: Any, channels: Any, inner: Any) -> Any:
    """Where the i-th element of a channel is."""
    return (i // inner * channels + channel) * inner + i % inner


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
    for channel in range(cuda.blockIdx.x, channels, cuda.gridDim.x):
        total = _ZERO
        for i in range(cuda.threadIdx.x, count, THREADS):
            total += x[_place(i, channel, channels, inner)]
        middle = block_sum(total) / np.float32(count)
        total = _ZERO
        for i in range(cuda.threadIdx.x, count, THREADS):
            off = x[_place(i, channel, channels, inner)] - middle
            total += off * off
        squares = block_sum(total)
        scale = _ONE / math.sqrt(squares / np.float32(count) + epsilon)
        for i in range(cuda.threadIdx.x, count, THREADS):
            k = _place(i, channel, channels, inner)
            out[k] = (x[k] - middle) * scale * gamma[channel] + beta[channel]
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
    for channel in range(cuda.blockIdx.x, channels, cuda.gridDim.x):
        middle, scale = mean[channel], inverse_std[channel]
        plain, weighted = _ZERO, _ZERO
        for i in range(cuda.threadIdx.x, count, THREADS):
            k = _place(i, channel, channels, inner)
            plain += dy[k]
            weighted += dy[k] * ((x[k] - middle) * scale)
        plain = block_sum(plain)
        weighted = block_sum(weighted)
        for i in range(cuda.threadIdx.x, count, THREADS):
            k = _place(i, channel, channels, inner)
            along = (plain + (x[k] - middle) * scale * weighted) / np.float32(count)
            dx[k] = gamma[channel] * scale * (dy[k] - along)
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
    launch(_batch_norm, channels, THREADS, stream, *arrays, *numbers)


def batch_norm_gradient(
    stream: object, dy: Any, x: Any, gamma: Any, mean: Any, inverse_std: Any, dx: Any, dgamma: Any, dbeta: Any
) -> None:
    """As in `reference`; dx may be dy."""
    columns = {"gamma": gamma, "mean": mean, "inverse_std": inverse_std, "dgamma": dgamma, "dbeta": dbeta}
    _, channels, inner = _shapes.batch_norm({"dy": dy, "x": x, "dx": dx}, columns)
    n = _shapes.size(x)
    arrays = dy.reshape(n), x.reshape(n), gamma, mean, inverse_std, dx.reshape(n), dgamma, dbeta
    launch(_batch_norm_gradient, channels, THREADS, stream, *arrays, np.int64(inner))
