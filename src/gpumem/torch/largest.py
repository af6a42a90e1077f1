"""The largest batch at which something holds, on a grid that is as fine as batches are large."""

from __future__ import annotations

from collections.abc import Callable

FINE = 32  # batches of one octave, beyond the first that are exact
MOST = 2**20


def batch_of(k: int) -> int:
    """Return the k-th batch of the grid: all to 64, then 32 between a power of two and the next.

    >>> [batch_of(k) for k in (1, 63, 64, 65, 96, 97)]
    [1, 63, 64, 66, 128, 132]
    """
    octave = max(k // FINE - 1, 0)
    return (k - octave * FINE) << octave


def place_of(batch: int) -> int:
    """Return the last place of the grid whose batch is at most `batch`.

    >>> [batch_of(place_of(b)) for b in (1, 63, 65, 131)]
    [1, 63, 64, 128]
    """
    octave = step_at(batch).bit_length() - 1
    return (batch >> octave) + octave * FINE


def step_at(batch: int) -> int:
    """Return how far apart batches of the grid are at `batch`.

    >>> step_at(63), step_at(64), step_at(130)
    (1, 2, 4)
    """
    return 1 << max(batch.bit_length() - FINE.bit_length(), 0)


def largest(holds: Callable[[int], bool], start: int) -> int:
    """Return the largest batch of the grid that holds, 0 where not even 1 does, `MOST` at most.

    That whatever holds at a batch holds at smaller ones is assumed; O(log) calls, by octaves from `start` on and then
    by halves.

    >>> [largest(lambda batch: batch <= most, 32) for most in (0, 1, 31, 100, 101, 10**9)]
    [0, 1, 31, 100, 100, 1048576]
    """
    low, high = place_of(min(max(start, 1), MOST)), 0
    while low and not holds(batch_of(low)):
        low, high = max(low - FINE, 0), low
    while not high:
        if low == place_of(MOST):
            return MOST
        above = min(low + FINE, place_of(MOST))
        low, high = (above, 0) if holds(batch_of(above)) else (low, above)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(batch_of(middle)) else (low, middle)
    return batch_of(low)
