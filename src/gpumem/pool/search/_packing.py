"""An instance of the depth-first search, its state, and what tells that it cannot go on; compiled loops.

Cut off is what cannot fit: in a section, all that must lie above some offset is more than what there is up to the
ceiling. What stands in the way is blamed for it.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumem.base.jit import inner
from gpumem.trace import F64, I64
from gpumem.trace.lifetimes import meet

FAR = 2**62


class PackingInstance(NamedTuple):
    """Buffers `j` to place, over sections `[first, last)` of a circle, and obstacles that lie already.

    Sizes and offsets are in units of the alignment. `last > sections` wraps. `twin`: the least of the buffers that
    are alike. `obstacle`: rows size, first, last, offset, by descending offset.
    """

    size: I64
    first: I64
    last: I64
    ceiling: I64
    twin: I64
    obstacle: I64
    sections: int


class PackingState(NamedTuple):
    """Of the search: a row for each buffer, and scratch space for each section."""

    least: I64  # offset that what is placed allows
    need: I64  # offset that refuted choices leave
    bound: I64  # the greater of the two
    key: F64  # the greatest goes first at one offset
    items: I64  # a permutation; a part is a stretch of it
    total: I64  # what is to be placed in the section
    group: I64  # number of the part
    cross: I64
    blame: F64  # how often the buffer was among those that did not fit, each time shared by all of them


@inner
def touch(p: PackingInstance, x: int, y: int) -> bool:
    return bool(meet(p.first[x], p.last[x], p.first[y], p.last[y], p.sections))


@inner
def clear(p: PackingInstance, j: int, at: int) -> int:
    """Return the lowest offset from `at` on where no obstacle is in the way."""
    for k in range(p.obstacle.shape[1] - 1, -1, -1):
        size, first, last, offset = p.obstacle[0, k], p.obstacle[1, k], p.obstacle[2, k], p.obstacle[3, k]
        blocks = offset < at + p.size[j] and at < offset + size
        if blocks and meet(first, last, p.first[j], p.last[j], p.sections):
            at = offset + size
    return at


@inner
def rest(p: PackingInstance, s: PackingState, part: I64, j: int, at: int) -> int:
    """Return the lowest offset where `j` could lie on another buffer of the part, none of which goes below `at`.

    It lies on an obstacle only where another buffer keeps it from lying below that.
    """
    lowest = FAR
    for x in part:
        if x != j and touch(p, x, j):
            lowest = min(lowest, max(s.least[x], s.need[x], at) + p.size[x])
    return lowest


@inner
def _arrange(s: PackingState, part: I64) -> None:
    """Sort a part by descending bound."""
    for j in part:
        s.bound[j] = max(s.least[j], s.need[j])
    for k in range(1, len(part)):
        j = part[k]
        while k > 0 and s.bound[part[k - 1]] < s.bound[j]:
            part[k] = part[k - 1]
            k -= 1
        part[k] = j


@inner
def pile(p: PackingInstance, s: PackingState, j: int, low: int, high: int, size: int) -> int:
    """Add to the totals of the sections of `j` that lie in [low, high); return the greatest of them then."""
    worst = 0
    for t in range(max(low, p.first[j]), min(high, p.last[j])):
        s.total[t] += size
        worst = max(worst, s.total[t])
    for t in range(low, min(high, p.last[j] - p.sections)):
        s.total[t] += size
        worst = max(worst, s.total[t])
    return worst


@inner
def holds(p: PackingInstance, s: PackingState, part: I64, top: int, window: tuple[int, int]) -> bool:
    """Whether, in each section, what must lie above an offset fits between that and the highest ceiling.

    Only sections of the window are looked at: in the others nothing rose since they were.
    """
    _arrange(s, part)
    n, (low, high), k = p.sections, window, 0
    for t in range(low, high):
        s.total[t] = 0
    for place, j in enumerate(part):
        if max(low, p.first[j]) >= min(high, p.last[j]) and low >= p.last[j] - n:
            continue
        bound = s.bound[j]
        if bound + p.size[j] > p.ceiling[j]:
            s.blame[j] += 1
            return False
        while k < p.obstacle.shape[1] and p.obstacle[3, k] >= bound:
            for t in range(p.obstacle[1, k], p.obstacle[2, k]):
                s.total[t % n] += p.obstacle[0, k]
            k += 1
        if pile(p, s, j, low, high, p.size[j]) + bound > top:
            for x in part[: place + 1]:
                if touch(p, x, j):
                    s.blame[x] += 1 / (place + 1)
            return False
    return True


@inner
def widen(p: PackingInstance, window: tuple[int, int], j: int) -> tuple[int, int]:
    """Return the window with the sections of `j` in it."""
    if p.last[j] > p.sections:
        return 0, p.sections
    return min(window[0], p.first[j]), max(window[1], p.last[j])
