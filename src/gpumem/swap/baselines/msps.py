"""Memory saving per second: which value is cheapest to drop and compute again, as chains of them form."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpumem.columns import Csr
from gpumem.swap.recompute import Recomputable
from gpumem.trace import Trace


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
        return cls(size, sources, {k: int(found.cost_ns[k]) for k in mine}, dict.fromkeys(mine, 0), mine)

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
        for j in [*self.taken, *self.left]:
            if k in self.sources[j]:
                self.sources[j] = (self.sources[j] - {k}) | self.sources[k]
                self.time[j] += self.time[k]
        self.taken.append(k)
        for j in self.left:  # once for each of the dropped that has to start from it
            self.extra[j] = self.time[j] * sum(j in self.sources[i] for i in self.taken)
