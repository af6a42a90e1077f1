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

A step that leads nowhere is taken back, and the buffer *needs* to lie higher from then on. What nothing
rests upon is not lifted. Cut off is what cannot fit (`_packing`). Buffers fall apart into parts that share no section;
each is searched alone, and a failure of one takes none of the others back.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.pool.search._packing import FAR, PackingInstance, PackingState, clear, holds, pile, rest, touch, widen
from gpumem.trace import F64, I64

SOLVED, IMPOSSIBLE, GAVE_UP = 1, 0, -1
AREA, LENGTH, LOAD_AREA, LOAD_LENGTH, END = range(5)  # what goes first at one offset


@inner
def _group(p: PackingInstance, s: PackingState, part: I64) -> int:
    """Number the sections between the cuts, which nothing of the part crosses; return how many numbers there are."""
    n, open_, count = p.sections, 0, 0
    for t in range(n + 1):
        s.cross[t] = 0
    for j in part:  # it crosses the boundaries before its sections, but for the first
        s.cross[p.first[j] + 1] += 1
        s.cross[min(p.last[j], n)] -= 1
        if p.last[j] > n:
            s.cross[0] += 1
            s.cross[p.last[j] - n] -= 1
    for t in range(n):
        open_ += s.cross[t]
        if open_ == 0:
            count += 1
        s.group[t] = count
    for t in range(n):  # what lies before the first cut belongs to what lies after the last
        if s.group[t] > 0:
            break
        s.group[t] = count
    return count


@inner
def _wait(
    p: PackingInstance, s: PackingState, waits: I64, low: int, high: int, back: int, head: int, length: int
) -> int:
    """Bring together what shares no section with the rest; let these parts wait, the smallest in front.

    Returns the new length of the list, the last entry of which is its head.
    """
    count, begin, new = _group(p, s, s.items[low:high]), low, length
    for c in range(count + 1):
        s.cross[c] = 0
    for k in range(low, high):
        s.cross[s.group[p.first[s.items[k]]]] += 1
    for c in range(count + 1):
        if s.cross[c] == 0:  # most cuts have nothing between them
            continue
        end = begin
        for k in range(begin, high):
            j = s.items[k]
            if s.group[p.first[j]] == c:
                s.items[k], s.items[end] = s.items[end], j
                end += 1
        if end > begin:
            k = length
            while k > new and waits[1, k - 1] - waits[0, k - 1] < end - begin:
                waits[0, k], waits[1, k] = waits[0, k - 1], waits[1, k - 1]
                k -= 1
            waits[0, k], waits[1, k] = begin, end
            waits[2, length], waits[3, length] = head, back
            head = length
            length += 1
        begin = end
        if end == high:
            break
    return length


@inner
def _rank(p: PackingInstance, s: PackingState, part: I64, rule: int, noise: F64) -> None:
    """Give each buffer of a part its key: by what remains to place in its fullest section, or without that."""
    largest = 1.0
    for j in part:
        s.key[j] = (p.last[j] - p.first[j]) * noise[j]
        if rule in (AREA, LOAD_AREA):
            s.key[j] *= p.size[j]
        elif rule == END:  # gradients live to the end of the iteration, as a stack of stairs
            s.key[j] = p.last[j] * noise[j] + s.key[j] / p.sections
        largest = max(largest, 2 * s.key[j])
    if rule in (AREA, LENGTH, END):
        return
    for t in range(p.sections):
        s.total[t] = 0
    for j in part:
        pile(p, s, j, 0, p.sections, p.size[j])
    for j in part:
        s.key[j] = pile(p, s, j, 0, p.sections, 0) + s.key[j] / largest


@inner
def _choose(s: PackingState, size: I64, part: I64) -> int:
    """Return the buffer to put next: the lowest, then by key; -1 where none is left.

    None lies above the lowest top there can be: that one could have been put first, below it.
    """
    lowest, best = FAR, -1
    for j in part:
        lowest = min(lowest, max(s.least[j], s.need[j]) + size[j])
    for j in part:
        at = s.least[j]
        if at < s.need[j] or at >= lowest:
            continue
        if best >= 0 and at == s.least[best]:
            if s.key[j] > s.key[best] or (s.key[j] == s.key[best] and j < best):
                best = j
        elif best < 0 or at < s.least[best]:
            best = j
    return best


@inner
def _set(s: PackingState, trail: I64, mark: int, j: int, least: int, need: int) -> int:
    """Change a buffer's row and note what it was."""
    if least != s.least[j] or need != s.need[j]:
        trail[0, mark], trail[1, mark], trail[2, mark] = j, s.least[j], s.need[j]
        s.least[j], s.need[j] = least, need
        mark += 1
    return mark


@inner
def _put(
    p: PackingInstance, s: PackingState, part: I64, i: int, trail: I64, mark: int
) -> tuple[int, bool, tuple[int, int]]:
    """Place `i`: what meets it lies above it, and what could lie lower needs to rest on something else.

    Returns the length of the trail, whether anything rests upon `i` (if not, nothing is gained by lifting `i`), and
    the sections where something rose.
    """
    at, carries, window = s.least[i], False, (p.sections, 0)
    for j in part:
        if j == i:
            continue
        if s.least[j] < at + p.size[i] and touch(p, i, j):
            mark, carries = _set(s, trail, mark, j, clear(p, j, at + p.size[i]), s.need[j]), True
        elif s.least[j] < at and s.need[j] < at:
            mark = _set(s, trail, mark, j, s.least[j], rest(p, s, part, j, at))
        else:
            continue
        window = widen(p, window, j)
    return mark, carries, window


