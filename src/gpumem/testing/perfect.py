"""Instances with a known optimum: a rectangle of steps x bytes, cut into pieces."""

from __future__ import annotations

import numpy as np

from gpumem.base.arguments import strict
from gpumem.trace import Trace

# Of the cuts: into five, by a line of constant address; the rest by one of constant time. Not tuned.
PINWHEELS, ACROSS = 0.25, 0.4

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
    rng, rectangles, refused = np.random.default_rng(seed), [(0, steps, 0, height)], 0
    while len(rectangles) < pieces:
        if refused > 1000:  # not tuned: a piece that can be cut is hardly missed so often
            raise ValueError(f"pieces: {pieces} are too many for {steps} steps of {height} bytes")
        drawn = rng.choice(len(rectangles), min(4, len(rectangles)), replace=False)
        largest = max(
            drawn.tolist(),
            key=lambda largest: (
                (rectangles[largest][1] - rectangles[largest][0]) * (rectangles[largest][3] - rectangles[largest][2])
            ),
        )
        parts = _cut(rng, rectangles[largest])
        refused = 0 if len(parts) > 1 else refused + 1
        rectangles[largest : largest + 1] = parts
    rng.shuffle(rectangles)
    start, end, low, top = np.array(rectangles, np.int64).T
    return Trace.from_lifetimes(top - low, start, end, n=steps, name=f"perfect{pieces}_{seed}")


def _cut(rng: np.random.Generator, piece: Piece) -> list[Piece]:
    """Cut a piece in some way, if it is large enough for that."""
    (start, end, low, top), kind = piece, rng.random()
    if kind < PINWHEELS and min(end - start, top - low) >= 3:
        left, right = np.sort(rng.choice(np.arange(start + 1, end), 2, replace=False)).tolist()
        lower, upper = np.sort(rng.integers(low + 1, top, 2)).tolist()
        if lower == upper:
            return [piece]
        return [
            (start, right, low, lower),
            (right, end, low, upper),
            (left, end, upper, top),
            (start, left, lower, top),
            (left, right, lower, upper),
        ]
    if kind < PINWHEELS + ACROSS and top - low >= 2:
        lower = int(rng.integers(low + 1, top))
        return [(start, end, low, lower), (start, end, lower, top)]
    if kind >= PINWHEELS + ACROSS and end - start >= 2:
        left = int(rng.integers(start + 1, end))
        return [(start, left, low, top), (left, end, low, top)]
    return [piece]
