"""One job in TENSILE's recomputation rounds: what its peak holds, by memory saved per second of running ops again."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpumem.swap.facts.biggest import Biggest, biggest
from gpumem.swap.facts.recompute import recomputable
from gpumem.swap.facts.recompute_scratch import beside, states
from gpumem.swap.plan import Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.swap.plan.replay import Device, Refused, Replay, replay
from gpumem.swap.plan.values import Origins
from gpumem.swap.tensile.swap_rounds import SwapRounds
from gpumem.trace import I64


class RecomputeRounds:
    """What is left to drop after the swap rounds: gaps of buffers that are never absent otherwise.

    A recomputation reads its sources where it runs, so they must be there, and stay there: what the chosen ones of a
    place read is not dropped around it.
    """

    def __init__(self, job: SwapRounds, duration: I64) -> None:
        self.job, self.taken = job, list[Recompute]()
        trace = job.trace
        b, g = trace.buffers, gaps(trace)
        kept = ~np.isin(g.buffer, job.buffers) & ~b.persistent[g.buffer]
        kept &= (g.before > g.after + 1) & (g.before < trace.n) & (g.size > 0)
        found = recomputable(trace, job.machine, g.where(kept), earlier=False)
        worth = found.gaps.size / np.maximum(found.times(duration), 1)
        rows = np.flatnonzero(found.ok)
        rows = rows[np.argsort(-worth[rows], kind="stable")]
        self.gaps, self.worth = found.gaps.where(rows), worth[rows]
        self.by_worth = Biggest.of(self.gaps.after + 1, self.gaps.before, trace.n)
        self.device = Device(trace, Origins.of(trace), job.swaps()[0])
        self.made: dict[int, list[Recompute]] = defaultdict(list)  # before each op; nobody else reads it
        self.beside: dict[int, int] = defaultdict(int)  # bytes needed before an op, beside what is counted there
        self.needed: dict[int, set[int]] = defaultdict(set)  # before which ops recomputations read a buffer
        self._next, self._made = -1, Replay(0, frozenset(), {}, (), {})

    @property
    def peak(self) -> int:
        """The bytes at the peak."""
        return self.job.peak

    def best(self) -> int:
        """Return the row that saves most bytes per ns at the peak, -1 if there is none left."""
        while self._next < 0:
            found = biggest(self.by_worth, self.job.footprint.op)
            if found < 0:
                return -1
            if self._possible(found):
                self._next = found
        return self._next

    def value(self, row: int) -> float:
        """Return the bytes per ns of a row; no row has none."""
        return float(self.worth[row]) if row >= 0 else -1.0

    def drop(self, row: int) -> None:
        """Drop the buffer of the `best` row in its gap and make it again, unless the host has no room for that."""
        made, gone, trace, footprint = self._made, self._gone(row), self.job.trace, self.job.footprint
        self._next = -1
        self.by_worth.length[row] = 0
        if not self.job.keep(states(trace, [made], self.job.host.states)):
            return
        needs = beside(made, trace.buffers.size)
        footprint.leave(gone.after + 1, gone.at, int(trace.buffers.size[gone.buffer]))
        footprint.need(gone.at, needs - self.beside[gone.at])
        self.beside[gone.at] = needs
        for b in made.sources:
            self.needed[b].add(gone.at)
        self.device.decide([gone])
        self.made[gone.at].append(gone)
        self.taken.append(gone)

    def _gone(self, row: int) -> Recompute:
        buffer, after, before = (int(x[row]) for x in (self.gaps.buffer, self.gaps.after, self.gaps.before))
        return Recompute(buffer, after, before, before)

    def _possible(self, row: int) -> bool:
        """Whether its sources are there, nobody needs it meanwhile, and the recomputation makes no peak as high."""
        gone, footprint = self._gone(row), self.job.footprint
        if any(gone.after < place <= gone.at for place in self.needed[gone.buffer]):
            self.by_worth.length[row] = 0  # it stays so
            return False
        try:
            self._made = replay(self.device, [*self.made[gone.at], gone], gone.at)
        except Refused:
            self.by_worth.length[row] = 0
            return False
        needs = beside(self._made, self.job.trace.buffers.size)
        return footprint.at(gone.at) - self.beside[gone.at] + needs < footprint.peak
