"""Depth-first search for a placement below given ceilings; compiled loops over bare arrays.

Any placement can be let down until each buffer lies at the bottom or on another, and then be built from the lowest
offset up. So a step puts one of the buffers whose *least* offset (the top of what lies under it) is low enough::

    address ^        +------+
            |        |  C   |        C's least offset is the top of B
            |   +----+--+---+
            |   |   B   |   | D      D could go lower than C: D comes first,
            |   +---+---+   |        or it needs to rest on something that is not there yet
            |   | A |       |
            +---+---+-------+------> time, in sections: nothing begins or ends inside one

Each frame of the search has a part of the buffers to place, none below its *floor*, the offset of the frame before. Of
those that can go lowest it puts one, by the order of the part. If that leads nowhere the buffer is *refused* there, and
another is put. What shares no section with the rest is searched apart, from the bottom, in an order of its own.
`_packing` has the rules that cut off what cannot fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.pool.search._packing import (
    ALIKE,
    ALL,
    BENEATH,
    FAR,
    FREE,
    LOOK,
    PARTS,
    PILE,
    REFUSED,
    UNIT,
    PackingInstance,
    PackingState,
    add,
    bind,
    clear,
    count_options,
    fewest,
    flush,
    holds,
    most,
    touch,
    widen,
)
from gpumem.trace import F64, I64

SOLVED, IMPOSSIBLE, GAVE_UP = 1, 0, -1
FULL_LENGTH_AREA, FULL_AREA_LENGTH, LENGTH_AREA, AREA, END, START = range(6)  # what goes first at one offset
IN_ORDER, FEWEST, LEVEL = range(3)  # which of those that can go lowest: see `_choose`


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
def _split(p: PackingInstance, s: PackingState, w: Waits, f: Frames, at: int, low: int, high: int) -> int:
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
def _rank(p: PackingInstance, s: PackingState, part: I64, order: int, weight: F64) -> None:
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


@inner
def _room(trail: I64, mark: int, more: int) -> I64:
    """Return a trail with room for `more` entries."""
    if mark + more <= trail.shape[1]:
        return trail
    longer = np.empty((4, 2 * (mark + more)), np.int64)
    longer[:, :mark] = trail[:, :mark]
    return longer


@inner
def _note(s: PackingState, trail: I64, mark: int, j: int) -> int:
    """Write down a buffer's row before it changes."""
    trail[0, mark], trail[1, mark], trail[2, mark], trail[3, mark] = j, s.least[j], s.need[j], s.rank[j]
    return mark + 1


@inner
def _take_back(s: PackingState, trail: I64, mark: int, until: int) -> int:
    while mark > until:
        mark -= 1
        j = trail[0, mark]
        s.least[j], s.need[j], s.rank[j] = trail[1, mark], trail[2, mark], trail[3, mark]
    return mark


@inner
def _count(p: PackingInstance, s: PackingState, i: int, sign: int) -> bool:
    """Count a buffer as placed, with -1, or not; return whether a boundary is crossed by nothing now."""
    add(s.left, p.first[i], p.last[i], sign * p.size[i])
    return bool(add(s.cross, p.first[i] + 1, p.last[i], sign))


@inner
def _lay(p: PackingInstance, s: PackingState, f: Frames, at: int) -> bool:
    """Place a frame's buffer; return whether a boundary is crossed by nothing now."""
    i, k = f.placed[at], f.under[at]
    for t in range(p.first[i], p.last[i]):
        section = t - p.sections if t >= p.sections else t
        s.under[k] = s.top[section]
        s.top[section] = s.least[i] + p.size[i]
        k += 1
    f.under[at + 1] = k
    return _count(p, s, i, -1)


@inner
def _lift(p: PackingInstance, s: PackingState, f: Frames, at: int) -> int:
    """Take back a frame's buffer, the last one placed; return which."""
    i, k = f.placed[at], f.under[at]
    for t in range(p.first[i], p.last[i]):
        s.top[t - p.sections if t >= p.sections else t] = s.under[k]
        k += 1
    _count(p, s, i, 1)
    f.placed[at] = -1
    return int(i)


@inner
def _lowest(p: PackingInstance, s: PackingState, part: I64, floor: int, rules: int) -> int:
    """Return the buffer that can go lowest, the first by order; -1 where there is none, or another fits below it."""
    beneath, best = FAR, -1
    for j in part:
        at = s.least[j]
        beneath = min(beneath, at + p.size[j])
        if at < floor or at < s.need[j]:
            continue
        if best < 0 or at < s.least[best] or (at == s.least[best] and s.rank[j] < s.rank[best]):
            best = j
    return -1 if best >= 0 and rules & BENEATH and s.least[best] >= beneath else best


