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
        v = self.columns
        return list(zip(*(column[: v.many[0]].tolist() for column in (v.begins, v.ends))))

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
        v = self.columns
        if room(v) < copies:
            grown = np.zeros((2, 2 * (len(v.begins) + copies)), np.int64)
            grown[:, : len(v.begins)] = v.begins, v.ends
            self.columns = v._replace(begins=grown[0], ends=grown[1])


@jit
def room(v: Taken) -> int:
    """How many copies more `take` can note."""
    return int(len(v.begins) - v.many[0]) // 2  # one that wraps is two


@jit
def earliest(v: Taken, start: int, stop: int, length: int) -> int:
    """As `LinkTimes.earliest`, for compiled loops."""
    at, base, many = start, start - start % max(v.period, 1), v.many[0]
    k = int(np.searchsorted(v.ends[:many], start - base, side="right"))
    while at + length <= stop and length <= v.period:
        if k == many:
            k, base = 0, base + v.period
        if many == 0 or at + length <= base + v.begins[k]:
            return at
        at = base + v.ends[k]
        k += 1
    return -1


@jit
def latest(v: Taken, start: int, stop: int, length: int) -> int:
    """As `LinkTimes.latest`, for compiled loops."""
    over, base, many = stop, stop - 1 - (stop - 1) % max(v.period, 1), v.many[0]
    k = int(np.searchsorted(v.begins[:many], stop - base)) - 1
    while over - length >= start and length <= v.period:
        if k < 0:
            k, base = many - 1, base - v.period
        if many == 0 or base + v.ends[k] <= over - length:
            return over - length
        over = base + v.begins[k]
        k -= 1
    return -1


@jit
def take(v: Taken, at: int, length: int) -> None:
    """As `LinkTimes.take`, for compiled loops; there must be `room`."""
    if length >= v.period:
        _insert(v, 0, v.period)
    elif length:
        begin, over = at % v.period, at % v.period + length
        _insert(v, begin, min(over, v.period))
        _insert(v, 0, over - v.period)


@inner
def _insert(v: Taken, begin: int, over: int) -> None:
    """Take `[begin, over)`, if that is any time, joined with what it meets and what is too close."""
    many, near = v.many[0], max(v.least, 1) - 1
    if begin >= over:
        return
    first = np.searchsorted(v.ends[:many], begin - near)
    last = np.searchsorted(v.begins[:many], over + near, side="right")
    if first < last:
        begin, over = min(begin, v.begins[first]), max(over, v.ends[last - 1])
    v.many[0] = many + 1 - (last - first)
    for column, time in ((v.begins, begin), (v.ends, over)):
        if first < last:
            assign(column[first + 1 :], column[last:many])
        else:  # all make way by one, the last one first
            for k in range(many, first, -1):
                column[k] = column[k - 1]
        column[first] = time
