"""Better than greedy: first fit in many orders, each a small change of the last.

The few large buffers decide on the height, so they are arranged first, alone; then more buffers join them::

    >= 2 %    of the peak load, from the best of several greedy orders
    >= 0.5 %  too, from the order found, the new ones after it by size
    >= 0.1 %  likewise
    all       up to `MOST` buffers
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpumem.columns import I64
from gpumem.placement import Placement
from gpumem.pool._reorder import DRAWS, anneal, meetings, refit
from gpumem.pool.smartpool import _fit, best_fit, first_fit
from gpumem.trace import Trace

STAGES = ((0.02, 0.4), (0.005, 0.7), (0.001, 0.9), (0.0, 1.0))  # least size over the peak load, effort spent by its end
MOST = 4000  # buffers that are arranged; the matrix that says which of them meet takes the square of that in bytes
UNIT = 500_000_000  # placed buffers looked at with an effort of 1,
SMALL = 200  # or this times the cube of the buffers, if that is less
CHUNKS = 40  # of a stage, each at one temperature
HOT, COLD = 0.006, 0.0002  # temperatures over the peak load, at the beginning and the end of a stage
MOVES = 4096  # random moves drawn at a time


def search(
    trace: Trace,
    *,
    alignment: int = 256,
    target: int | None = None,
    effort: float = 1.0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Placement:
    """Place buffers by first fit in the best of many orders, found by simulated annealing.

    Parameters
    ----------
    trace : Trace
        Host buffers are left alone.
    alignment : int
        Bytes that each offset is a multiple of.
    target : int, optional
        Bytes of height at which the search stops; the peak load, which no placement can go below, where left out.
    effort : float
        Work to spend at most; 1 takes 1 to 3 s and less on small instances, 0 gives the better of best fit and
        first fit. What goes beyond 1 is spent on fresh starts, each as long as all before it.
    seed : int
        Of the random moves, at least 0.
    progress : callable
        Told how far it got.

    Returns
    -------
    Placement
        Never higher than those of `best_fit` and `first_fit`.

    Raises
    ------
    ValueError
        An alignment outside [1, 2**40], a target, an effort or a seed that is negative or not finite.

    Notes
    -----
    Not from the paper. Deterministic: the effort is counted, not timed. Time O(effort + B^2), memory O(B + M^2)
    for M = min(B, 4000) buffers that are arranged; the others go where best fit puts them. Nothing is guaranteed
    beyond best fit, and where the search does not reach the peak load nothing is said about the optimum.
    Buffers alive all the time go to the bottom, which costs nothing: nobody can share their bytes.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([3, 3, 3, 5, 2], [1, 2, 2, 4, 4], [4, 3, 5, 5, 6])
    >>> best_fit(trace, alignment=1).height, search(trace, alignment=1).height
    (11, 10)
    """
    for name, value in (("target", target), ("effort", effort), ("seed", seed)):
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{name}: {value} is not a finite number >= 0")
    found = min(best_fit(trace, alignment=alignment), first_fit(trace, alignment=alignment), key=lambda p: p.height)
    spent, turn = 0.0, 0
    while spent < effort:  # in turns of 1, 1, 2, 4, ...: some instances need luck, others a long walk
        state = _Search.of(trace, found, target, np.random.default_rng((seed, turn)), progress)
        if found.height <= state.target:
            break
        part = min(max(spent, 1.0), effort - spent)
        found = state.walk(part * min(UNIT, SMALL * len(state.rest) ** 3))
        spent, turn = spent + part, turn + 1
    return found


@dataclass(slots=True)
class _Search:
    trace: Trace
    found: Placement
    size: I64  # rounded up, so that every offset is a multiple of the alignment
    target: int
    base: int  # bytes of what is alive all the time
    order: I64  # what is arranged so far
    rest: I64  # the others, by descending size
    at: I64  # offsets, right for what is alive all the time
    rng: np.random.Generator
    progress: Callable[[str], None]
    work: int = field(default=0)

    @classmethod
    def of(
        cls,
        trace: Trace,
        found: Placement,
        target: int | None,
        rng: np.random.Generator,
        progress: Callable[[str], None],
    ) -> _Search:
        """Put what is alive all the time at the bottom."""
        b, a = trace.buffers, found.alignment
        size = (b.size + a - 1) // a * a
        solid = ~b.host & (b.size > 0)
        full = np.flatnonzero(solid & (b.end - b.start == trace.n))
        rest = np.flatnonzero(solid & (b.end - b.start < trace.n))
        at = np.where(solid, 0, found.offset)
        at[full] = np.cumsum(size[full]) - size[full]
        rest = rest[np.lexsort((rest, b.start[rest], -size[rest]))]
        # the topmost of the buffers alive at the peak of rounded sizes is the only one whose padding may stick out
        lowest = Trace.from_lifetimes(size[solid], b.start[solid], b.end[solid], n=trace.n).peak_load
        lowest = max(trace.peak_load, lowest - int((size - b.size)[solid].max(initial=0)))
        goal = lowest if target is None else max(target, lowest)
        none = np.empty(0, np.int64)
        return cls(trace, found, size, goal, int(size[full].sum()), none, rest, at, rng, progress)

    def walk(self, effort: float) -> Placement:
        """Go through the stages; return the lowest placement."""
        for least, share in STAGES:
            self.stage(least * self.trace.peak_load, int(effort * share))
        return self.found

    def stage(self, least: float, until: int) -> None:
        """Let the buffers of at least that size join, and anneal."""
        b, joins = self.trace.buffers, int(np.count_nonzero(self.size[self.rest] >= least))
        joins = min(joins, MOST - len(self.order))
        if not joins or self.work >= until:
            return
        new, self.rest = self.rest[:joins], self.rest[joins:]
        ids = np.concatenate([self.order, new])
        size, meet = self.size[ids], meetings(b.start[ids], b.end[ids], self.trace.n)
        order = np.arange(len(ids)) if len(self.order) else self._greedy(ids, meet)
        floor = Trace.from_lifetimes(size, b.start[ids], b.end[ids], n=self.trace.n).peak_load
        now, best, lowest = order.copy(), np.stack([order, order]), 2**62
        begin = self.work
        while self.work < until and self.found.height > self.target and lowest > floor:
            heat = HOT * (COLD / HOT) ** ((self.work - begin) / (until - begin)) * floor
            share = min((until - begin) // CHUNKS + 1, until - self.work)
            draws, here = self.rng.random((MOVES, DRAWS)), np.empty_like(best)
            reached, work = anneal(size, meet, now, draws, heat, share, floor, here)
            self.work += work
            if reached < lowest:
                best, lowest = here, reached
                if self.base + reached < self.found.height + self.found.alignment:  # padding may stick out
                    self._complete(ids, best[1])
            self.progress(f"{self.found.height / self.trace.peak_load:.4f} of the peak load")
        self.order = ids[best[0]]

    def _greedy(self, ids: I64, meet: NDArray[np.uint8]) -> I64:
        """Return the best of some orders: by size, area, lifetime, or what each meets."""
        size, length = self.size[ids].astype(np.float64), (self.trace.buffers.end - self.trace.buffers.start)[ids]
        scratch = np.empty((3, len(ids)), np.int64)
        best, lowest = np.arange(len(ids)), 2**62
        for key in (size, size * length, length, meet @ size, size * (meet @ size)):
            order = np.argsort(-key, kind="stable")
            height, work = refit(self.size[ids], meet, order, 0, np.inf, *scratch)
            self.work += work
            if height < lowest:
                best, lowest = order, height
        return best

    def _complete(self, ids: I64, offset: I64) -> None:
        """Add what is not arranged by best fit and by first fit, and keep the placement if it is the lowest so far."""
        b = self.trace.buffers
        self.at[ids] = self.base + offset
        placed = ids[np.argsort(offset, kind="stable")]
        order, alignment = np.concatenate([placed, self.rest]), self.found.alignment
        for smallest in (True, False):
            # below the base nothing is free: shift, since _fit starts at byte 0
            at = self.at - self.base
            _fit(b.size, b.start, b.end, self.trace.n, order, len(ids), alignment, smallest, at)
            self.work += len(order) * len(self.rest)
            whole = self.at.copy()
            whole[order] = at[order] + self.base
            height = int((whole + b.size)[~b.host].max(initial=0))
            if height < self.found.height:
                self.found = Placement(whole, height, alignment)
