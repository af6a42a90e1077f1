"""What ops of `kernels.reference` are held against: finite differences in float64, splitmix64 by Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.kernel_cases import Array

MASK = 2**64 - 1


def slope(function: Callable[[Array], Array], x: Array, dy: Array) -> Array:
    """Return the gradient of sum(dy * function(x)) by x."""
    gradient, step = np.zeros_like(x), 1e-5
    for i in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[i] += sign * step
            ends.append(float((dy * function(moved)).sum()))
        gradient[i] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def doubles(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def naive_mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def slopes(function: Callable[..., Array], given: list[Array], dy: Array) -> list[Array]:
    """Return the gradient of sum(dy * function(*given)) by each array."""
    return [
        slope(lambda array, k=k: function(*given[:k], array, *given[k + 1 :]), x, dy)  # type: ignore[misc]
        for k, x in enumerate(given)
    ]


def agree(got: list[Array], expected: list[Array]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-7)
