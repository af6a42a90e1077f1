"""Instances with a known optimum: a rectangle of steps x bytes, cut into pieces."""

from __future__ import annotations

import numpy as np

from gpumem.base.arguments import strict
from gpumem.trace import Trace

PINWHEELS, ACROSS = 0.25, 0.4  # of the cuts: into five, by a line of constant address; the rest by one of constant time

Piece = tuple[int, int, int, int]  # steps [start, end), bytes [low, top)


@strict
def perfect(pieces: int, *, seed: int = 0, steps: int = 200, height: int = 2**20) -> Trace:
    """Return buffers that fit into a pool of exactly `height` bytes, which are all in use at each step.

    A rectangle is cut in two, or by a pinwheel into five, which no two straight cuts make; then one of the larger
    pieces is, and so on. The buffers come in random order.

    Parameters
    ----------
    pieces : int
        Buffers at least; a pinwheel may make up to three more.
    seed : int
    steps, height : int
        Sides of the rectangle, each at least 1.

    Raises
    ------
    ValueError
        A side or a number of pieces below 1, or more pieces than a rectangle of that size is cut into.

    Examples
    --------
    >>> from gpumem.pool import best_fit, exact
    >>> trace = perfect(12, seed=2, steps=20, height=100)
    >>> trace.peak_live_bytes, exact(trace, alignment=1).height
    (100, 100)
    """
    for name, value in (("pieces", pieces), ("steps", steps), ("height", height)):
        if value < 1:
            raise ValueError(f"{name}: {value} is not positive")
    rng, found, refused = np.random.default_rng(seed), [(0, steps, 0, height)], 0
    while len(found) < pieces:
        if refused > 1000:  # not tuned: a piece that can be cut is hardly missed so often
            raise ValueError(f"pieces: {pieces} are too many for {steps} steps of {height} bytes")
        drawn = rng.choice(len(found), min(4, len(found)), replace=False)
        k = max(drawn.tolist(), key=lambda k: (found[k][1] - found[k][0]) * (found[k][3] - found[k][2]))
        parts = _cut(rng, found[k])
        refused = 0 if len(parts) > 1 else refused + 1
        found[k : k + 1] = parts
    rng.shuffle(found)
    start, end, low, top = np.array(found, np.int64).T
    return Trace.from_lifetimes(top - low, start, end, n=steps, name=f"perfect{pieces}_{seed}")


def _cut(rng: np.random.Generator, piece: Piece) -> list[Piece]:
    """Cut a piece in some way, if it is large enough for that."""
    (start, end, low, top), kind = piece, rng.random()
    if kind < PINWHEELS and min(end - start, top - low) >= 3:
        s, t = np.sort(rng.choice(np.arange(start + 1, end), 2, replace=False)).tolist()
        y, z = np.sort(rng.integers(low + 1, top, 2)).tolist()
        if y == z:
            return [piece]
        return [(start, t, low, y), (t, end, low, z), (s, end, z, top), (start, s, y, top), (s, t, y, z)]
    if kind < PINWHEELS + ACROSS and top - low >= 2:
        y = int(rng.integers(low + 1, top))
        return [(start, end, low, y), (start, end, y, top)]
    if kind >= PINWHEELS + ACROSS and end - start >= 2:
        s = int(rng.integers(start + 1, end))
        return [(start, s, low, top), (s, end, low, top)]
    return [piece]