@inner
def _choose(p: PackingInstance, s: PackingState, f: Frames, at: int, i: int, top: int, rules: int, how: int) -> int:
    """Return the buffer to put instead of `i`, at the same offset: where fewest can be the lowest in some section.

    What stands in one section's way is found out there, before anything is built elsewhere. Ties go to what would end
    level with something else, if that is asked for, and then by order.
    """
    part, offset = s.items[f.low[at] : f.high[at]], s.least[i]
    if bind(p, s, part, f.floor[at], rules, (0, 0))[1] > 0:
        s.slack[:] = -1
    count_options(p, s, part, top)
    best, options, rank = i, FAR, FAR
    for j in part:
        if s.least[j] != offset or offset < s.need[j]:
            continue
        found = fewest(p, s, j)
        if found > options:
            continue
        place = s.rank[j]
        if how == LEVEL:
            place -= flush(p, s, j, f.first[at], f.last[at], top) * len(p.size)
        if found < options or place < rank:
            best, options, rank = j, found, place
    return best


@inner
def _refuse(
    p: PackingInstance, s: PackingState, part: I64, i: int, trail: I64, mark: int, rules: int
) -> tuple[int, tuple[int, int]]:
    """Note that `i` led nowhere where it was put, nor does what is like it; return the trail's length, its sections."""
    for j in part:
        if j == i or (rules & ALIKE and p.twin[j] == p.twin[i] and s.least[j] == s.least[i]):
            mark = _note(s, trail, mark, j)
            s.need[j] = s.least[i] + 1
    return mark, widen(p, (p.sections, 0), i)


@inner
def _remove(part: I64, i: int) -> None:
    """Move `i` to the end of its part."""
    k = 0
    while part[k] != i:
        k += 1
    part[k], part[len(part) - 1] = part[len(part) - 1], i


@inner
def _put(
    p: PackingInstance, s: PackingState, part: I64, i: int, trail: I64, mark: int
) -> tuple[int, bool, tuple[int, int]]:
    """Let what meets `i` lie above it; return the trail's length, whether that fits, and the sections of what rose."""
    top, window = s.least[i] + p.size[i], (p.sections, 0)
    for j in part:
        if s.least[j] < top and touch(p, i, j):
            mark = _note(s, trail, mark, j)
            s.least[j] = clear(p, j, top)
            if s.least[j] + p.size[j] > p.ceiling[j]:
                return mark, False, window
            window = widen(p, window, j)
    return mark, True, window


@inner
def _next(
    p: PackingInstance, s: PackingState, f: Frames, at: int, trail: I64, mark: int, top: int, rules: int, how: int
) -> tuple[int, int, I64, int]:
    """Go back until a frame has another buffer to put; return frame, buffer, the trail and its length."""
    while at >= 0:
        part, i = s.items[f.low[at] : f.high[at]], f.placed[at]
        trail = _room(trail, mark, 2 * len(part))
        if i >= 0:
            mark = _take_back(s, trail, mark, f.mark[at])
            _lift(p, s, f, at)
            s.slack[:] = -1  # more is to be placed than when it was found out
            s.spent[0] += LOOK * len(part)
            mark, window = _refuse(p, s, part, i, trail, mark, rules)
            f.mark[at] = mark
            if rules & REFUSED and not f.over[at]:
                window, rise = bind(p, s, part, f.floor[at], rules, window)
                f.over[at] = not holds(p, s, part, top, window, rise)
        if not f.over[at]:
            i = _lowest(p, s, part, f.floor[at], rules)
            if i >= 0 and how != IN_ORDER:
                i = _choose(p, s, f, at, i, top, rules, how)
            if i >= 0:
                return at, i, trail, mark
        mark = _take_back(s, trail, mark, f.begin[at])
        back, at = f.back[at], at - 1
        while at > back:  # parts beside the one that failed
            _lift(p, s, f, at)
            at -= 1
    return at, -1, trail, mark


