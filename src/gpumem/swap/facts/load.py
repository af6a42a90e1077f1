"""Room under the limit: the load that copies may occupy for longer than they must."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base.display import Shown
from gpumem.swap.plan.gaps import around
from gpumem.trace import I64, Trace


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Room(Shown):
    """The load with some gaps absent, and the limit. Positions go round, `load` is written.

    >>> room = Room(np.array([5, 3, 3, 9]), 8)
    >>> room.hold(1, 4, 5), room.load
    (3, array([5, 8, 8, 9]))
    """

    load: I64
    limit: int

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


def at_places(trace: Trace, *, host: bool = False) -> I64:
    """Return the bytes held at 2 n positions: `2 i` is the place before op `i`, `2 i + 1` is op `i`.

    What lives over a place is held there: a buffer is not there yet before its first op.

    >>> at_places(Trace.from_lifetimes([4, 2], [0, 1], [2, 3]))
    array([0, 4, 4, 6, 2, 2])
    """
    b = trace.buffers
    begin = np.where(trace.eternal, b.start, b.start + 1)
    mine = (b.host == host) & (begin < b.end)
    both = np.empty(2 * trace.n, np.int64)
    both[::2], both[1::2] = around(begin[mine], b.end[mine], b.size[mine], trace.n), trace.load(host=host)
    return both
