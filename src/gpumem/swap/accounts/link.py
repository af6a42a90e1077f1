"""When a link is taken, on the circle of one iteration: the earliest and the latest time for one more copy."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from gpumem._show import Shown


@dataclass(slots=True, repr=False)
class LinkTimes(Shown):
    """Which times of the circle `[0, period)` a link is taken; times that are asked for may lie turns ahead.

    `begins`, `ends`: disjoint, ascending. Nobody will ask for less than `least` ns, so shorter holes count as taken.

    Examples
    --------
    >>> link = LinkTimes(100)
    >>> link.take(90, 20)
    >>> link.earliest(80, 130, 15), link.latest(80, 130, 15), link.latest(80, 200, 15), link.earliest(85, 120, 15)
    (110, 115, 175, -1)
    """

    period: int
    least: int = 1
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def earliest(self, start: int, stop: int, length: int) -> int:
        """Return when the earliest free `length` ns within `[start, stop)` begin, -1 if there are none."""
        at, base = start, start - start % max(self.period, 1)
        k = bisect_right(self.ends, start - base)
        while at + length <= stop and length <= self.period:
            if k == len(self.ends):  # nothing more is taken in this turn
                k, base = 0, base + self.period
            if not self.ends or at + length <= base + self.begins[k]:
                return at
            at = base + self.ends[k]
            k += 1
        return -1

    def latest(self, start: int, stop: int, length: int) -> int:
        """Return when the latest free `length` ns within `[start, stop)` begin, -1 if there are none."""
        over, base = stop, stop - 1 - (stop - 1) % max(self.period, 1)
        k = bisect_left(self.begins, stop - base) - 1
        while over - length >= start and length <= self.period:
            if k < 0:  # nothing more is taken in this turn
                k, base = len(self.ends) - 1, base - self.period
            if not self.ends or base + self.ends[k] <= over - length:
                return over - length
            over = base + self.begins[k]
            k -= 1
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
        """Take `[begin, over)` of the circle, joined with what it meets and what is too close."""
        near = max(self.least, 1) - 1
        first, last = bisect_left(self.ends, begin - near), bisect_right(self.begins, over + near)
        if first < last:
            begin, over = min(begin, self.begins[first]), max(over, self.ends[last - 1])
        self.begins[first:last], self.ends[first:last] = [begin], [over]