@inner
def _go_on(
    p: PackingInstance,
    s: PackingState,
    f: Frames,
    at: int,
    w: Waits,
    trail: I64,
    mark: int,
    order: int,
    weight: F64,
    cut: bool,
) -> tuple[int, I64, int]:
    """Begin the next frame: of what is left of the part, of the first of the parts it falls into, or of one that waits.

    Returns -1 where nothing is left; the trail and its length.
    """
    low, high, new = f.low[at], f.high[at] - (at >= 0), at + 1
    if low < high and not cut:
        f.low[new], f.high[new], f.first[new], f.last[new] = low, high, f.first[at], f.last[at]
        f.back[new], f.waits[new], f.kept[new] = at, f.waits[at], f.kept[at]
        f.floor[new], f.begin[new] = s.least[f.placed[at]], mark
    else:
        head = _split(p, s, w, f, at, low, high) - 1 if low < high else f.waits[at]
        if head < 0:
            return -1, trail, mark
        f.low[new], f.high[new], f.first[new], f.last[new] = w.low[head], w.high[head], w.first[head], w.last[head]
        f.back[new], f.waits[new], f.kept[new] = w.back[head], w.next[head], head + 1
        f.floor[new], f.begin[new] = 0, mark
        part = s.items[f.low[new] : f.high[new]]
        trail = _room(trail, mark, len(part))
        for j in part:
            mark = _note(s, trail, mark, j)
            s.need[j] = 0
        _rank(p, s, part, order, weight)
    f.mark[new], f.placed[new], f.over[new] = mark, -1, 0
    return new, trail, mark


@jit
def _search(
    p: PackingInstance,
    s: PackingState,
    f: Frames,
    w: Waits,
    order: int,
    how: int,
    rules: int,
    weight: F64,
    nodes: int,
    work: int,
    offset: I64,
) -> int:
    """Search; see `pack`. Returns how it ended."""
    count, n, trail, mark, top = len(p.size), p.sections, np.empty((4, 0), np.int64), 0, 0
    for j in range(count):
        s.least[j] = clear(p, j, 0)
        if s.least[j] + p.size[j] > p.ceiling[j]:
            return IMPOSSIBLE
        _count(p, s, j, 1)
        top = max(top, p.ceiling[j])
    # before all frames, at -1, is one more, the last row: it put nothing, and all is left
    f.high[-1], f.last[-1], f.waits[-1], cut = count, n, -1, True
    s.slack[:] = -1
    if rules & PILE and not holds(p, s, s.items, top, (0, n), bind(p, s, s.items, 0, rules, (0, 0))[1]):
        return IMPOSSIBLE
    at = -1
    while True:
        at, trail, mark = _go_on(p, s, f, at, w, trail, mark, order, weight, cut)
        if at < 0:
            return SOLVED
        good = False
        while not good:
            at, i, trail, mark = _next(p, s, f, at, trail, mark, top, rules, how)
            if at < 0:
                return IMPOSSIBLE
            part = s.items[f.low[at] : f.high[at]]
            nodes -= 1
            s.spent[0] += LOOK * len(part)
            if nodes < 0 or s.spent[0] > work:
                return GAVE_UP
            f.placed[at], offset[i] = i, s.least[i]
            _remove(part, i)
            part = part[: len(part) - 1]
            cut = _lay(p, s, f, at) and rules & PARTS != 0
            mark, good, window = _put(p, s, part, i, trail, mark)
            f.over[at] = good and rules & FREE and window[0] > window[1]
            if good and rules & PILE:
                window, rise = bind(p, s, part, offset[i], rules, window)
                good = holds(p, s, part, top, window, rise)


def pack(
    p: PackingInstance,
    order: int,
    how: int,
    weight: F64,
    *,
    nodes: int,
    work: int,
    rules: int = ALL,
) -> tuple[int, int, I64]:
    """Look for offsets below the ceilings; return `SOLVED`, `IMPOSSIBLE` or `GAVE_UP`, the work done, the offsets.

    Gives up after `nodes` buffers were put, or when about `work` buffers and sections were looked at. `weight`: of each
    buffer in the order. Deterministic. Exact by each set of `rules`: `IMPOSSIBLE` means that there is no placement.
    """
    count, n = len(p.size), p.sections
    b, t = np.zeros((4, count), np.int64), np.zeros((9, n + 1), np.int64)
    under = np.zeros(int((p.last - p.first).sum()), np.int64)
    rows = (*b, np.arange(count), *t[:5, :n], under, np.zeros(1, np.int64), *t[5:])
    s = PackingState(*rows)
    f, w = Frames(*np.zeros((13, count + 1), np.int64)), Waits(*np.zeros((6, count + 1), np.int64))
    offset = np.zeros(count, np.int64)
    status = _search(p, s, f, w, order, how, rules, weight, nodes, UNIT * min(work, FAR // UNIT), offset)
    return status, int(s.spent[0]) // UNIT, offset
