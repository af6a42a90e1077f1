"""Batch norm, layer norm and dropout in NumPy; see `reference`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpumem.kernels import hash as _hash, shapes as _shapes

Array = NDArray[np.float32]
_CHUNK = 1 << 18  # hashes take twice the bytes of floats, so long arrays go piece by piece. Not tuned


def batch_norm(
    stream: object,
    x: Array,
    gamma: Array,
    beta: Array,
    out: Array,
    mean: Array,
    inverse_std: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> None:
    """Normalise each channel of x, (N, C) or (N, C, H, W): out = (x - mean) * inverse_std * gamma + beta.

    mean (C,) and inverse_std (C,), 1 / sqrt(var + epsilon), are the channel's; gamma and beta are (C,), out may be x.
    running_mean (C,) and running_var (C,) move by `momentum` towards the mean and the unbiased variance. Without them
    all else stays the same: this is how the op is recomputed.

    >>> x, gamma, beta = np.array([[1], [3]], np.float32), np.ones(1, np.float32), np.zeros(1, np.float32)
    >>> out, mean, inverse_std = np.zeros_like(x), np.zeros(1, np.float32), np.zeros(1, np.float32)
    >>> batch_norm(None, x, gamma, beta, out, mean, inverse_std, epsilon=0)
    >>> out.tolist(), mean.tolist(), inverse_std.tolist()
    ([[-1.0], [1.0]], [2.0], [1.0])
    """
    columns = {"gamma": gamma, "beta": beta, "mean": mean, "inverse_std": inverse_std}
    running = {"running_mean": running_mean, "running_var": running_var}
    shape = _shapes.batch_norm({"x": x, "out": out}, {**columns, **running}, epsilon)
    count = shape[0] * shape[2]
    view = x.reshape(shape)
    np.mean(view, axis=(0, 2), out=mean)
    centred = view - mean[:, None]
    squares = np.sum(centred * centred, axis=(0, 2))
    np.divide(np.float32(1), np.sqrt(squares / np.float32(count) + np.float32(epsilon)), out=inverse_std)
    out.reshape(shape)[...] = centred * inverse_std[:, None] * gamma[:, None] + beta[:, None]
    if running_mean is not None and running_var is not None:
        running_mean += np.float32(momentum) * (mean - running_mean)
        running_var += np.float32(momentum) * (squares / np.float32(max(count - 1, 1)) - running_var)


def batch_norm_gradient(
    stream: object,
    dy: Array,
    x: Array,
    gamma: Array,
    mean: Array,
    inverse_std: Array,
    dx: Array,
    dgamma: Array,
    dbeta: Array,
) -> None:
    """Set dx, dgamma (C,) and dbeta (C,) from dy, the forward INPUT x, and what the forward op saved; dx may be dy."""
    columns = {"gamma": gamma, "mean": mean, "inverse_std": inverse_std, "dgamma": dgamma, "dbeta": dbeta}
    shape = _shapes.batch_norm({"dy": dy, "x": x, "dx": dx}, columns)
    count = np.float32(shape[0] * shape[2])
    slope, normal = dy.reshape(shape), (x.reshape(shape) - mean[:, None]) * inverse_std[:, None]
    np.sum(slope, axis=(0, 2), out=dbeta)
    np.sum(slope * normal, axis=(0, 2), out=dgamma)
    along = (dbeta[:, None] + normal * dgamma[:, None]) / count
    dx.reshape(shape)[...] = (gamma * inverse_std)[:, None] * (slope - along)


def layer_norm(
    stream: object,
    x: Array,
    gamma: Array,
    beta: Array,
    out: Array,
    mean: Array,
    inverse_std: Array,
    epsilon: float = 1e-5,
) -> None:
    """Normalise each row of x (N, D): out = (x - mean) * inverse_std * gamma + beta, with gamma (D,) and beta (D,).

    mean (N,) and inverse_std (N,), 1 / sqrt(var + epsilon), are the row's; out may be x.

    >>> x, gamma, beta = np.array([[1, 3]], np.float32), np.ones(2, np.float32), np.zeros(2, np.float32)
    >>> out, mean, inverse_std = np.zeros_like(x), np.zeros(1, np.float32), np.zeros(1, np.float32)
    >>> layer_norm(None, x, gamma, beta, out, mean, inverse_std, epsilon=0)
    >>> out.tolist(), mean.tolist(), inverse_std.tolist()
    ([[-1.0, 1.0]], [2.0], [1.0])
    """
    columns, saved = {"gamma": gamma, "beta": beta}, {"mean": mean, "inverse_std": inverse_std}
    _, count = _shapes.layer_norm({"x": x, "out": out}, columns, saved, epsilon)
    np.mean(x, axis=1, out=mean)
    centred = x - mean[:, None]
    var = np.sum(centred * centred, axis=1) / np.float32(count)
    np.divide(np.float32(1), np.sqrt(var + np.float32(epsilon)), out=inverse_std)
    out[...] = centred * inverse_std[:, None] * gamma + beta


def layer_norm_gradient(
    stream: object,
    dy: Array,
    x: Array,
    gamma: Array,
    mean: Array,
    inverse_std: Array,
    dx: Array,
    dgamma: Array,
    dbeta: Array,
) -> None:
    """Set dx, dgamma (D,) and dbeta (D,) from dy, the forward INPUT x, and what the forward op saved; dx may be dy."""
    columns, saved = {"gamma": gamma, "dgamma": dgamma, "dbeta": dbeta}, {"mean": mean, "inverse_std": inverse_std}
    _, count = _shapes.layer_norm({"dy": dy, "x": x, "dx": dx}, columns, saved)
    normal = (x - mean[:, None]) * inverse_std[:, None]
    np.sum(dy, axis=0, out=dbeta)
    np.sum(dy * normal, axis=0, out=dgamma)
    slope = dy * gamma
    plain, weighted = slope.sum(axis=1, keepdims=True), (slope * normal).sum(axis=1, keepdims=True)
    dx[...] = inverse_std[:, None] * (slope - (plain + normal * weighted) / np.float32(count))


def dropout(
    stream: object,
    x: Array,
    out: Array,
    mask: NDArray[np.uint8],
    counter: NDArray[np.uint64],
    seed: int,
    p: float = 0.5,
) -> None:
    """Set out to x / (1 - p), or to 0 with probability p, and mask uint8 to 1, or to 0 there: any shape; out may be x.

    What is drawn depends on counter[0], uint64[1], and the seed alone: after an `advance` it is drawn anew.

    >>> x, out, mask = np.ones(8, np.float32), np.zeros(8, np.float32), np.zeros(8, np.uint8)
    >>> dropout(None, x, out, mask, np.zeros(1, np.uint64), seed=1)
    >>> out.tolist()
    [0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 0.0, 0.0]
    """
    n = _shapes.dropout(p, counter, x=x, out=out, mask=mask)
    least, scale = _hash.kept_from(p)
    start = _hash.mix(counter ^ _hash.seed(seed))
    flat, target, kept = x.reshape(n), out.reshape(n), mask.reshape(n)
    for begin in range(0, n, _CHUNK):
        part = slice(begin, min(begin + _CHUNK, n))
        kept[part] = _hash.stream(start, begin, part.stop) >> _hash.S32 >= least
        target[part] = np.where(kept[part], flat[part] * scale, np.float32(0))


def dropout_gradient(stream: object, dy: Array, mask: NDArray[np.uint8], dx: Array, p: float = 0.5) -> None:
    """Set dx to dy / (1 - p) where the mask is 1, else to 0: any shape, mask uint8; dx may be dy."""
    _shapes.dropout(p, dy=dy, mask=mask, dx=dx)
    dx[...] = np.where(mask, dy * _hash.kept_from(p)[1], np.float32(0))
