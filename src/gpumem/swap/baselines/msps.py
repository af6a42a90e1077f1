"""Memory saving per second: which value is cheapest to drop and compute again, as chains of them form."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpumem.swap.facts.recompute import Recomputable
from gpumem.trace import Csr, Trace


@dataclass(slots=True)
class Chains:
    """The candidates of Capuchin's algorithm 2, by row of a `Recomputable`.

    `sources`: candidates that a recomputation of this one starts from. `time`: ns of one recomputation from its
    sources. `extra`: ns that those which start from it need more once it is dropped as well.
    """

    size: dict[int, int]
    sources: dict[int, set[int]]
    time: dict[int, int]
    extra: dict[int, int]
    left: list[int]
    starters: dict[int, set[int]]  # who starts from each
    dropped: dict[int, int]  # how many of these are dropped
    taken: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace, found: Recomputable, rows: list[int]) -> Chains:
        """Start with every value on the device: a recomputation takes the time of its closure."""
        g, mine = found.gaps, [k for k in rows if found.ok[k]]
        by_buffer = Csr.grouped(g.buffer[mine], np.array(mine, np.int64), len(trace.buffers)).tolist()
        sources = {}
        for k in mine:
            inputs = (j for b in found.sources[k].tolist() for j in by_buffer[b])
            sources[k] = {j for j in inputs if g.after[j] < g.before[k] <= g.before[j]}
        size = {k: int(trace.buffers.size[g.buffer[k]]) for k in mine}
        starters: dict[int, set[int]] = {k: set() for k in mine}
        for k in mine:
            for j in sources[k]:
                starters[j].add(k)
        time, zeros = {k: int(found.cost_ns[k]) for k in mine}, dict.fromkeys(mine, 0)
        return cls(size, sources, time, dict(zeros), mine, starters, zeros)

    def overhead(self, k: int) -> int:
        """Nanoseconds that dropping candidate `k` costs, given what is dropped already."""
        return self.time[k] + self.extra[k]

    def best(self) -> int:
        """Return the candidate that saves most bytes per nanosecond (MSPS), -1 where none is left."""
        return max(self.left, key=lambda k: self.size[k] / max(self.overhead(k), 1), default=-1)

    def discard(self, k: int) -> None:
        """Candidate `k` is not to be recomputed: it stays, or it is swapped."""
        if k in self.sources and k in self.left:
            self.left.remove(k)

    def take(self, k: int) -> None:
        """Drop candidate `k`; who starts from it starts from its sources from now on (algorithm 2)."""
        self.left.remove(k)
        gone = set(self.taken)
        for j in self.starters[k]:
            new = self.sources[k] - self.sources[j]
            self.sources[j] = (self.sources[j] - {k}) | new
            self.time[j] += self.time[k]
            for i in new:
                self.starters[i].add(j)
                self.dropped[i] += j in gone
        for i in self.sources[k]:
            self.dropped[i] += 1
        self.taken.append(k)
        for j in self.left:  # once for each of the dropped that has to start from it
            self.extra[j] = self.time[j] * self.dropped[j]
