"""The frames of the depth-first search, and the parts into which what is left falls, each in an order of its own."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from gpumem.base.jit import assign, inner
from gpumem.pool.search._packing import PackingInstance, PackingState, most
from gpumem.trace import F64, I64

FULL_LENGTH_AREA, FULL_AREA_LENGTH, LENGTH_AREA, AREA, END, START = range(6)  # what goes first at one offset
FULL, LENGTH, BYTES, LAST, FIRST = range(5)  # keys: what its fullest section has to place, time, area, end, start
KEYS = (  # by which each of these orders goes, the first one first
    (FULL, LENGTH, BYTES),
    (FULL, BYTES, LENGTH),
    (LENGTH, BYTES, FULL),
    (BYTES, LENGTH, FULL),
    (LAST, LENGTH, BYTES),  # gradients live to the end of the iteration, as a stack of stairs
    (FIRST, LENGTH, BYTES),
)

# Records, and not a `NamedTuple` of columns: 17 arrays fewer to hand over, and the three loops that take them compile
# in 4.8 s instead of 7.1.
Frames: TypeAlias = "np.recarray[Any, Any]"
Waits: TypeAlias = "np.recarray[Any, Any]"
FRAME = [  # one for each buffer that is put, and one more for what is put next
    ("low", np.int64),  # the part is `items[low:high]`
    ("high", np.int64),
    ("first", np.int64),  # its sections are `[first, last)` of the circle
    ("last", np.int64),
    ("back", np.int64),  # the frame that made the part: it goes on where this one fails
    ("waits", np.int64),  # the first of the parts that wait, and how many are kept
    ("kept", np.int64),
    ("begin", np.int64),  # length of the trail when the frame began, and with what was refused since
    ("mark", np.int64),
    ("floor", np.int64),
    ("placed", np.int64),  # buffer, -1 where there is none
    ("under", np.int64),  # where what lies under it begins in `PackingState.under`
    ("over", np.int64),  # whether nothing else is worth a try
]
WAIT = [  # a part that waits for its turn, in a list: the last one that is kept is its head
    ("low", np.int64),
    ("high", np.int64),
    ("first", np.int64),
    ("last", np.int64),
    ("back", np.int64),
    ("next", np.int64),
]


@inner
def _arcs(p: PackingInstance, s: PackingState, first: int, last: int) -> tuple[int, int]:
    """Number the sections between boundaries that nothing crosses; return the first one and how many numbers."""
    n, count, length = p.sections, 0, last - first
    if length == n:  # the whole circle begins where it can be cut
        for t in range(n):
            if s.cross[t] == 0:
                first = t
                break
    for k in range(length):
        t = (first + k) % n
        if k > 0 and s.cross[t] == 0:
            count += 1
        s.group[t] = count
    return first, count + 1


@inner
def split(p: PackingInstance, s: PackingState, w: Waits, f: Frames, at: int, low: int, high: int) -> int:
    """Let the parts into which `items[low:high]` falls wait, the leftmost in front; return how many are kept."""
    kept, head = f[at].kept, f[at].waits
    length = f[at].last - f[at].first
    first, count = _arcs(p, s, f[at].first, f[at].last)
    ends = np.zeros(count + 1, np.int64)
    for j in s.items[low:high]:
        ends[s.group[p.first[j] % p.sections] + 1] += 1
    for g in range(count):
        ends[g + 1] += ends[g]
    sorted_, to = np.empty(high - low, np.int64), ends[:count].copy()
    for j in s.items[low:high]:
        g = s.group[p.first[j] % p.sections]
        sorted_[to[g]] = j
        to[g] += 1
    assign(s.items[low:high], sorted_)
    end, k = length, length
    while k > 0:
        k -= 1
        t = (first + k) % p.sections
        if k > 0 and s.cross[t]:
            continue
        g = s.group[t]
        if ends[g + 1] > ends[g]:
            w[kept].low, w[kept].high, w[kept].next, w[kept].back = low + ends[g], low + ends[g + 1], head, at
            w[kept].first, w[kept].last = t, t + end - k
            head = kept
            kept += 1
        end = k
    return int(kept)


@inner
def rank(p: PackingInstance, s: PackingState, part: I64, order: int, weight: F64) -> None:
    """Put a part in order: by what its fullest section has to place, by length, area, start or end."""
    keys, by = np.empty((5, len(part))), part.copy()
    for k, j in enumerate(part):
        keys[FULL, k] = -most(s.left, p.first[j], p.last[j])
        keys[LENGTH, k] = -(p.last[j] - p.first[j]) * weight[j]
        keys[BYTES, k] = keys[LENGTH, k] * p.size[j]
        keys[LAST, k] = -p.last[j] * weight[j]
        keys[FIRST, k] = p.first[j] * weight[j]
        s.rank[j] = k  # its column of the keys, until all have their rank
    _sort(by, keys, KEYS[order], s.rank)
    for k, j in enumerate(by):
        s.rank[j] = k


@inner
def _sort(by: I64, keys: F64, order: tuple[int, int, int], column: I64) -> None:
    """Sort buffers by three keys, equals by number: Shell's sort, as NumPy's two take three seconds to compile."""
    gap = 1
    while gap < len(by) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, len(by)):
            j, to = by[k], k
            while to >= gap and _before(j, by[to - gap], keys, order, column):
                by[to] = by[to - gap]
                to -= gap
            by[to] = j
        gap //= 3


@inner
def _before(i: int, j: int, keys: F64, order: tuple[int, int, int], column: I64) -> bool:
    for key in order:
        one, other = keys[key, column[i]], keys[key, column[j]]
        if one != other:
            return bool(one < other)
    return i < j  # or the order of a part would depend on how it came about
