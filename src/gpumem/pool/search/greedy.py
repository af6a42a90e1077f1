"""Greedy placement in several orders: what comes first takes the best hole, or the lowest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.pool.search._problem import PlacementProblem
from gpumem.trace import F64, I64, Trace
from gpumem.trace.placement import Placement

Order = Callable[[I64, I64, I64, int], F64]  # of sizes and arcs [first, last) of a circle of n; the greatest first


@strict
@work.budgeted
def greedy(
    trace: Trace, *, alignment: int = 256, seconds: float | None = None, fixed: Mapping[int, int] | None = None
) -> Placement:
    """Place buffers in each order of `ORDERS`, by best fit and by first fit; return the lowest placement.

    Notes
    -----
    A planner as in `gpumem.pool`. Buffers alive all the time go to the bottom. Twelve greedy placements: see
    `best_fit` for the time of one.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([4, 3, 2], [0, 1, 2], [2, 4, 4])
    >>> greedy(trace, alignment=1).height
    7

    References
    ----------
    Zhang et al. 2019, section III-C (size). Pisarchyk, Lee: Efficient memory management for deep neural net
    inference, 2020 (size, breadth). TVM's unified static memory planner (conflicts).
    """
    return min(placements(PlacementProblem.of(trace, alignment, fixed)), key=lambda placement: placement.height)


def placements(problem: PlacementProblem, names: Iterable[str] | None = None) -> Iterator[Placement]:
    """Yield a placement for each order of `ORDERS`, or of these, by best fit and by first fit; two at least."""
    none = np.empty(0, np.int64)
    first, last, sections = problem.sections(problem.free)
    size = problem.trace.buffers.size[problem.free]
    for turn, name in enumerate(ORDERS if names is None else names):
        if turn and work.over():
            break
        key = ORDERS[name](size, first, last, sections)
        order = problem.free[np.argsort(-key, kind="stable")]  # `free` goes by size
        for smallest in (True, False):
            yield problem.complete(none, none, smallest=smallest, order=order)


def lowest(placements: Iterable[Placement], target: int) -> Placement:
    """Return the lowest placement, or the first one that is no higher than a target."""
    best = None
    for placed in placements:
        if best is None or placed.height < best.height:
            best = placed
        if best.height <= target:
            break
    assert best is not None, "there is one at least"
    return best


def by_conflict_bytes(size: I64, first: I64, last: I64, sections: int) -> F64:
    """What meets the most bytes first: of what is alive when it starts, and of what starts during its life."""
    starts = np.bincount(first, size, sections)
    begun = np.concatenate([[0.0], np.cumsum(np.concatenate([starts, starts]))])
    return np.asarray(_load(size, first, last, sections)[first] + begun[last] - begun[first + 1], np.float64)


def by_breadth(size: I64, first: I64, last: I64, sections: int) -> F64:
    """What is alive where the most bytes are live first (TFLite)."""
    load = _load(size, first, last, sections)
    twice = np.concatenate([load, load, [0.0]])
    return np.asarray(np.maximum.reduceat(twice, np.stack([first, last], axis=1).ravel())[::2], np.float64)


def _load(size: I64, first: I64, last: I64, sections: int) -> F64:
    change = np.bincount(first, size, sections) - np.bincount(last % sections, size, sections)
    return np.asarray(np.cumsum(change) + size[last >= sections].sum(), np.float64)


ORDERS: dict[str, Order] = {
    "size": lambda size, first, last, sections: size.astype(np.float64),  # SmartPool, TFLite
    "area": lambda size, first, last, sections: size.astype(np.float64) * (last - first),
    "lifetime": lambda size, first, last, sections: (last - first).astype(np.float64),
    "conflicts": lambda size, first, last, sections: by_conflict_bytes(
        np.ones_like(size), first, last, sections
    ),  # TVM
    "conflict-bytes": by_conflict_bytes,
    "breadth": by_breadth,
}
