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
`_packing` has the rules that cut off what cannot fit, `_parts` the frames, `_moves` what a step does.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import inlined, jit
from gpumem.pool.search._moves import count_placed, lay, lift, note, put, refuse, remove, room, take_back
from gpumem.pool.search._packing import (
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
    bind,
    clear,
    count_options,
    fewest,
    flush,
    holds,
)
from gpumem.pool.search._parts import FRAME, WAIT, Frames, Waits, rank, split
from gpumem.trace import F64, I64

SOLVED, IMPOSSIBLE, GAVE_UP = 1, 0, -1
IN_ORDER, FEWEST, LEVEL = range(3)  # which of those that can go lowest: see `_choose`


@inlined
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


@inlined
def _choose(p: PackingInstance, s: PackingState, f: Frames, at: int, i: int, top: int, rules: int, how: int) -> int:
    """Return the buffer to put instead of `i`, at the same offset: where fewest can be the lowest in some section.

    What stands in one section's way is found out there, before anything is built elsewhere. Ties go to what would end
    level with something else, if that is asked for, and then by order.
    """
    part, offset = s.items[f[at].low : f[at].high], s.least[i]
    if bind(p, s, part, f[at].floor, rules, (0, 0))[1] > 0:
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
            place -= flush(p, s, j, f[at].first, f[at].last, top) * len(p.size)
        if found < options or place < rank:
            best, options, rank = j, found, place
    return best


@inlined
def _next(
    p: PackingInstance, s: PackingState, f: Frames, at: int, trail: I64, mark: int, top: int, rules: int, how: int
) -> tuple[int, int, I64, int]:
    """Go back until a frame has another buffer to put; return frame, buffer, the trail and its length."""
    while at >= 0:
        part, i = s.items[f[at].low : f[at].high], f[at].placed
        trail = room(trail, mark, 2 * len(part))
        if i >= 0:
            mark = take_back(s, trail, mark, f[at].mark)
            lift(p, s, f, at)
            s.slack[:] = -1  # more is to be placed than when it was found out
            s.spent[0] += LOOK * len(part)
            mark, window = refuse(p, s, part, i, trail, mark, rules)
            f[at].mark = mark
            if rules & REFUSED and not f[at].over:
                window, rise = bind(p, s, part, f[at].floor, rules, window)
                f[at].over = not holds(p, s, part, top, window, rise)
        if not f[at].over:
            i = _lowest(p, s, part, f[at].floor, rules)
            if i >= 0 and how != IN_ORDER:
                i = _choose(p, s, f, at, i, top, rules, how)
            if i >= 0:
                return at, i, trail, mark
        mark = take_back(s, trail, mark, f[at].begin)
        back, at = f[at].back, at - 1
        while at > back:  # parts beside the one that failed
            lift(p, s, f, at)
            at -= 1
    return at, -1, trail, mark


@inlined
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
    low, high, new = f[at].low, f[at].high - (at >= 0), at + 1
    if low < high and not cut:
        f[new].low, f[new].high, f[new].first, f[new].last = low, high, f[at].first, f[at].last
        f[new].back, f[new].waits, f[new].kept = at, f[at].waits, f[at].kept
        f[new].floor, f[new].begin = s.least[f[at].placed], mark
    else:
        head = split(p, s, w, f, at, low, high) - 1 if low < high else f[at].waits
        if head < 0:
            return -1, trail, mark
        f[new].low, f[new].high, f[new].first, f[new].last = w[head].low, w[head].high, w[head].first, w[head].last
        f[new].back, f[new].waits, f[new].kept = w[head].back, w[head].next, head + 1
        f[new].floor, f[new].begin = 0, mark
        part = s.items[f[new].low : f[new].high]
        trail = room(trail, mark, len(part))
        for j in part:
            mark = note(s, trail, mark, j)
            s.need[j] = 0
        rank(p, s, part, order, weight)
    f[new].mark, f[new].placed, f[new].over = mark, -1, 0
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
        count_placed(p, s, j, 1)
        top = max(top, p.ceiling[j])
    # before all frames, at -1, is one more, the last row: it put nothing, and all is left
    f[-1].high, f[-1].last, f[-1].waits, cut = count, n, -1, True
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
            part = s.items[f[at].low : f[at].high]
            nodes -= 1
            s.spent[0] += LOOK * len(part)
            if nodes < 0 or s.spent[0] > work:
                return GAVE_UP
            f[at].placed, offset[i] = i, s.least[i]
            remove(part, i)
            part = part[: len(part) - 1]
            cut = lay(p, s, f, at) and rules & PARTS != 0
            mark, good, window = put(p, s, part, i, trail, mark)
            f[at].over = good and rules & FREE and window[0] > window[1]
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
    f, w = np.rec.array(np.zeros(count + 1, FRAME)), np.rec.array(np.zeros(count + 1, WAIT))
    offset = np.zeros(count, np.int64)
    status = _search(p, s, f, w, order, how, rules, weight, nodes, UNIT * min(work, FAR // UNIT), offset)
    return status, int(s.spent[0]) // UNIT, offset
