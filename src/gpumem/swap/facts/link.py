"""When a link is taken, on the circle of one iteration: the earliest and the latest time for one more copy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.display import Facts, Shown
from gpumem.base.jit import assign, inner, jit
from gpumem.trace import I64


class Taken(NamedTuple):
    """The columns that compiled loops read and write."""

    begins: I64  # taken times, disjoint, ascending, no two that meet; what is behind them is room for more
    ends: I64
    many: I64  # int64[1]: how many there are
    period: int
    least: int


class LinkTimes(Shown):
    """Which times of the circle `[0, period)` a link is taken; times that are asked for may lie turns ahead.

    Nobody will ask for less than `least` ns, so shorter holes may count as taken.

    Examples
    --------
    >>> link = LinkTimes(100)
    >>> link.take(90, 20)
    >>> link.earliest(80, 130, 15), link.latest(80, 130, 15), link.latest(80, 200, 15), link.earliest(85, 120, 15)
    (110, 115, 175, -1)
    >>> link.taken
    [(0, 10), (90, 100)]
    """

    def __init__(self, period: int, least: int = 1) -> None:
        begins, ends = np.zeros((2, 4), np.int64)
        self.columns = Taken(begins, ends, np.zeros(1, np.int64), period, least)

    @property
    def taken(self) -> list[tuple[int, int]]:
        """The taken times: disjoint, ascending, no two that meet."""
        columns = self.columns
        return list(zip(*(column[: columns.many[0]].tolist() for column in (columns.begins, columns.ends))))

    def _facts(self) -> Facts:
        return {"period": self.columns.period, "taken": len(self.taken)}

    def earliest(self, start: int, stop: int, length: int) -> int:
        """Return when the earliest free `length` ns within `[start, stop)` begin, -1 if there are none."""
        return int(earliest(self.columns, start, stop, length))

    def latest(self, start: int, stop: int, length: int) -> int:
        """Return when the latest free `length` ns within `[start, stop)` begin, -1 if there are none."""
        return int(latest(self.columns, start, stop, length))

    def take(self, at: int, length: int) -> None:
        """Take `length` ns from `at` on, whether or not some of that is taken already."""
        self.reserve(1)
        take(self.columns, at, length)

    def reserve(self, copies: int) -> None:
        """Make room for so many copies more, so that compiled loops can take times for them; O(times) if it grows."""
        columns = self.columns
        if room(columns) < copies:
            grown = np.zeros((2, 2 * (len(columns.begins) + copies)), np.int64)
            grown[:, : len(columns.begins)] = columns.begins, columns.ends
            self.columns = columns._replace(begins=grown[0], ends=grown[1])


@jit
def room(taken: Taken) -> int:
    """How many copies more `take` can note."""
    return int(len(taken.begins) - taken.many[0]) // 2  # one that wraps is two


@jit
def earliest(taken: Taken, start: int, stop: int, length: int) -> int:
    """As `LinkTimes.earliest`, for compiled loops."""
    begin, turn_start, count = start, start - start % max(taken.period, 1), taken.many[0]
    hole = int(np.searchsorted(taken.ends[:count], start - turn_start, side="right"))
    while begin + length <= stop and length <= taken.period:
        if hole == count:
            hole, turn_start = 0, turn_start + taken.period
        if count == 0 or begin + length <= turn_start + taken.begins[hole]:
            return begin
        begin = turn_start + taken.ends[hole]
        hole += 1
    return -1


@jit
def latest(taken: Taken, start: int, stop: int, length: int) -> int:
    """As `LinkTimes.latest`, for compiled loops."""
    end, turn_start, count = stop, stop - 1 - (stop - 1) % max(taken.period, 1), taken.many[0]
    hole = int(np.searchsorted(taken.begins[:count], stop - turn_start)) - 1
    while end - length >= start and length <= taken.period:
        if hole < 0:
            hole, turn_start = count - 1, turn_start - taken.period
        if count == 0 or turn_start + taken.ends[hole] <= end - length:
            return end - length
        end = turn_start + taken.begins[hole]
        hole -= 1
    return -1


@jit
def take(taken: Taken, at: int, length: int) -> None:
    """As `LinkTimes.take`, for compiled loops; there must be `room`."""
    if length >= taken.period:
        _insert(taken, 0, taken.period)
    elif length:
        begin, end = at % taken.period, at % taken.period + length
        _insert(taken, begin, min(end, taken.period))
        _insert(taken, 0, end - taken.period)


@inner
def _insert(taken: Taken, begin: int, end: int) -> None:
    """Take `[begin, over)`, if that is any time, joined with what it meets and what is too close."""
    count, too_close = taken.many[0], max(taken.least, 1) - 1
    if begin >= end:
        return
    first = np.searchsorted(taken.ends[:count], begin - too_close)
    last = np.searchsorted(taken.begins[:count], end + too_close, side="right")
    if first < last:
        begin, end = min(begin, taken.begins[first]), max(end, taken.ends[last - 1])
    taken.many[0] = count + 1 - (last - first)
    for column, time in ((taken.begins, begin), (taken.ends, end)):
        if first < last:
            assign(column[first + 1 :], column[last:count])
        else:  # all make way by one, the last one first
            for row in range(count, first, -1):
                column[row] = column[row - 1]
        column[first] = time
