"""Small traces to be placed, and their lowest placements by trying all."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from gpumem.pool import best_fit
from gpumem.pool.smartpool.offline import fit
from gpumem.trace import Trace


def least_by_brute_force(trace: Trace, alignment: int, fixed: dict[int, int]) -> int:
    """The lowest first fit over all orders. A lowest placement of all is among them: take it from the bottom up."""
    b, least = trace.buffers, 2**62
    held = sorted(fixed, key=lambda j: fixed[j])
    held = [j for j in held if b.size[j]]
    for order in permutations(j for j in range(len(b)) if j not in fixed and b.size[j] and not b.host[j]):
        offset = np.zeros(len(b), np.int64)
        offset[held] = [fixed[j] for j in held]
        every = np.array([*held, *order], np.int64)
        fit(trace, every, first=len(held), alignment=alignment, smallest=False, offset=offset)
        least = min(least, int((offset + b.size)[every].max(initial=0)))
    return max(least, *(fixed[j] + int(b.size[j]) for j in fixed), 0)


def tiny(rng: np.random.Generator) -> tuple[Trace, int, dict[int, int]]:
    """Up to six arcs of a small circle, some alike, some alive all the time, some fixed."""
    n, count = int(rng.integers(1, 9)), int(rng.integers(1, 7))
    start = rng.integers(0, n, count)
    end = start + rng.integers(1, n + 1, count)
    size = rng.integers(0, 12, count)
    if rng.random() < 0.3:
        alike = rng.random(count) < 0.5
        size[alike], start[alike], end[alike] = size[0], start[0], end[0]
    trace, alignment = Trace.from_lifetimes(size, start, end, n=n), int(rng.choice([1, 2, 4, 5]))
    placed = best_fit(trace, alignment=alignment)
    ids = np.flatnonzero(rng.random(count) < 0.3) if rng.random() < 0.4 else []
    lift = int(rng.integers(0, 2)) * alignment
    return trace, alignment, {int(j): int(placed.offset[j]) + lift for j in ids}


def crowd(seed: int, count: int, n: int) -> Trace:
    """Arcs of all lengths, many of them wrapping, a few alive all the time."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, n, count)
    length = np.where(rng.random(count) < 0.1, n, rng.integers(1, n, count))
    start[length == n] = 0
    return Trace.from_lifetimes(rng.integers(1, 60, count), start, start + length, n=n)


def uneven(seed: int, count: int, n: int) -> Trace:
    """Sizes over five decades; most live shortly, the others for long."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, n - 1, count)
    length = np.where(rng.random(count) < 0.6, rng.integers(1, 6, count), rng.integers(1, n // 2, count))
    size = np.ceil(10 ** (rng.random(count) * 5)).astype(np.int64)
    return Trace.from_lifetimes(size, start, np.minimum(n, start + length))
