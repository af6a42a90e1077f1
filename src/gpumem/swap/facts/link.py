"""When a link is taken, on the circle of one iteration: the earliest and the latest time for one more copy.

The circle is cut into equal parts, and each keeps its own taken times, so one more copy moves few of them::

    part         0                   1                   2
    taken    |  ====   ======|======== ==   |              |      what reaches over a cut is noted on both sides
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.display import Facts, Shown
from gpumem.base.jit import inner, jit
from gpumem.trace import I64

PARTS = 512  # a copy moves the 512th part of the times, an empty link is looked through in as many steps


class Taken(NamedTuple):
    """The columns that compiled loops read and write."""

    begins: I64  # parts x room: taken times of each part, disjoint, ascending
    ends: I64
    many: I64  # parts: how many there are
    period: int
    least: int
    width: int  # ns of a part


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
        width = period // PARTS + 1
        parts = period // width + 1
        begins, ends = np.zeros((2, parts, 4), np.int64)
        self.columns = Taken(begins, ends, np.zeros(parts, np.int64), period, least, width)

    @property
    def taken(self) -> list[tuple[int, int]]:
        """The taken times: disjoint, ascending, no two that meet."""
        v = self.columns
        here = np.arange(v.begins.shape[1]) < v.many[:, None]
        begins, ends = v.begins[here], v.ends[here]
        apart = np.flatnonzero(ends[:-1] < begins[1:])
        return list(zip(begins[[0, *(apart + 1)]].tolist(), ends[[*apart, -1]].tolist())) if len(begins) else []

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
            most = v.begins.shape[1]
            grown = np.zeros((2, len(v.many), 2 * (most + copies)), np.int64)  # pages that nobody writes cost nothing
            grown[:, :, :most] = v.begins, v.ends
            self.columns = v._replace(begins=grown[0], ends=grown[1])


@jit
def room(v: Taken) -> int:
    """How many copies more `take` can note, wherever they are."""
    return int(v.begins.shape[1] - v.many.max() - 1) // 2  # one that wraps is two


@jit
def earliest(v: Taken, start: int, stop: int, length: int) -> int:
    """As `LinkTimes.earliest`, for compiled loops."""
    at, base = start, start - start % max(v.period, 1)
    part = (start - base) // v.width
    k = int(np.searchsorted(v.ends[part, : v.many[part]], start - base, side="right"))
    while at + length <= stop and length <= v.period:
        if k < v.many[part]:
            if at + length <= base + v.begins[part, k] and (length or k or not _goes_on(v, part)):
                return at
            at = base + v.ends[part, k]
            k += 1
            continue
        if at + max(length, 1) <= base + min((part + 1) * v.width, max(v.period, 1)):  # the rest of the part is free
            return at
        part, k = part + 1, 0
        if part == len(v.many):
            part, base = 0, base + v.period
    return -1


@jit
def latest(v: Taken, start: int, stop: int, length: int) -> int:
    """As `LinkTimes.latest`, for compiled loops."""
    over, base = stop, stop - 1 - (stop - 1) % max(v.period, 1)
    part = (stop - 1 - base) // v.width
    k = int(np.searchsorted(v.begins[part, : v.many[part]], stop - base)) - 1
    while over - length >= start and length <= v.period:
        if k >= 0:
            last = k == v.many[part] - 1
            if base + v.ends[part, k] <= over - length and (length or not last or not _goes_on(v, part + 1)):
                return over - length
            over = base + v.begins[part, k]
            k -= 1
            continue
        if base + part * v.width <= over - max(length, 1):
            return over - length
        part -= 1
        if part < 0:
            part, base = len(v.many) - 1, base - v.period
        k = int(v.many[part]) - 1
    return -1


@inner
def _goes_on(v: Taken, part: int) -> bool:
    """Whether a taken time reaches over the cut before this part, where not even 0 ns are free."""
    if not 0 < part < len(v.many) or not v.many[part] or not v.many[part - 1]:
        return False
    return bool(v.begins[part, 0] == v.ends[part - 1, v.many[part - 1] - 1])


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
    """Take `[begin, over)` of the circle, if that is any time."""
    part = begin // v.width
    while begin < over:
        stop = min(over, (part + 1) * v.width)
        _insert_in(v, part, begin, stop)
        begin, part = stop, part + 1


@inner
def _insert_in(v: Taken, part: int, begin: int, over: int) -> None:
    """Take `[begin, over)` of a part, joined with what it meets and what is too close."""
    begins, ends, count, near = v.begins[part], v.ends[part], v.many[part], max(v.least, 1) - 1
    first = np.searchsorted(ends[:count], begin - near)
    last = np.searchsorted(begins[:count], over + near, side="right")
    if first < last:
        begin, over = min(begin, begins[first]), max(over, ends[last - 1])
        for k in range(last, count):
            begins[k - last + first + 1], ends[k - last + first + 1] = begins[k], ends[k]
    else:
        for k in range(count, first, -1):
            begins[k], ends[k] = begins[k - 1], ends[k - 1]
    begins[first], ends[first] = begin, over
    v.many[part] = count + 1 - (last - first if first < last else 0)
