"""Local search below one goal after another: a buffer that is left out takes the place of others, and these go on.

Where a trace was rewritten the load is high over long times, and buffers of the largest area decide: activations that
go down like stairs, gradients and prefetched values that go up. An order says too little about that, since it fills
from the bottom only. Here a buffer goes where it disturbs least, at either end of a hole (`_eject`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpumem.base.deadline import NEVER, Deadline
from gpumem.pool.search._eject import OUT, STUCK, eject, neighbours
from gpumem.pool.search._problem import REST, PlacementProblem
from gpumem.trace import I64
from gpumem.trace.placement import Placement

MOST = 4000  # buffers of the largest area; which of them meet is kept, and that may be each pair
POWERS = ((1.0, 1.0), (1.0, 0.5), (0.7, 0.7))  # of size and lifetime in the weight, in turns
LEFT = (0.02, 0.003, 0.0003)  # of the load: what small buffers may add up to that a stage leaves to best fit
PARTS = 20  # of the effort: what one stage may take
SCALE = 2**20  # weights are whole numbers, so that sums do not depend on the order
STEPS = 10_000  # of a round
ROUNDS = 6  # that fail, until all begins anew
PAIR = 2  # work to find out whether two buffers meet


@dataclass(slots=True)
class EjectionWalk:
    """The lowest placement met below falling goals; what is fixed stays."""

    problem: PlacementProblem
    best: Placement
    target: int  # bytes
    rng: np.random.Generator
    progress: Callable[[str], None]
    until: Deadline = NEVER
    work: int = 0

    def run(self, effort: int) -> Placement:
        """Begin anew, with other weights, until the target is reached or the effort spent; return the lowest."""
        turn = 0
        while self.going(effort):
            self._descend(*self._ranked(*POWERS[turn % len(POWERS)]), effort)
            turn += 1
        return self.best

    def going(self, effort: int) -> bool:
        """Whether there is something left to find and to spend."""
        return self.best.height > self.target and self.work < effort and not self.until.over()

    def _ranked(self, size: float, length: float) -> tuple[I64, I64, list[int]]:
        """Return the buffers to place, those of each stage by weight; their weights; how many there are so far."""
        b, free = self.problem.trace.buffers, self.problem.free  # by descending size
        weight = self.problem.units[free].astype(np.float64) ** size * (b.end - b.start)[free] ** length
        load = self.problem.peak_units(free)
        counts = [
            bisect_left(range(len(free)), True, key=lambda k: self.problem.peak_units(free[k:]) <= left * load)
            for left in LEFT
        ]
        counts = sorted({min(count, MOST) for count in counts} - {0})
        stage = np.searchsorted(counts, np.arange(len(free)), "right")
        order = np.lexsort((-weight, stage))[: counts[-1]]
        return free[order], np.ceil(weight[order] / weight.max() * SCALE).astype(np.int64), counts

    def _descend(self, ids: I64, weight: I64, counts: list[int], effort: int) -> None:
        """Start from nothing; lower the goal where it is reached, raise it where it is not."""
        p = self.problem.instance(ids, self.best.height)
        held, share, failed = p.obstacle.shape[1], 0.5, 0
        near = neighbours(np.append(p.obstacle[1], p.first), np.append(p.obstacle[2], p.last), p.sections)
        self.work += PAIR * (held + len(ids)) ** 2
        size, heavy = np.append(p.obstacle[0], p.size), np.append(np.full(held, STUCK), weight)
        offset = np.append(p.obstacle[3], np.full(len(ids), OUT))
        while failed < ROUNDS and self.going(effort):
            before = self.best.height
            goal = self.target + int(share * (before - 1 - self.target))
            ceiling = np.append(np.zeros(held, np.int64), self.problem.instance(ids, goal).ceiling)
            for count in counts:
                draws, most = self.rng.random(STEPS + 4 * count), min(effort - self.work, effort // PARTS)
                done, work = eject(near, size, ceiling, heavy, held, held + count, offset, draws, most)
                self.work += work + REST * len(self.problem.free)
                if not done:
                    break
                placed = self.problem.around(ids[:count], offset[held : held + count])
                self.best = min(self.best, placed, key=lambda p: p.height)
                if placed.height <= goal:
                    break
            self.progress(f"ejection, {self.best.height / max(self.problem.lowest, 1):.4f} of the lower bound")
            failed += self.best.height >= before
            share = share / 2 if self.best.height < before else (1 + share) / 2
