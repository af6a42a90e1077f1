"""Lifetimes as arcs of a circle: an iteration of `n` steps repeats, so what lives over its end goes on at its start."""

from __future__ import annotations

from gpumem.base.jit import jit


@jit
def meet(a: int, b: int, c: int, d: int, n: int) -> bool:
    """Whether the arcs [a, b) and [c, d) of a circle of `n` steps have a step in common; `n` < `b` wraps.

    >>> meet(0, 2, 2, 3, 4), meet(0, 2, 3, 5, 4)
    (False, True)
    """
    return bool((a < d and c < b) or a + n < d or c + n < b)  # as they stand, or one of them a turn later
