"""All ops in NumPy: what the kernels in `device` must compute, and what runs where there is no GPU.

The first argument is the stream, ignored here. Arrays are C-contiguous and float32 unless said otherwise; results go
into preallocated arguments and no function returns anything. A wrong shape is a ValueError.

>>> import numpy as np
>>> x = np.array([[-1, 2, -3]], np.float32)
>>> relu(None, x, x)
>>> x.tolist()
[[0.0, 2.0, 0.0]]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpumem.kernels import hash as _hash, shapes as _shapes
from gpumem.kernels.reference.convolution import (
    average_pool,
    average_pool_gradient,
    conv2d,
    conv2d_im2col,
    conv2d_input_gradient,
    conv2d_input_gradient_im2col,
    conv2d_input_gradient_winograd,
    conv2d_weight_gradient,
    conv2d_weight_gradient_im2col,
    conv2d_winograd,
    max_pool,
    max_pool_gradient,
)
from gpumem.kernels.reference.norm import (
    batch_norm,
    batch_norm_gradient,
    dropout,
    dropout_gradient,
    layer_norm,
    layer_norm_gradient,
)
from gpumem.kernels.reference.placement import load_profile, overlap, placement
from gpumem.kernels.reference.transformer import (
    attention,
    attention_gradient,
    batched_matmul,
    embedding,
    embedding_gradient,
    gelu,
    gelu_gradient,
    softmax,
    softmax_gradient,
)
from gpumem.kernels.shapes import im2col_floats, winograd_floats

__all__ = [
    "adam",
    "add",
    "advance",
    "attention",
    "attention_gradient",
    "average_pool",
    "average_pool_gradient",
    "batch_norm",
    "batch_norm_gradient",
    "batched_matmul",
    "bias",
    "bias_gradient",
    "checksum",
    "clear",
    "conv2d",
    "conv2d_im2col",
    "conv2d_input_gradient",
    "conv2d_input_gradient_im2col",
    "conv2d_input_gradient_winograd",
    "conv2d_weight_gradient",
    "conv2d_weight_gradient_im2col",
    "conv2d_winograd",
    "copy",
    "delay",
    "dropout",
    "dropout_gradient",
    "embedding",
    "embedding_gradient",
    "fill",
    "gelu",
    "gelu_gradient",
    "im2col_floats",
    "layer_norm",
    "layer_norm_gradient",
    "load_profile",
    "matmul",
    "max_pool",
    "max_pool_gradient",
    "mean",
    "overlap",
    "placement",
    "relu",
    "relu_gradient",
    "sgd",
    "softmax",
    "softmax_cross_entropy",
    "softmax_cross_entropy_gradient",
    "softmax_gradient",
    "tick",
    "winograd_floats",
]

Array = NDArray[np.float32]
_CHUNK = 1 << 18  # hashes take eight times the bytes, so long buffers go piece by piece. Not tuned


def checksum(stream: object, x: NDArray[np.uint8], digest: NDArray[np.uint64], salt: int = 0) -> None:
    """Add the sum of (x[i] + 1) * w(i, salt) to digest[0], modulo 2**64: x uint8[k], digest uint64[1].

    The weights are odd hashes of the position, so any change of one byte and nearly any other changes the sum.

    >>> digest = np.zeros(1, np.uint64)
    >>> checksum(None, np.array([1, 2, 3], np.uint8), digest)
    >>> hex(digest[0])
    '0x2abca014db8ce279'
    """
    _shapes.axes("x", x, "k")
    _shapes.one(digest=digest)
    start = np.array([_hash.seed(salt)])
    for begin in range(0, len(x), _CHUNK):
        part = x[begin : begin + _CHUNK].astype(np.uint64) + _hash.ONE
        digest += np.sum(part * (_hash.stream(start, begin, begin + len(part)) | _hash.ONE), dtype=np.uint64)


def fill(stream: object, digest: NDArray[np.uint64], out: NDArray[np.uint8], salt: int = 0) -> None:
    """Set out[i] to the top byte of a hash of digest[0], i and the salt: digest uint64[1], out uint8[k].

    >>> out = np.zeros(4, np.uint8)
    >>> fill(None, np.zeros(1, np.uint64), out)
    >>> out.tolist()
    [226, 110, 6, 248]
    """
    _shapes.axes("out", out, "k")
    _shapes.one(digest=digest)
    start = _hash.mix(digest ^ _hash.seed(salt))
    for begin in range(0, len(out), _CHUNK):
        end = min(begin + _CHUNK, len(out))
        out[begin:end] = _hash.stream(start, begin, end) >> _hash.S56


def clear(stream: object, digest: NDArray[np.uint64]) -> None:
    """Set digest[0] to 0: digest uint64[1]."""
    _shapes.one(digest=digest)
    digest[0] = 0


def advance(stream: object, counter: NDArray[np.uint64]) -> None:
    """Add 1 to counter[0], modulo 2**64, before a random op draws from it: counter uint64[1]."""
    _shapes.one(counter=counter)
    counter += _hash.ONE


def copy(stream: object, x: NDArray[np.generic], out: NDArray[np.generic]) -> None:
    """Copy x to out: any dtype and shape, the same dtype and number of elements."""
    _shapes.copy(x, out)
    np.copyto(out, x.reshape(out.shape))


def delay(stream: object, steps: int, out: NDArray[np.uint64]) -> None:
    """Set out[0] to the state of a 64-bit LCG, `steps` steps from 0: out uint64[1]. On a device this takes time.

    >>> out = np.zeros(1, np.uint64)
    >>> delay(None, 2, out)
    >>> int(out[0]) == (1442695040888963407 * 6364136223846793005 + 1442695040888963407) % 2**64
    True
    """
    _shapes.delay(steps, out)
    state, factor, term = 0, _hash.LCG_FACTOR, _hash.LCG_TERM
    while steps:  # two steps are again state * factor + term, so this takes log2(steps) turns
        if steps & 1:
            state = (state * factor + term) & _hash.MASK
        factor, term = factor * factor & _hash.MASK, (factor + 1) * term & _hash.MASK
        steps >>= 1
    out[0] = state


def matmul(
    stream: object, a: Array, b: Array, out: Array, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """Set out (M, N) to op(a) @ op(b), where op(a) is (M, K) and op(b) is (K, N); op transposes or does nothing."""
    _shapes.matmul(a, b, out, transpose_a, transpose_b)
    np.matmul(a.T if transpose_a else a, b.T if transpose_b else b, out=out)


def bias(stream: object, x: Array, b: Array, out: Array) -> None:
    """Set out to x plus b of the channel: x (N, C) or (N, C, H, W), b (C,); out may be x."""
    shape = _shapes.channels("x", x)
    _shapes.expect("b", b, shape[1:2])
    _shapes.same(x=x, out=out)
    np.add(x.reshape(shape), b[:, None], out=out.reshape(shape))


def bias_gradient(stream: object, dy: Array, db: Array) -> None:
    """Set db (C,) to the sums of dy, (N, C) or (N, C, H, W), over each channel."""
    shape = _shapes.channels("dy", dy)
    _shapes.expect("db", db, shape[1:2])
    np.sum(dy.reshape(shape), axis=(0, 2), out=db)


def relu(stream: object, x: Array, out: Array) -> None:
    """Set out to x where it is not negative, else to 0: any shape; out may be x."""
    _shapes.same(x=x, out=out)
    out[...] = np.where(x < 0, np.float32(0), x)


def relu_gradient(stream: object, y: Array, dy: Array, dx: Array) -> None:
    """Set dx to dy where y, the forward OUTPUT, is positive, else to 0: any shape; dx may be dy."""
    _shapes.same(y=y, dy=dy, dx=dx)
    dx[...] = np.where(y > 0, dy, np.float32(0))


def add(stream: object, a: Array, b: Array, out: Array) -> None:
    """Set out to a + b: any shape; out may be a or b."""
    _shapes.same(a=a, b=b, out=out)
    np.add(a, b, out=out)


def softmax_cross_entropy(stream: object, logits: Array, labels: NDArray[np.int32], probs: Array, loss: Array) -> None:
    """Set probs (N, C) to the softmax of logits (N, C) and loss (N,) to -log of the label's: labels int32 (N,).

    The loss is NaN where the label is not a class.

    >>> probs, loss = np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
    >>> softmax_cross_entropy(None, np.zeros((1, 2), np.float32), np.array([1], np.int32), probs, loss)
    >>> probs.tolist(), loss.round(3).tolist()
    ([[0.5, 0.5]], [0.6930000185966492])
    """
    rows, classes = _shapes.cross_entropy(logits, labels, probs, loss)
    shifted = logits - logits.max(axis=1, keepdims=True)
    np.exp(shifted, out=probs)
    total = probs.sum(axis=1, keepdims=True)
    np.divide(probs, total, out=probs)
    valid = (labels >= 0) & (labels < classes)
    picked = shifted[np.arange(rows), np.where(valid, labels, 0)]
    loss[:] = np.where(valid, np.log(total[:, 0]) - picked, np.float32(np.nan))


def softmax_cross_entropy_gradient(stream: object, probs: Array, labels: NDArray[np.int32], dlogits: Array) -> None:
    """Set dlogits to (probs - onehot(labels)) / N, the gradient of the mean loss: (N, C), labels int32 (N,)."""
    rows, classes = _shapes.axes("probs", probs, "NC")
    _shapes.expect("labels", labels, (rows,))
    _shapes.same(probs=probs, dlogits=dlogits)
    onehot = labels[:, None] == np.arange(classes)
    np.subtract(probs, onehot.astype(np.float32), out=dlogits)
    np.divide(dlogits, np.float32(max(rows, 1)), out=dlogits)


def mean(stream: object, x: Array, out: Array) -> None:
    """Set out[0] to the mean of x, of any shape but empty: out (1,)."""
    _shapes.mean(x, out)
    out[0] = x.mean()


def sgd(stream: object, w: Array, dw: Array, velocity: Array, rate: float, momentum: float, decay: float) -> None:
    """Update w in place: velocity = momentum * velocity + (dw + decay * w); w -= rate * velocity. Any shape."""
    _shapes.same(w=w, dw=dw, velocity=velocity)
    velocity[...] = np.float32(momentum) * velocity + (dw + np.float32(decay) * w)
    w -= np.float32(rate) * velocity


def tick(stream: object, step: Array) -> None:
    """Add 1 to step (1,), the counter that `adam` reads: call it first."""
    _shapes.one(step=step)
    step += np.float32(1)


def adam(
    stream: object,
    w: Array,
    dw: Array,
    m: Array,
    v: Array,
    step: Array,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    """Update w, m and v in place as Adam does at step[0] >= 1: any shape. step (1,) is memory, so graphs can replay."""
    _shapes.same(w=w, dw=dw, m=m, v=v)
    _shapes.one(step=step)
    one, b1, b2 = np.float32(1), np.float32(beta1), np.float32(beta2)
    m[...] = b1 * m + (one - b1) * dw
    v[...] = b2 * v + (one - b2) * (dw * dw)
    unbiased = m / (one - b1 ** step[0])
    w -= np.float32(rate) * unbiased / (np.sqrt(v / (one - b2 ** step[0])) + np.float32(epsilon))
