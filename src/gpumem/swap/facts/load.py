"""Room under the limit: the load that copies may occupy for longer than they must."""

from __future__ import annotations

import numpy as np

from gpumem.base.display import Facts, Shown
from gpumem.base.units import human
from gpumem.swap.facts import segment_tree as _tree
from gpumem.swap.plan.gaps import around
from gpumem.trace import I64, Trace


class Room(Shown):
    """The load with some gaps absent, and the limit. Positions go round; no stretch is longer than that.

    O(log n) a call.

    >>> room = Room(np.array([5, 3, 3, 9]), 8)
    >>> room.hold(1, 4, 5), room.load
    (3, array([5, 8, 8, 9]))
    """

    def __init__(self, load: I64, limit: int) -> None:
        self.n, self.limit, self._tree = len(load), limit, _tree.build(load)

    @property
    def load(self) -> I64:
        """The bytes at each op; O(n)."""
        return _tree.values(*self._tree, self.n)

    def hold(self, at: int, until: int, size: int) -> int:
        """Hold `size` bytes from op `at` on; return `until` or the first op where they would exceed the limit."""
        full = _tree.above_around(*self._tree, self.n, at, until, self.limit - size, False) if at < until else at
        until = until if full < 0 else full
        self._add(at, until, size)
        return until

    def fetch(self, earliest: int, before: int, size: int) -> int:
        """Hold `size` bytes up to op `before`; return `earliest` or the first op from which they fit the limit."""
        if earliest >= before:
            return before
        full = _tree.above_around(*self._tree, self.n, earliest, before, self.limit - size, True)
        earliest = earliest if full < 0 else full + 1
        self._add(earliest, before, size)
        return earliest

    def short(self, start: int, stop: int) -> bool:
        """Return whether some op of `[start, stop)` is above the limit."""
        return bool(_tree.largest_around(*self._tree, self.n, start, stop) > self.limit)

    def leave(self, start: int, stop: int, size: int) -> None:
        """Take `size` bytes away from the ops `[start, stop)`."""
        self._add(start, stop, -size)

    def _add(self, start: int, stop: int, size: int) -> None:
        _tree.add_around(*self._tree, self.n, start, stop, size)

    def _facts(self) -> Facts:
        return {"ops": self.n, "limit": human(self.limit)}


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
