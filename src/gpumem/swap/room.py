"""Room under the limits: the load that copies may occupy for longer than they must, and pinned host memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.columns import I64, Bool
from gpumem.swap.gaps import Gaps
from gpumem.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The load with some gaps absent, and the limit. Positions go round, `load` is written.

    >>> room = Room(np.array([5, 3, 3, 9]), 8)
    >>> room.hold(1, 4, 5), room.load
    (3, array([5, 8, 8, 9]))
    """

    load: I64
    limit: int

    @classmethod
    def without(cls, trace: Trace, chosen: Gaps, limit: int) -> Room:
        """Return what is left when every chosen gap is absent from its first op through its last."""
        load, size = trace.load(), trace.buffers.size[chosen.buffer]
        for after, before, bytes_ in zip(chosen.after.tolist(), chosen.before.tolist(), size.tolist()):
            load[np.arange(after + 1, before) % trace.n] -= bytes_
        return cls(load, limit)

    def hold(self, at: int, until: int, size: int) -> int:
        """Hold `size` bytes from op `at` on; return `until` or the first op where they would exceed the limit."""
        while at < until and self.load[at % len(self.load)] + size <= self.limit:
            self.load[at % len(self.load)] += size
            at += 1
        return at

    def fetch(self, earliest: int, before: int, size: int) -> int:
        """Hold `size` bytes up to op `before`; return `earliest` or the first op from which they fit the limit."""
        at = before
        while at > earliest and self.load[(at - 1) % len(self.load)] + size <= self.limit:
            at -= 1
            self.load[at % len(self.load)] += size
        return at


@dataclass(frozen=True, slots=True, eq=False)
class Pinned:
    """What the host holds at each op, counted so that the rewritten trace never holds more than the budget."""

    gaps: Gaps
    size: I64
    budget: int
    load: I64
    held: dict[int, Bool]

    @classmethod
    def of(cls, trace: Trace, gaps: Gaps, budget: int) -> Pinned:
        """Start with an empty host."""
        return cls(gaps, trace.buffers.size[gaps.buffer], budget, np.zeros(trace.n, np.int64), {})

    def take(self, k: int) -> bool:
        """Hold the buffer of gap `k`, which does not wrap, on the host; False if the budget does not allow it."""
        g, nowhere = self.gaps, np.zeros(len(self.load), np.bool_)
        buffer, span = int(g.buffer[k]), nowhere.copy()
        if buffer in self.held or not g.writes[k]:  # one host copy may serve several gaps, a constant's all
            span[:] = True
        else:
            span[g.after[k] : g.before[k] + 1] = True
        more = span & ~self.held.get(buffer, nowhere)
        if self.load[more].max(initial=0) + self.size[k] > self.budget:
            return False
        self.load[more] += self.size[k]
        self.held[buffer] = span
        return True
