"""Ordinary Numba programs that know nothing of gpumem; each returns the bytes that it has computed.

All of them need more than `DEVICE` bytes of the device at once, whatever they free meanwhile.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

N = 2048  # numbers of an array: 8 KiB
DEVICE = 80 * 1024
GRID = N // 64, 64


@cuda.jit
def mix(x, y, a):
    """y += a * x + 1."""
    i = cuda.grid(1)
    if i < min(x.size, y.size):
        y[i] += a * x[i] + np.float32(1)


@cuda.jit
def turn(x, y):
    """Write y whole, from x reversed."""
    i = cuda.grid(1)
    if i < min(x.size, y.size):
        y[i] = x[x.size - 1 - i] * np.float32(0.5)


@cuda.jit
def table(x, y):
    row, column = cuda.grid(2)
    if row < y.shape[0] and column < y.shape[1]:
        y[row, column] += x[column % x.shape[0], row % x.shape[1]]


@cuda.jit
def several(xs, y):
    """y is a sum over a tuple of arrays."""
    i = cuda.grid(1)
    if i < min(xs[0].size, xs[1].size, xs[2].size, y.size):
        y[i] = xs[0][i] + xs[1][i] * np.float32(2) + xs[2][i] * np.float32(3)


@cuda.jit
def fields(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i].b = x[i].a * 3 + x[i].b


def drawn(k: int, n: int = N) -> np.ndarray:
    return np.random.default_rng(k).normal(0, 1, n).astype(np.float32)


def to_device(k: int):
    return cuda.to_device(drawn(k))


def pinned(array: np.ndarray) -> np.ndarray:
    """The same in page-locked memory."""
    found = cuda.pinned_array(array.shape, array.dtype)
    found[:] = array
    return found


def all_bytes(arrays) -> bytes:
    return b"".join(x.copy_to_host().tobytes() for x in arrays)


def steady(iterations: int = 8) -> bytes:
    """Forward over layers whose results are kept, and back."""
    weights = [to_device(k) for k in range(6)]
    for _ in range(iterations):
        made = []
        for w in weights:
            made.append(cuda.device_array(N, np.float32))
            turn[GRID](made[-2] if len(made) > 1 else w, made[-1])
            mix[GRID](w, made[-1], np.float32(0.25))
        for w in reversed(weights):
            mix[GRID](made.pop(), w, np.float32(0.125))
    return all_bytes(weights)


def views() -> bytes:
    """Slices, strided views, columns, reshapes and parts of arrays, copied and set and computed on."""
    arrays = [to_device(k) for k in range(12)]
    host = drawn(99)
    for k in range(24):
        x, y = arrays[k % 12], arrays[(k * 5 + 3) % 12]
        half = y[N // 2 :]
        mix[GRID](x[: N // 2], half, np.float32(0.5))
        turn[GRID](x[1::2], y[: N // 4])
        table[(4, 8), (8, 8)](x.reshape(64, 32)[3:35], y.reshape(32, 64)[:, 32:])
        y[10:20].copy_to_device(host[k : k + 10])
        x[100:300] = y[700:900]
        parts = [*y.split(500)]
        parts[1].copy_to_device(parts[0])
        host[k] = x.view(np.int32)[7:8].copy_to_host()[0] % 7
        arrays[(k * 7) % 12] = cuda.to_device(x.copy_to_host()[::-1].copy())
    return all_bytes(arrays) + host.tobytes()


def two_streams() -> bytes:
    """Work side by side, ordered by events, with copies of pinned memory on both streams, and the default stream."""
    one, two, done = cuda.stream(), cuda.stream(), [cuda.event(timing=False) for _ in range(2)]
    arrays = [to_device(k) for k in range(12)]
    cuda.synchronize()
    landed = cuda.pinned_array(N, np.float32)
    seen = []
    for k in range(20):
        a, b, c = arrays[k % 4], arrays[4 + k % 4], arrays[8 + k % 4]
        mix[(*GRID, one)](a, b, np.float32(0.5))
        done[0].record(one)
        turn[(*GRID, two)](arrays[8 + (k + 1) % 4], c)
        done[0].wait(two)
        mix[(*GRID, two)](b, c, np.float32(0.25))
        c.copy_to_host(landed, stream=two)
        two.synchronize()
        seen.append(landed.tobytes())
        landed[:] = landed[::-1].copy()
        a.copy_to_device(landed, stream=one)
        one.synchronize()
        if k == 10:
            two.synchronize()
            two = cuda.stream()  # the other one goes
    one.synchronize(), two.synchronize()
    mix[GRID](arrays[0], arrays[1], np.float32(2))
    return b"".join(seen) + all_bytes(arrays)


def never_repeats() -> bytes:
    """Another order in each iteration, arrays of other sizes that come and go; some are never used."""
    draw = np.random.default_rng(5)
    arrays = [to_device(k) for k in range(11)]
    for _ in range(60):
        i, j, k = (int(x) for x in draw.integers(0, 11, 3))
        match int(draw.integers(0, 5)):
            case 0:
                arrays[i] = to_device(int(draw.integers(1000)))
            case 1:
                fresh = cuda.device_array(int(draw.integers(1100, 2 * N)), np.float32)
                turn[GRID](arrays[j], fresh)
                mix[GRID](fresh[:1000], arrays[i], np.float32(0.5))
            case 2:
                cuda.device_array(3 * N, np.float32)
                several[GRID]((arrays[i], arrays[j], arrays[k]), arrays[(k + 1) % 11])
            case _:
                mix[GRID](arrays[i], arrays[j], np.float32(0.25))
    return all_bytes(arrays)


def raises() -> bytes:
    """Exceptions between launches, with arrays in the hands of their tracebacks."""
    arrays, told = [to_device(k) for k in range(11)], []
    for k in range(30):
        try:
            temporary = cuda.device_array(N, np.float32)
            turn[GRID](arrays[k % 11], temporary)
            if k % 3 == 1:
                raise KeyError(k)
            if k % 3 == 2:
                arrays[k % 11].copy_to_device(np.zeros(3, np.float32))  # of another shape
            mix[GRID](temporary, arrays[(k + 4) % 11], np.float32(0.5))
        except (KeyError, ValueError) as error:
            told.append(error)
    return all_bytes(arrays) + bytes(len(told))


def from_the_host() -> bytes:
    """Arrays of the host passed straight to kernels; records; tuples of arrays."""
    arrays = [to_device(k) for k in range(10)]
    host = [pinned(drawn(20 + k)) for k in range(3)]
    record = pinned(np.zeros(N // 2, np.dtype([("a", np.int32), ("b", np.int64)], align=True)))
    record["a"] = np.arange(N // 2)
    lent = cuda.to_device(record)
    for k in range(18):
        mix[GRID](host[k % 3], arrays[k % 10], np.float32(0.5))
        mix[GRID](arrays[(k + 1) % 10], host[(k + 1) % 3], np.float32(0.125))
        turn[GRID](cuda.In(host[0]), arrays[(k + 5) % 10])
        turn[GRID](arrays[(k + 6) % 10], cuda.Out(host[2]))
        several[GRID]((arrays[k % 10], arrays[(k + 2) % 10], host[1]), arrays[(k + 3) % 10])
        fields[GRID](lent)
        fields[GRID](record)
    return all_bytes([*arrays, lent]) + b"".join(x.tobytes() for x in [*host, record])


PROGRAMS = {f.__name__: f for f in (steady, views, two_streams, never_repeats, raises, from_the_host)}
