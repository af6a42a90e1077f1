"""The frames of the depth-first search, and the parts into which what is left falls, each in an order of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner
from gpumem.pool.search._packing import PackingInstance, PackingState, most
from gpumem.trace import F64, I64

FULL_LENGTH_AREA, FULL_AREA_LENGTH, LENGTH_AREA, AREA, END, START = range(6)  # what goes first at one offset


class Frames(NamedTuple):
    """A row for each buffer that is put, and one more for what is put next."""

    low: I64  # the part is `items[low:high]`
    high: I64
    first: I64  # its sections are `[first, last)` of the circle
    last: I64
    back: I64  # the frame that made the part: it goes on where this one fails
    waits: I64  # the first of the parts that wait, and how many are kept
    kept: I64
    begin: I64  # length of the trail when the frame began, and with what was refused since
    mark: I64
    floor: I64
    placed: I64  # buffer, -1 where there is none
    under: I64  # where what lies under it begins in `PackingState.under`
    over: I64  # whether nothing else is worth a try


class Waits(NamedTuple):
    """Parts that wait for their turn, a list: the last one that is kept is its head."""

    low: I64
    high: I64
    first: I64
    last: I64
    back: I64
    next: I64


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
    kept, head = f.kept[at], f.waits[at]
    length = f.last[at] - f.first[at]
    first, count = _arcs(p, s, f.first[at], f.last[at])
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
    s.items[low:high] = sorted_
    end, k = length, length
    while k > 0:
        k -= 1
        t = (first + k) % p.sections
        if k > 0 and s.cross[t]:
            continue
        g = s.group[t]
        if ends[g + 1] > ends[g]:
            w.low[kept], w.high[kept], w.next[kept], w.back[kept] = low + ends[g], low + ends[g + 1], head, at
            w.first[kept], w.last[kept] = t, t + end - k
            head = kept
            kept += 1
        end = k
    return int(kept)


@inner
def rank(p: PackingInstance, s: PackingState, part: I64, order: int, weight: F64) -> None:
    """Put a part in order: by what its fullest section has to place, by length, area, start or end."""
    full, length, area = np.empty((3, len(part)))
    for k, j in enumerate(part):
        full[k] = -most(s.left, p.first[j], p.last[j])
        length[k] = -(p.last[j] - p.first[j]) * weight[j]
        area[k] = length[k] * p.size[j]
    by = np.argsort(part)  # equals go by number
    if order == FULL_LENGTH_AREA:
        keys = (area, length, full)
    elif order == FULL_AREA_LENGTH:
        keys = (length, area, full)
    elif order == LENGTH_AREA:
        keys = (full, area, length)
    elif order == AREA:
        keys = (full, length, area)
    elif order == END:  # gradients live to the end of the iteration, as a stack of stairs
        keys = (area, length, -p.last[part] * weight[part])
    else:
        keys = (area, length, p.first[part] * weight[part])
    for key in keys:
        by = by[np.argsort(key[by], kind="mergesort")]
    for k in range(len(part)):
        s.rank[part[by[k]]] = k
