"""The types of columns, how far numbers may go, and whole columns out of what a caller gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
T = TypeVar("T")

MAX_BYTES = 2**62  # what all sizes together may come to, so that int64 sums cannot overflow
MAX_STEPS = 2**62  # what an iteration's length stays below, so that `start + n` cannot overflow
MAX_NS = 2**53  # what all durations, and all host time, stay below: exact in float64, and 500 iterations fit in int64
UNKNOWN = -1  # a duration nobody measured; an `of` that does not exist


def int_column(values: ArrayLike | Iterable[int], what: str) -> I64:
    """Return `values` as a contiguous int64 array, refusing what does not fit.

    >>> int_column([1, 2], "size")
    array([1, 2])
    """
    if not hasattr(values, "__iter__"):
        raise ValueError(f"{what}: expected a list of integers, got {values!r:.60}")
    array = np.asarray(values if isinstance(values, np.ndarray | Sequence) else list(values))  # type: ignore[arg-type]
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise ValueError(f"{what}: expected a list of integers within 64 bits, got {array.dtype} {array.shape}")
    if array.dtype.kind == "u" and int(array.max()) >= 2**63:
        raise ValueError(f"{what}: {int(array.max())} does not fit in 64 bits")
    return np.ascontiguousarray(array, np.int64)


def column(values: ArrayLike | None, count: int, default: float, what: str = "") -> NDArray[Any]:
    """Return `values` as a column of the default's type; the default `count` times where there are none."""
    if values is None:
        return np.full(count, default)
    if type(default) is int:
        return int_column(values, what)
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in ("iuf" if type(default) is float else "iub") and array.size):
        word = "numbers" if type(default) is float else "truth values"
        raise ValueError(f"{what}: expected a list of {word}, got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array, type(default))


def first(bad: Bool) -> int:
    """Return the first place where `bad` holds, or -1.

    >>> first(np.array([False, True, True]))
    1
    """
    return int(np.argmax(bad)) if bad.any() else -1


def position(place: int, count: int, what: str) -> int:
    """Return which of `count` rows `place` is; negative ones count from the end, as in a list.

    >>> position(-1, 5, "op")
    4
    """
    try:
        return range(count)[index(place)]
    except IndexError:
        raise IndexError(f"{what} {place}: there are {count}") from None
    except TypeError:
        raise TypeError(f"{what} {place!r:.60}: rows have whole numbers; to_pandas() gives a table to slice") from None


def numbered(names: Sequence[str], column: str, otherwise: str) -> dict[str, Any]:
    """Return names as two columns, numbers and what they stand for; one name where there are no rows.

    >>> numbered(["d2h", "h2d", "d2h"], "stream", "compute")
    {'stream': [0, 1, 0], 'streams': ['d2h', 'h2d']}
    """
    number = {name: value for value, name in enumerate(dict.fromkeys(names))}
    return {column: [number[name] for name in names], f"{column}s": list(number) or [otherwise]}


def dimensions(shape: Iterable[int], what: str) -> tuple[int, ...]:
    """Return the dimensions of a tensor as a tuple; `ValueError` where one is negative or not whole.

    >>> dimensions([64, 3, 3, 3], "shape")
    (64, 3, 3, 3)
    """
    try:
        whole = tuple(map(index, shape))
    except TypeError:
        raise ValueError(f"{what} {shape!r:.60} is not a list of integers") from None
    if min(whole, default=0) < 0:
        raise ValueError(f"{what} {shape!r:.60} has a negative dimension")
    return whole


def optional_column(values: Iterable[T], nothing: T) -> tuple[T, ...] | None:
    """Return an optional column: None where no row has a value.

    >>> optional_column(["", "layer1"], ""), optional_column(["", ""], "")
    (('', 'layer1'), None)
    """
    column = tuple(values)
    return column if any(value != nothing for value in column) else None
