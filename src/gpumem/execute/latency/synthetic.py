"""Made-up measurements, for tests and where there is no GPU: what a predictor learns here says nothing of a real one.

A kernel takes its roofline on the machine, and on top of it what rooflines leave out:

- an efficiency of its type's own;
- waves: the tiles of the output run `UNITS` at a time, and the last wave takes as long as a full one;
- other jobs' kernels: it takes `1 + slowdown * utilisation` times as long;
- log-normal noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpumem.base.arguments import strict
from gpumem.execute.latency.samples import Measurement, Sample
from gpumem.simulator.machine import Machine

FLOAT = 4  # bytes
TILE = 64 * 64  # elements of the output that a multiprocessor makes at a time. Made up
UNITS = 28  # multiprocessors, as a GTX 1080 Ti has (NVIDIA, Pascal tuning guide and data sheet: 3584 cores, 128 each)
SPREAD = 0.3  # standard deviation of the logarithm of a type's efficiency. Made up

_Draw = Callable[[np.random.Generator], Sample]


@strict
def synthetic(
    ops: Iterable[Sample],
    machine: Machine,
    *,
    seed: int,
    utilisations: Sequence[float] = (0.0, 0.5, 1.0),
    slowdown: float = 1.0,
    noise: float = 0.1,
) -> list[Measurement]:
    """Make up how long each op takes at each utilisation.

    Parameters
    ----------
    ops : iterable of Sample
        See `grid` and `samples`.
    machine : Machine
        Its roofline and its overhead of a launch count.
    seed : int
    utilisations : sequence of float
        Shares of the time during which other jobs' kernels run.
    slowdown : float
        As in `estimates`.
    noise : float
        Standard deviation of the logarithm of the time.

    Examples
    --------
    >>> relu, v100 = Sample("relu", (2**20,), (2**20,), moved=2**21), Machine.named("v100")
    >>> alone, beside = synthetic([relu], v100, seed=0, utilisations=(0, 1), noise=0)
    >>> round((beside.ns - v100.launch_ns) / (alone.ns - v100.launch_ns), 3)
    2.0
    """
    rng = np.random.default_rng(seed)
    efficiency: dict[str, float] = {}
    rows = []
    for op in ops:
        own = efficiency.setdefault(op.name, float(rng.lognormal(0, SPREAD)))
        tiles = max(sum(op.writes) / FLOAT / TILE, 1 / TILE)
        waves = math.ceil(tiles / UNITS) * UNITS / max(tiles, UNITS)
        work = float(machine.roofline_ns(np.array(op.flops), np.array(op.moved))) - machine.launch_ns
        for utilisation in utilisations:
            busy = (work * waves / own) * (1 + slowdown * utilisation)
            ns = (machine.launch_ns + busy) * float(rng.lognormal(0, noise))
            rows.append(Measurement(op, utilisation, max(round(ns), 1)))
    return rows


def grid(shapes: int, *, seed: int) -> list[Sample]:
    """Draw `shapes` shapes of each of a few types of ops, convolutions among them, float32, log-uniform dimensions.

    >>> ops = grid(2, seed=0)
    >>> sorted({op.name for op in ops})
    ['add', 'bias', 'conv2d', 'matmul', 'max_pool', 'relu', 'sgd']
    """
    rng = np.random.default_rng(seed)
    return [draw(rng) for draw in (_matmul, _conv2d, _bias, _relu, _add, _max_pool, _sgd) for _ in range(shapes)]


def _sample(
    name: str, ins: Sequence[tuple[int, ...]], outs: Sequence[tuple[int, ...]], flops: float = 0, *parameters: float
) -> Sample:
    reads, writes = (tuple(FLOAT * math.prod(shape) for shape in shapes) for shapes in (ins, outs))
    return Sample(name, reads, writes, flops, sum(reads) + sum(writes), tuple(ins), parameters)


def _dims(rng: np.random.Generator, *bounds: tuple[int, int]) -> tuple[int, ...]:
    """Log-uniform integers within the bounds."""
    return tuple(round(math.exp(rng.uniform(math.log(low), math.log(high)))) for low, high in bounds)


def _image(rng: np.random.Generator) -> tuple[int, ...]:
    images, channels, side = _dims(rng, (4, 128), (8, 256), (8, 64))
    return images, channels, side, side


def _matmul(rng: np.random.Generator) -> Sample:
    rows, inner, columns = _dims(rng, (16, 4096), (16, 4096), (16, 4096))
    return _sample("matmul", [(rows, inner), (inner, columns)], [(rows, columns)], 2.0 * rows * inner * columns)


def _conv2d(rng: np.random.Generator) -> Sample:
    n, c, h, w = _image(rng)
    (k,), size, stride = _dims(rng, (8, 256)), int(rng.choice([1, 3, 5])), int(rng.choice([1, 2]))
    p, q = -(-h // stride), -(-w // stride)
    flops = 2.0 * n * k * p * q * c * size * size
    return _sample("conv2d", [(n, c, h, w), (k, c, size, size)], [(n, k, p, q)], flops, size // 2, stride)


def _bias(rng: np.random.Generator) -> Sample:
    x = _image(rng)
    return _sample("bias", [x, x[1:2]], [x])


def _relu(rng: np.random.Generator) -> Sample:
    x = _image(rng) if rng.random() < 0.5 else _dims(rng, (16, 4096), (16, 4096))  # of rank 4 or 2
    return _sample("relu", [x], [x])


def _add(rng: np.random.Generator) -> Sample:
    x = _image(rng)
    return _sample("add", [x, x], [x])


def _max_pool(rng: np.random.Generator) -> Sample:
    n, c, h, w = _image(rng)
    size = int(rng.choice([2, 4]))
    y = (n, c, h // size, w // size)
    return _sample("max_pool", [(n, c, h, w)], [y, y], 0, size, size)


def _sgd(rng: np.random.Generator) -> Sample:
    w = _dims(rng, (16, 4096), (16, 4096))
    return _sample("sgd", [w, w, w], [w, w])
