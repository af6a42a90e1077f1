"""What the depth-first search does to its state, and how it takes it back; compiled loops.

The trail has the rows of buffers as they were before they changed.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import assign, inner
from gpumem.pool.search._packing import ALIKE, PackingInstance, PackingState, add, clear, touch, widen
from gpumem.pool.search._parts import Frames
from gpumem.trace import I64


@inner
def room(trail: I64, mark: int, more: int) -> I64:
    """Return a trail with room for `more` entries."""
    if mark + more <= trail.shape[1]:
        return trail
    longer = np.empty((4, 2 * (mark + more)), np.int64)
    for row in range(4):
        assign(longer[row], trail[row, :mark])
    return longer


@inner
def note(s: PackingState, trail: I64, mark: int, j: int) -> int:
    """Write down a buffer's row before it changes."""
    trail[0, mark], trail[1, mark], trail[2, mark], trail[3, mark] = j, s.least[j], s.need[j], s.rank[j]
    return mark + 1


@inner
def take_back(s: PackingState, trail: I64, mark: int, until: int) -> int:
    while mark > until:
        mark -= 1
        j = trail[0, mark]
        s.least[j], s.need[j], s.rank[j] = trail[1, mark], trail[2, mark], trail[3, mark]
    return mark


@inner
def count_placed(p: PackingInstance, s: PackingState, i: int, sign: int) -> bool:
    """Count a buffer as placed, with -1, or not; return whether a boundary is crossed by nothing now."""
    add(s.left, p.first[i], p.last[i], sign * p.size[i])
    return bool(add(s.cross, p.first[i] + 1, p.last[i], sign))


@inner
def lay(p: PackingInstance, s: PackingState, f: Frames, at: int) -> bool:
    """Place a frame's buffer; return whether a boundary is crossed by nothing now."""
    i, k = f[at].placed, f[at].under
    for t in range(p.first[i], p.last[i]):
        section = t - p.sections if t >= p.sections else t
        s.under[k] = s.top[section]
        s.top[section] = s.least[i] + p.size[i]
        k += 1
    f[at + 1].under = k
    return count_placed(p, s, i, -1)


@inner
def lift(p: PackingInstance, s: PackingState, f: Frames, at: int) -> int:
    """Take back a frame's buffer, the last one placed; return which."""
    i, k = f[at].placed, f[at].under
    for t in range(p.first[i], p.last[i]):
        s.top[t - p.sections if t >= p.sections else t] = s.under[k]
        k += 1
    count_placed(p, s, i, 1)
    f[at].placed = -1
    return int(i)


@inner
def refuse(
    p: PackingInstance, s: PackingState, part: I64, i: int, trail: I64, mark: int, rules: int
) -> tuple[int, tuple[int, int]]:
    """Note that `i` led nowhere where it was put, nor does what is like it; return the trail's length, its sections."""
    for j in part:
        if j == i or (rules & ALIKE and p.twin[j] == p.twin[i] and s.least[j] == s.least[i]):
            mark = note(s, trail, mark, j)
            s.need[j] = s.least[i] + 1
    return mark, widen(p, (p.sections, 0), i)


@inner
def remove(part: I64, i: int) -> None:
    """Move `i` to the end of its part."""
    k = 0
    while part[k] != i:
        k += 1
    part[k], part[len(part) - 1] = part[len(part) - 1], i


@inner
def put(
    p: PackingInstance, s: PackingState, part: I64, i: int, trail: I64, mark: int
) -> tuple[int, bool, tuple[int, int]]:
    """Let what meets `i` lie above it; return the trail's length, whether that fits, and the sections of what rose."""
    top, window = s.least[i] + p.size[i], (p.sections, 0)
    for j in part:
        if s.least[j] < top and touch(p, i, j):
            mark = note(s, trail, mark, j)
            s.least[j] = clear(p, j, top)
            if s.least[j] + p.size[j] > p.ceiling[j]:
                return mark, False, window
            window = widen(p, window, j)
    return mark, True, window
