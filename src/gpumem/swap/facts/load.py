"""The live bytes that planners follow: on the device at each op and between them, while gaps leave and come back.

Time goes to the right; a buffer is off the device (.) over the ops of a gap, and the places between these::

    position   2 start | 2 start + 1 | ...  | 2 stop - 1 | 2 stop | 2 stop + 1
    what       place   | op `start`  |      |            | place  | op `stop`
    bytes      ........................................... ####################
"""

from __future__ import annotations

from typing import Self

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.units import human
from gpumem.swap.facts import segment_tree as _tree
from gpumem.swap.plan.gaps import around
from gpumem.trace import I64, Trace

# Bytes that no trace holds: `Trace` refuses sizes that add up to `MAX_BYTES`, 2**62, or more.
NO_LIMIT = 2**62


class LiveBytes(Shown):
    """Bytes on the device while gaps are absent, under a limit; ops go round, no stretch is longer than the iteration.

    Parameters
    ----------
    held : int64[2 n]
        Bytes at the places before ops and at ops, as of `at_places`.
    limit : int
        Bytes.

    Notes
    -----
    What is held at a place is held at the op behind it, so places tell only of what recomputations need there. O(log n)
    a call.

    Examples
    --------
    >>> room = LiveBytes(np.array([0, 5, 3, 3, 3, 3, 3, 9]), 8)
    >>> room.hold(1, 4, 5), room.load
    (3, array([5, 8, 8, 9]))
    """

    def __init__(self, held: I64, limit: int = NO_LIMIT) -> None:
        self.n, self.limit = len(held) // 2, limit
        self.top, self.add = _tree.build(held)

    @classmethod
    @strict
    def of(
        cls,
        trace: Trace,
        limit: int = NO_LIMIT,
        gaps: tuple[I64, I64, I64] = (np.zeros(0, np.int64),) * 3,
    ) -> Self:
        """Return that of a trace, with gaps absent: the ops `[start, stop)` and bytes of each; O(n + gaps)."""
        start, stop, size = gaps
        return cls(at_places(trace) - around(2 * start, 2 * stop, size, 2 * trace.n), limit)

    def copy(self) -> Self:
        """Return one of its own."""
        return type(self)(_tree.values(self.top, self.add, 2 * self.n), self.limit)

    @property
    def load(self) -> I64:
        """The bytes at each op; O(n)."""
        return _tree.values(self.top, self.add, 2 * self.n)[1::2]

    @property
    def peak(self) -> int:
        """The most bytes."""
        return int(self.top[1])

    @property
    def over(self) -> bool:
        """Whether they exceed the limit."""
        return self.peak > self.limit

    @property
    def op(self) -> int:
        """The first op of the peak, or the op after the place that has it."""
        return int(_tree.first_largest(self.top, self.add)) // 2

    def at(self, op: int) -> int:
        """Return what the place before op `op` holds."""
        return int(_tree.largest(self.top, self.add, 2 * op, 2 * op + 1))

    def highest(self, start: int, stop: int) -> int:
        """Return the most bytes at the ops `[start, stop)`; of none, a very low number."""
        return int(_tree.largest_around(self.top, self.add, 2 * self.n, 2 * start, 2 * stop))

    def helps(self, start: int, stop: int) -> bool:
        """Return whether some op of `[start, stop)` is above the limit, so that bytes that leave there help."""
        return self.highest(start, stop) > self.limit

    def leave(self, start: int, stop: int, size: int) -> None:
        """Take `size` bytes away from the ops `[start, stop)`."""
        _tree.add_around(self.top, self.add, 2 * self.n, 2 * start, 2 * stop, -size)

    def need(self, op: int, size: int) -> None:
        """Need `size` bytes more at the place before op `op`."""
        _tree.add_to(self.top, self.add, 2 * op, 2 * op + 1, size)

    def hold(self, at: int, until: int, size: int) -> int:
        """Hold `size` bytes from op `at` on; return `until` or the first op where they would exceed the limit."""
        full = self._full(at, until, size, False)
        until = max(at, until) if full < 0 else full
        self.leave(at, until, -size)
        return until

    def fetch(self, earliest: int, before: int, size: int) -> int:
        """Hold `size` bytes up to op `before`; return `earliest` or the first op from which they fit the limit."""
        full = self._full(earliest, before, size, True)
        earliest = min(earliest, before) if full < 0 else full + 1
        self.leave(earliest, before, -size)
        return earliest

    def _full(self, start: int, stop: int, size: int, last: bool) -> int:
        """The first or the last of the ops `[start, stop)` at which, or before which, there is no room; or -1."""
        bound, span = self.limit - size, (2 * self.n, 2 * start, 2 * stop)
        position = _tree.above_around(self.top, self.add, *span, bound, last) if start < stop else -1
        return int(position) // 2

    def _facts(self) -> Facts:
        limit = human(self.limit) if self.limit < NO_LIMIT else "none"
        return {"ops": self.n, "peak": human(self.peak), "limit": limit}


def at_places(trace: Trace, *, host: bool = False) -> I64:
    """Return the bytes held at 2 n positions: `2 i` is the place before op `i`, `2 i + 1` is op `i`.

    What lives over a place is held there: a buffer is not there yet before its first op.

    >>> at_places(Trace.from_lifetimes([4, 2], [0, 1], [2, 3]))
    array([0, 4, 4, 6, 2, 2])
    """
    table = trace.buffers
    begin = np.where(trace.eternal, table.start, table.start + 1)
    counted = (table.host == host) & (begin < table.end)
    held = np.empty(2 * trace.n, np.int64)
    held[::2] = around(begin[counted], table.end[counted], table.size[counted], trace.n)
    held[1::2] = trace.live_bytes(host=host)
    return held
