"""When a link is taken, on the circle of one iteration: the earliest and the latest time for one more copy."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field


@dataclass(slots=True)
class Link:
    """Which times of the circle `[0, period)` a link is taken; times that are asked for may lie turns ahead.

    `begins`, `ends`: disjoint, ascending, not touching within the turn.

    Examples
    --------
    >>> link = Link(100)
    >>> link.take(90, 20)
    >>> link.earliest(80, 130, 15), link.latest(80, 130, 15), link.latest(80, 200, 15), link.earliest(85, 120, 15)
    (110, 115, 175, -1)
    """

    period: int
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def earliest(self, start: int, stop: int, length: int) -> int:
        """Return when the earliest free `length` ns within `[start, stop)` begin, -1 if there are none."""
        at = start
        while at + length <= stop and length <= self.period:
            x = at % self.period if self.period else 0
            k = bisect_right(self.ends, x)
            turn = self.period if k == len(self.ends) else 0
            if not self.ends or x + length <= self.begins[k if not turn else 0] + turn:
                return at
            at += self.ends[k if not turn else 0] + turn - x
        return -1

    def latest(self, start: int, stop: int, length: int) -> int:
        """Return when the latest free `length` ns within `[start, stop)` begin, -1 if there are none."""
        at = stop - length
        while at >= start and length <= self.period:
            y = (at + length - 1) % self.period + 1 if self.period else 0
            k = bisect_left(self.begins, y) - 1
            turn = self.period if k < 0 else 0
            if not self.ends or self.ends[k] - turn <= y - length:
                return at
            at += self.begins[k] - turn - y
        return -1

    def take(self, at: int, length: int) -> None:
        """Take `length` ns from `at` on, whether or not some of that is taken already."""
        if length >= self.period:
            self.begins[:], self.ends[:] = [0], [self.period]
        elif length:
            begin, over = at % self.period, at % self.period + length
            self._insert(begin, min(over, self.period))
            if over > self.period:
                self._insert(0, over - self.period)

    def _insert(self, begin: int, over: int) -> None:
        """Take `[begin, over)` of the circle, joined with what it meets or touches."""
        first, last = bisect_left(self.ends, begin), bisect_right(self.begins, over)
        if first < last:
            begin, over = min(begin, self.begins[first]), max(over, self.ends[last - 1])
        self.begins[first:last], self.ends[first:last] = [begin], [over]
