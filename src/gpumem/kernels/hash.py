"""The hash behind `checksum`, `fill` and `dropout`: element i of the splitmix64 stream that starts at a seed."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
U = TypeVar("U", np.uint64, Words)

GOLDEN, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S27, S30, S31, S32, S56 = (np.uint64(bits) for bits in (27, 30, 31, 32, 56))
ONE = np.uint64(1)
LCG_FACTOR, LCG_TERM = 6364136223846793005, 1442695040888963407  # Knuth's MMIX generator
MASK = 2**64 - 1  # 64 bits


def words(*values: int) -> Words:
    """Return integers modulo 2**64; arrays, since NumPy warns when scalars wrap around."""
    return np.array([value & MASK for value in values], dtype=np.uint64)


def mix(z: U) -> U:
    """Return splitmix64's output for a state, or for each; what kernels and loops compile, so it keeps to uint64.

    >>> hex(mix(words(0x9E3779B97F4A7C15))[0])  # the first number of its published stream from 0
    '0xe220a8397b1dcdaf'
    """
    z = (z ^ (z >> S30)) * FIRST
    z = (z ^ (z >> S27)) * SECOND
    return z ^ (z >> S31)


def seed(salt: int) -> np.uint64:
    """Return where the stream of a salt starts: neighbouring salts start far apart."""
    return np.uint64(mix(words(salt))[0])


def stream(start: NDArray[Any], begin: int, end: int) -> Words:
    """Return elements `begin` to `end` of the stream from `start`, a uint64[1]."""
    return mix(start + np.arange(begin + 1, end + 1, dtype=np.uint64) * GOLDEN)


def kept_from(p: float) -> tuple[np.uint64, np.float32]:
    """Return from which 32-bit number on dropout keeps an element, and by how much what is kept grows.

    >>> kept_from(0.25)
    (np.uint64(1073741824), np.float32(1.3333334))
    """
    return np.uint64(round(p * 2**32)), np.float32(1 / (1 - p))
