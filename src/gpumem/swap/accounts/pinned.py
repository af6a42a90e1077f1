"""What the swaps chosen so far keep in pinned host memory, followed one decision at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpumem.columns import I64
from gpumem.swap.gaps import Gaps, needs_copy_out


@dataclass(slots=True, eq=False)
class Host:
    """The host's load right before each op, when its copies out have been issued and its copies in have not.

    Parameters
    ----------
    gaps : Gaps
        All that may be swapped, in the order of `gaps`.
    size : int64[m]
        Bytes of each.
    budget : int
        Bytes of pinned memory.
    load : int64[n]
        Its largest is the peak host load of the trace that `Plan.apply` makes.

    Notes
    -----
    One arc for each value on the host: from its copy-out through the last copy-in that needs it. A buffer
    that is never written and lives for ever stays there all the time.
    """

    gaps: Gaps
    size: I64
    budget: int
    load: I64
    _taken: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)

    def take(self, k: int, out: int, prefetch: int) -> bool:
        """Swap gap `k`, or move its copies, if the budget allows; return whether it does.

        O(n) at worst.
        """
        b = int(self.gaps.buffer[k])
        old = self._taken.get(b, {})
        new = {**old, k: (out, prefetch)}
        for start, length in self._arcs(old):
            self._add(start, length, -int(self.size[k]))
        arcs = self._arcs(new)
        for start, length in arcs:
            self._add(start, length, int(self.size[k]))
        if all(self._peak(start, length) <= self.budget for start, length in arcs):
            self._taken[b] = new
            return True
        for start, length in arcs:
            self._add(start, length, -int(self.size[k]))
        for start, length in self._arcs(old):
            self._add(start, length, int(self.size[k]))
        return False

    def _arcs(self, taken: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
        """When the host holds values of one buffer: first place and number of places."""
        rows, n = sorted(taken), len(self.load)
        dirty = needs_copy_out(self.gaps.where(np.array(rows, np.int64))).tolist()
        if rows and not any(dirty):
            return [(0, n)]
        first = dirty.index(True) if rows else 0
        arcs: list[tuple[int, int]] = []
        for k, copied in zip([*rows[first:], *rows[:first]], [*dirty[first:], *dirty[:first]]):
            out, prefetch = taken[k]
            start = (out + 1) % n if copied else arcs.pop()[0]
            arcs.append((start, (prefetch - start) % n + 1))
        return arcs

    def _add(self, start: int, length: int, size: int) -> None:
        self.load[start : start + length] += size
        self.load[: max(start + length - len(self.load), 0)] += size

    def _peak(self, start: int, length: int) -> int:
        tail = self.load[: max(start + length - len(self.load), 0)]
        return max(int(self.load[start : start + length].max()), int(tail.max(initial=0)))
