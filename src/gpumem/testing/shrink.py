"""Make a failing input small: leave parts out, then make parts simpler, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

TRIALS = 2000  # lists at most. Not tuned
# So few parts are also left out two at a time: an allocation and the free before it that it needs. Not tuned.
PAIRS = 16


def shrink(
    parts: list[T],
    error: E,
    fails: Callable[[list[T]], E | None],
    simpler: Callable[[T], Iterable[T]],
) -> E:
    """Return the error of a small list of parts that still fails.

    Parameters
    ----------
    parts : list
        What fails.
    error : Exception
        How.
    fails : callable
        Tries a list and returns its error, None where it does not fail in the same way.
    simpler : callable
        Simpler forms of one part.

    Returns
    -------
    Exception
        That of the last list that failed.

    Notes
    -----
    Greedy: a local minimum, where no part (of few parts: no two) can be left out or replaced.

    Examples
    --------
    >>> def fails(sizes):
    ...     return ValueError(f"{sizes} has a sum above 9") if sum(sizes) > 9 else None
    >>> shrink([3, 1, 8, 4], fails([3, 1, 8, 4]), fails, lambda size: range(1, size))
    ValueError('[6, 4] has a sum above 9')
    """
    tries = TRIALS
    progress = True
    while progress:
        progress = False
        for candidate in _candidates(parts, simpler):
            if tries == 0:
                return error
            tries -= 1
            if (smaller_error := fails(candidate)) is not None:
                parts, error, progress = candidate, smaller_error, True
                break
    return error


def _candidates(parts: list[T], simpler: Callable[[T], Iterable[T]]) -> Iterator[list[T]]:
    """Yield smaller lists, those that are much smaller first."""
    chunk = len(parts) // 2
    while chunk:
        for low in range(len(parts) - chunk, -1, -chunk):  # from the end: what is late matters least
            yield parts[:low] + parts[low + chunk :]
        chunk //= 2
    for place, part in enumerate(parts):
        for other in simpler(part):
            yield [*parts[:place], other, *parts[place + 1 :]]
    if len(parts) <= PAIRS:
        for one, another in combinations(range(len(parts)), 2):
            yield [part for place, part in enumerate(parts) if place not in (one, another)]
