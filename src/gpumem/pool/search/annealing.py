"""Local search: simulated annealing over the order in which first fit takes the buffers, large ones first.

The few large buffers decide on the height, so they are arranged first, alone; then more buffers join them, at the
end of the order found so far. What is not arranged yet goes where best fit or first fit puts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpumem.base.deadline import NEVER, Deadline
from gpumem.pool.search._problem import REST, PlacementProblem
from gpumem.pool.search._reorder import DRAWS, anneal, meetings, refit
from gpumem.pool.search.greedy import ORDERS
from gpumem.trace import I64
from gpumem.trace.placement import Placement

STAGES = ((0.02, 0.4), (0.005, 0.7), (0.001, 0.9), (0.0, 1.0))  # least size over the peak load, effort spent by its end
MOST = 4000  # buffers that are arranged; the matrix that says which of them meet takes the square of that in bytes
CHUNKS = 40  # of a stage, each at one temperature
HOT, COLD = 0.006, 0.0002  # temperatures over the peak load, at the beginning and the end of a stage
MOVES = 4096  # random moves drawn at a time


@dataclass(slots=True)
class OrderWalk:
    """A walk through orders, and the lowest placement met; not for problems where something is fixed."""

    problem: PlacementProblem
    best: Placement
    target: int  # bytes
    rng: np.random.Generator
    progress: Callable[[str], None]
    until: Deadline = NEVER
    work: int = 0
    order: I64 = field(default_factory=lambda: np.empty(0, np.int64))  # ids that are arranged so far

    def run(self, effort: int) -> Placement:
        """Go through the stages; return the lowest placement."""
        size = self.problem.trace.buffers.size[self.problem.free]
        for least, share in STAGES:
            joins = min(int(np.count_nonzero(size >= least * self.problem.trace.peak_load)), MOST)
            if joins > len(self.order) and self.work < effort * share and self.going:
                self._stage(self.problem.free[len(self.order) : joins], int(effort * share))
        return self.best

    @property
    def going(self) -> bool:
        """Whether there is something left to find, and time."""
        return self.best.height > self.target and not self.until.over()

    def _stage(self, new: I64, most: int) -> None:
        """Let buffers join, and anneal."""
        b, ids = self.problem.trace.buffers, np.concatenate([self.order, new])
        size, meet = self.problem.units[ids], meetings(b.start[ids], b.end[ids], self.problem.trace.n)
        now = np.arange(len(ids)) if len(self.order) else self._greedy(ids, meet)
        floor = self.problem.peak_units(ids)
        best, lowest, begin = np.stack([now, now]), 2**62, self.work
        while self.work < most and self.going and lowest > floor:
            heat = HOT * (COLD / HOT) ** ((self.work - begin) / (most - begin)) * floor
            share = min((most - begin) // CHUNKS + 1, most - self.work)
            draws, here = self.rng.random((MOVES, DRAWS)), np.empty_like(best)
            reached, work = anneal(size, meet, now, draws, heat, share, floor, here)
            self.work += work
            if reached < lowest:
                best, lowest = here, reached
                if self.problem.base + (reached - 1) * self.problem.alignment < self.best.height:
                    self.best = min(self.best, self.problem.around(ids, best[1]), key=lambda p: p.height)
                    self.work += REST * (len(self.problem.free) - len(ids))
            self.progress(f"annealing, {self.best.height / max(self.problem.lowest, 1):.4f} of the lower bound")
        self.order = ids[best[0]]

    def _greedy(self, ids: I64, meet: NDArray[np.uint8]) -> I64:
        """Return the best of the greedy orders, by first fit."""
        first, last, sections = self.problem.sections(ids)
        size, scratch = self.problem.units[ids], np.empty((3, len(ids)), np.int64)
        best, lowest = np.arange(len(ids)), 2**62
        for key in ORDERS.values():
            order = np.argsort(-key(size, first, last, sections), kind="stable")
            height, work = refit(size, meet, order, 0, np.inf, *scratch)
            self.work += work
            if height < lowest:
                best, lowest = order, height
        return best
