"""An ordinary program: trains a small network with Numba, and knows nothing of gpumem. Prints what it learnt."""

import hashlib
import os

import numpy as np
from numba import cuda

LAYERS, WIDTH, BATCH = 4, int(os.environ.get("WIDTH", "24")), int(os.environ.get("BATCH", "16"))
STEPS = int(os.environ.get("STEPS", "72"))


@cuda.jit
def dot(a, b, out, a_turned, b_turned):
    row, column = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[0] if a_turned else a.shape[1]):
            x = a[k, row] if a_turned else a[row, k]
            y = b[column, k] if b_turned else b[k, column]
            total += x * y
        out[row, column] = total


@cuda.jit
def rectify(x, gate, out):
    row, column = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = x[row, column] if gate[row, column] > 0 else np.float32(0)


@cuda.jit
def step(weight, slope, rate):
    row, column = cuda.grid(2)
    if row < weight.shape[0] and column < weight.shape[1]:
        weight[row, column] -= rate * slope[row, column]


BLOCK = 8, 8


def grid(array):
    return tuple(-(-n // b) for n, b in zip(array.shape, BLOCK))


def product(a, b, a_turned=False, b_turned=False):
    shape = a.shape[1] if a_turned else a.shape[0], b.shape[0] if b_turned else b.shape[1]
    out = cuda.device_array(shape, np.float32)
    dot[grid(out), BLOCK](a, b, out, a_turned, b_turned)
    return out


def rectified(x, gate):
    out = cuda.device_array(x.shape, np.float32)
    rectify[grid(out), BLOCK](x, gate, out)
    return out


def main():
    drawn = np.random.default_rng(0)
    weights = [cuda.to_device(drawn.normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32)) for _ in range(LAYERS)]
    digest = hashlib.sha256()
    for _ in range(STEPS):
        x = cuda.to_device(drawn.normal(0, 1, (BATCH, WIDTH)).astype(np.float32))
        inputs, sums = [], []
        for weight in weights:
            inputs.append(x)
            sums.append(product(x, weight))
            x = rectified(sums[-1], sums[-1])
        digest.update(x.copy_to_host().tobytes())
        slope = x
        for weight in reversed(weights):
            slope = rectified(slope, sums.pop())
            change = product(inputs.pop(), slope, a_turned=True)
            slope = product(slope, weight, b_turned=True)
            step[grid(weight), BLOCK](weight, change, np.float32(1e-4))
    for weight in weights:
        digest.update(weight.copy_to_host().tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