@inner
def _refute(
    p: PackingInstance, s: PackingState, part: I64, i: int, trail: I64, mark: int
) -> tuple[int, tuple[int, int]]:
    """Neither `i` nor what is like it lies where `i` was put; return the trail's length, and where something rose."""
    at, window = s.least[i], (p.sections, 0)
    for j in part:
        if p.twin[j] == p.twin[i] and s.need[j] <= at:
            mark = _set(s, trail, mark, j, s.least[j], rest(p, s, part, j, at))
            window = widen(p, window, j)
    return mark, window


@inner
def _take_back(s: PackingState, trail: I64, mark: int, until: int) -> int:
    while mark > until:
        mark -= 1
        j = trail[0, mark]
        s.least[j], s.need[j] = trail[1, mark], trail[2, mark]
    return mark


@inner
def _room(trail: I64, mark: int, more: int) -> I64:
    """Return a trail with room for `more` entries."""
    if mark + more <= trail.shape[1]:
        return trail
    longer = np.empty((3, 2 * (mark + more)), np.int64)
    for k in range(mark):
        longer[0, k], longer[1, k], longer[2, k] = trail[0, k], trail[1, k], trail[2, k]
    return longer


@inner
def _remove(part: I64, i: int) -> None:
    """Move `i` to the end of its part."""
    k = 0
    while part[k] != i:
        k += 1
    while k + 1 < len(part):
        part[k] = part[k + 1]
        k += 1
    part[len(part) - 1] = i


@inner
def _next(
    p: PackingInstance, s: PackingState, frame: I64, f: int, trail: I64, mark: int, top: int
) -> tuple[int, int, I64, int]:
    """Go back from frame to frame until one has another buffer to put; return which, what, the trail, its length."""
    while f >= 0:
        part = s.items[frame[0, f] : frame[1, f]]
        mark, i, fits = _take_back(s, trail, mark, frame[3, f]), frame[6, f], True
        trail = _room(trail, mark, 2 * len(part))
        if i >= 0 and frame[7, f] == 0:
            fits = False
        elif i >= 0:
            mark, window = _refute(p, s, part, i, trail, mark)
            frame[3, f], fits = mark, holds(p, s, part, top, window)
        i = _choose(s, p.size, part) if fits else -1
        if i >= 0:
            return f, i, trail, mark
        f = frame[2, f]
    return f, -1, trail, mark


@jit
def _search(
    p: PackingInstance,
    s: PackingState,
    frame: I64,
    waits: I64,
    rule: int,
    every: bool,
    noise: F64,
    fails: int,
    work: int,
    offset: I64,
) -> tuple[int, int]:
    """Search; the rows of `frame` and `waits`:

    `frame`: 0, 1 its part, a stretch of `items`; 2 the frame to go back to; 3 the length of the trail; 4 the first
    part that waits; 5 the length of their list; 6 what was put, -1 before; 7 whether anything rests upon that.
    `waits`: 0, 1 its stretch; 2 the part that waits next; 3 the frame to go back to.
    """
    count, trail = len(p.size), np.empty((3, 0), np.int64)
    for j in range(count):
        s.least[j] = clear(p, j, 0)
    low, high, back, f, head, length, mark, spent = 0, count, -1, -1, -1, 0, 0, 0
    cost = 0
    for j in range(count):
        cost += p.last[j] - p.first[j]
    top, window = 0, (0, p.sections)
    for ceiling in p.ceiling:
        top = max(top, ceiling)
    while True:
        part, before = s.items[low:high], length
        spent += 4 * len(part) + cost * len(part) // max(count, 1)
        if holds(p, s, part, top, window):
            if len(part):
                length = _wait(p, s, waits, low, high, back, head, length)
                head = length - 1
            if head < 0:
                return SOLVED, spent
            if every or back < 0 or length > before + 1:
                _rank(p, s, part, rule, noise)
            f += 1
            frame[0, f], frame[1, f], frame[2, f] = waits[0, head], waits[1, head], waits[3, head]
            frame[3, f], frame[4, f], frame[5, f], frame[6, f] = mark, waits[2, head], length, -1
        else:
            fails -= 1
            f = back
        if fails < 0 or spent > work:
            return GAVE_UP, spent
        f, i, trail, mark = _next(p, s, frame, f, trail, mark, top)
        if f < 0:
            return IMPOSSIBLE, spent
        head, length, low, high, back = frame[4, f], frame[5, f], frame[0, f], frame[1, f] - 1, f
        frame[6, f], offset[i] = i, s.least[i]
        part = s.items[low : high + 1]
        mark, carries, window = _put(p, s, part, i, trail, mark)
        frame[7, f] = carries
        _remove(part, i)


def pack(
    p: PackingInstance, rule: int, every: bool, noise: F64, *, fails: int, work: int, blame: F64 | None = None
) -> tuple[int, int, I64]:
    """Look for offsets below the ceilings; return `SOLVED`, `IMPOSSIBLE` or `GAVE_UP`, the work done, the offsets.

    Gives up after `fails` failures or when about `work` buffers and sections were looked at. `every`: rank at each
    step, not only where a part falls apart. What stands in the way is added to `blame`, in place. Deterministic.
    Exact: `IMPOSSIBLE` means that there is no placement.
    """
    count, n = len(p.size), p.sections + 1
    least, need, bound, offset = np.zeros((4, count), np.int64)
    total, group, cross = np.zeros((3, n), np.int64)
    blame = np.zeros(count) if blame is None else blame
    s = PackingState(least, need, bound, np.zeros(count), np.arange(count), total, group, cross, blame)
    frame, waits = np.zeros((8, count + 1), np.int64), np.zeros((4, 2 * count + 1), np.int64)
    status, spent = _search(p, s, frame, waits, rule, every, noise, fails, work, offset)
    return status, spent, offset
