"""Room under the limits: the load that copies may occupy for longer than they must, and pinned host memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.columns import I64, Bool
from gpumem.swap.gaps import Gaps, without
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
        return cls(without(trace.load(), chosen, trace.buffers.size[chosen.buffer]), limit)

    def hold(self, at: int, until: int, size: int) -> int:
        """Hold `size` bytes from op `at` on; return `until` or the first op where they would exceed the limit."""
        return at + self._take(np.arange(at, until), size)

    def fetch(self, earliest: int, before: int, size: int) -> int:
        """Hold `size` bytes up to op `before`; return `earliest` or the first op from which they fit the limit."""
        return before - self._take(np.arange(before - 1, earliest - 1, -1), size)

    def _take(self, ops: I64, size: int) -> int:
        """Hold `size` bytes at `ops`, one after another, until the limit ends it; return at how many."""
        ops = ops % len(self.load)
        full = self.load[ops] + size > self.limit
        far = int(np.argmax(full)) if full.any() else len(ops)
        self.load[ops[:far]] += size
        return far


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
