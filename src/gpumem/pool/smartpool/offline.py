"""SmartPool: offline placement by weighted interval colouring, largest buffer first.

Each buffer goes into a hole between the buffers placed so far that are alive when it is::

    address ^   +------+
            |   |  B   |        hole above B: extends the pool
            |   +------+
            |   . hole .        between two placed buffers
            |   +------+
            |   |  A   |
            |   +------+
            |   . hole .        below the first placed buffer
            +---------------> time
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpumem.base.arguments import strict
from gpumem.base.jit import jit
from gpumem.pool._interval_index import FAR, place
from gpumem.trace import I64, Trace, int_column
from gpumem.trace.lifetimes import meet
from gpumem.trace.placement import NOWHERE, Placement

MAX_ALIGNMENT = 2**40  # bytes; not tuned: sizes rounded up to it stay far below what an int64 holds
# Buffers up to which a look at every pair (30 ms) beats the compilation of what avoids it (3 s).
FEW = 3000


@strict
def best_fit(trace: Trace, *, alignment: int = 256) -> Placement:
    """Place buffers by descending size, each into the smallest hole that fits.

    Where no hole fits, the buffer goes above the highest one it overlaps in time. A planner as in `gpumem.pool`.

    Notes
    -----
    O(B log B) memory. Each buffer looks at the address ranges that are taken while it lives, where those that touch
    count as one: O(B^2) time at worst, about O(B log B) where few buffers meet, as in traces of many iterations.
    Where seconds were given and are up, what is left of many buffers is stacked above the others, O(B log B);
    half a second is taken in any case.
    Ties in size go to the earlier start. The height is at least the peak live bytes; no constant factor is guaranteed.
    Lifetimes are arcs: one that wraps conflicts with what it meets on either side of the boundary (the paper is
    silent). The authors' code forgets the hole below the lowest block; this one does not.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([4, 2, 3], [0, 1, 3], [2, 3, 5])
    >>> best_fit(trace, alignment=1).offset
    array([0, 4, 0])

    References
    ----------
    Zhang et al. 2019, section III-C.
    """
    return _place(trace, alignment, smallest=True)


@strict
def first_fit(trace: Trace, *, alignment: int = 256) -> Placement:
    """Place buffers by descending size, each into the lowest hole that fits; all else is as in `best_fit`.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([4, 2, 3], [0, 1, 3], [2, 3, 5])
    >>> first_fit(trace, alignment=1).height
    6
    """
    return _place(trace, alignment, smallest=False)


def colour(
    size: ArrayLike,
    start: ArrayLike,
    end: ArrayLike,
    *,
    n: int | None = None,
    alignment: int = 1,
    smallest: bool = True,
) -> tuple[I64, int]:
    """Place bare arrays: return the offsets and the height.

    Parameters
    ----------
    size, start, end : int[B]
        Bytes; lifetimes as arcs `[start, end)` of a circle of `n` steps.
    n : int, optional
        Length of the circle; the last `end` by default, so that nothing wraps.
    smallest : bool
        Best fit; first fit if false.

    Examples
    --------
    >>> colour([4, 2, 3], [0, 1, 3], [2, 3, 5])
    (array([0, 4, 0]), 6)
    """
    trace = Trace.from_lifetimes(int_column(size, "size"), int_column(start, "start"), int_column(end, "end"), n=n)
    placed = _place(trace, alignment, smallest=smallest)
    return placed.offset, placed.height


def _place(trace: Trace, alignment: int, *, smallest: bool) -> Placement:
    return in_order(trace, alignment, (trace.buffers.start, -trace.buffers.size), smallest=smallest)


def in_order(trace: Trace, alignment: int, keys: Sequence[NDArray[Any]], *, smallest: bool) -> Placement:
    """Place buffers by keys, of which the last one counts most, each into the smallest or the lowest hole that fits."""
    if not 1 <= alignment <= MAX_ALIGNMENT:
        raise ValueError(f"alignment: {alignment} is not in [1, 2**40]")
    buffers = trace.buffers
    offset = np.full(len(buffers), NOWHERE, np.int64)
    offset[~buffers.host & (buffers.size == 0)] = 0  # nothing to place: zero bytes overlap nothing
    todo = np.flatnonzero(~buffers.host & (buffers.size > 0))
    order = todo[np.lexsort((todo, *(key[todo] for key in keys)))]
    fit(trace, order, first=0, alignment=alignment, smallest=smallest, offset=offset)
    return Placement(offset, int((offset + buffers.size)[~buffers.host].max(initial=0)), alignment)


def fit(trace: Trace, order: I64, *, first: int, alignment: int, smallest: bool, offset: I64) -> None:
    """Fill `offset` for `order[first:]`; what comes before is placed already, aligned and sorted by offset."""
    steps, size, start, end = trace.n, trace.buffers.size, trace.buffers.start, trace.buffers.end
    if len(order) <= FEW:
        _scan(size, start, end, steps, order=order, first=first, alignment=alignment, smallest=smallest, offset=offset)
        return
    # Two arcs meet iff one starts inside the other: count time in starts, so that one step is as busy as another.
    count, by_start = len(order), order[np.argsort(start[order], kind="stable")]
    rank, wraps = np.zeros(len(start), np.int64), end >= steps
    rank[by_start] = np.arange(count)
    until = np.searchsorted(start[by_start], np.where(wraps, end - steps, end)) + np.where(wraps, count, 0)
    until = np.where(end - start == steps, rank + count, until)
    rounded = -(-size // alignment) * alignment
    place(rounded, rank, until, order, first=first, smallest=smallest, offset=offset)


@jit
def _scan(  # noqa: PLR0913, PLR0917  compiled: no keyword-only parameters
    size: I64, start: I64, end: I64, steps: int, order: I64, first: int, alignment: int, smallest: bool, offset: I64
) -> None:
    """Do as `fit` by a look at every pair: what `_interval_index` must agree with."""
    placed = order.copy()
    for count in range(first, len(order)):
        buffer = order[count]
        own_start, own_end, own_size = start[buffer], end[buffer], size[buffer]
        lowest = 0  # lowest aligned byte above every overlapping buffer seen so far
        best, best_hole = -1, FAR
        for row in range(count):
            other = placed[row]
            if meet(own_start, own_end, start[other], end[other], steps):
                hole = offset[other] - lowest
                if hole >= own_size and hole < best_hole:
                    best, best_hole = lowest, hole
                    if not smallest:
                        break
                top = (offset[other] + size[other] + alignment - 1) // alignment * alignment
                lowest = max(lowest, top)
        offset[buffer] = best if best >= 0 else lowest
        row = count
        while row > 0 and offset[placed[row - 1]] > offset[buffer]:
            placed[row] = placed[row - 1]
            row -= 1
        placed[row] = buffer
