"""An instance of the depth-first search, its state, and what tells that it cannot go on; compiled loops.

Time is cut into sections: nothing begins or ends inside one. Cut off is what cannot fit: in a section, all that must
lie above some offset is more than what there is up to the ceiling.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumem.base.jit import inner
from gpumem.pool._interval_index import FAR as FAR
from gpumem.trace import I64
from gpumem.trace.lifetimes import meet

UNIT = 8  # of the work, in sections that are added to a pile, all in one stretch
LOOK, OPTION = 4 * UNIT, UNIT  # what takes as long as so many of these: a step for each buffer of its part, an option

# What is cut off. Each rule by itself leaves a placement if there is one; the tests run all combinations of them, and
# show that each saves work beside the others. (That what is left must fit above the last offset saves nothing: PILE and
# SUPPORT say so earlier.)
PILE = 1  # in each section, what must lie above an offset fits between that and the ceiling; asked where something rose
SUPPORT = 2  # what may not lie where it could must rest on something that is not there yet
REFUSED = 4  # where a buffer led nowhere, see at once whether the rest can do without it there, not at the next one put
ALIKE = 8  # what is like a buffer that led nowhere leads nowhere there either
BENEATH = 16  # nothing goes where another one would fit wholly below: that one could have been put first
FREE = 32  # what keeps nothing else from its least offset is in nobody's way: no other choice mends what fails then
PARTS = 64  # what shares no section is searched apart; a failure of one part takes none of the others back
ALL = 127


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
    """Of the search: a row for each buffer, for each section, and for the boundary before each section."""

    least: I64  # offset that what is placed allows
    need: I64  # offset below which the buffer led nowhere
    rank: I64  # place in the order of its part
    bound: I64  # offset that it cannot lie below
    items: I64  # a permutation of the buffers; a part is a stretch of it, what is placed at its end
    left: I64  # bytes that are not placed
    top: I64  # where what is placed ends
    total: I64  # scratch
    group: I64  # number of the part
    cross: I64  # buffers that are not placed and live on both sides of the boundary
    under: I64  # what `top` was below each buffer that is placed, section by section
    spent: I64  # one number, the work
    slack: I64  # in each section, what the bounds may rise by at least before its pile is too high; -1 where unknown
    place: I64  # scratch: how many sections before this one are looked at
    tight: I64  # scratch: those that are
    height: I64  # scratch: how high they are piled


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
def add(row: I64, first: int, last: int, change: int) -> bool:
    """Change the entries of an arc; return whether one of them is 0 now."""
    count, none = len(row), False
    if first >= count:
        first, last = first - count, last - count
    for t in range(first, min(last, count)):
        row[t] += change
        none = none or bool(row[t] == 0)
    for t in range(last - count):
        row[t] += change
        none = none or bool(row[t] == 0)
    return none


@inner
def most(row: I64, first: int, last: int) -> int:
    """Return the largest entry of an arc."""
    count, found = len(row), 0
    for t in range(first, min(last, count)):
        found = max(found, row[t])
    for t in range(last - count):
        found = max(found, row[t])
    return found


@inner
def _support(p: PackingInstance, s: PackingState, part: I64, j: int, floor: int) -> int:
    """Return the lowest offset where `j` could lie on another buffer of the part, none of which goes below `floor`.

    It lies on an obstacle only where another buffer keeps it from lying below that.
    """
    lowest = FAR
    for x in part:
        top = max(s.least[x], floor) + p.size[x]
        if top < lowest and x != j and touch(p, x, j):
            lowest = top
    return lowest


@inner
def bind(
    p: PackingInstance, s: PackingState, part: I64, floor: int, rules: int, window: tuple[int, int]
) -> tuple[tuple[int, int], int]:
    """Say below what offset each buffer of a part cannot lie.

    Return the window with what is bound by more than before, and the most by which it is. A buffer goes where it can,
    or, if that is below the floor or led nowhere, on something that is put later.
    """
    rise = 0
    for j in part:
        before, s.bound[j] = s.bound[j], s.least[j]
        if rules & SUPPORT and (s.least[j] < floor or s.least[j] < s.need[j]):
            s.bound[j] = _support(p, s, part, j, floor)
            window = widen(p, window, j)
        rise = max(rise, s.bound[j] - before)
    for k in range(1, len(part)):  # by descending bound; hardly anything moves, since the last time
        j = part[k]
        while k > 0 and s.bound[part[k - 1]] < s.bound[j]:
            part[k] = part[k - 1]
            k -= 1
        part[k] = j
    return window, rise


@inner
def _tight(p: PackingInstance, s: PackingState, low: int, high: int, rise: int) -> int:
    """Number the sections of [low, high) where a rise may be too much; return how many there are.

    If all bounds rise by no more than that, each pile stands on one that was there, and ends no more than that higher.
    """
    count = 0
    for t in range(low, high):
        s.place[t] = count
        s.slack[t] -= rise
        if s.slack[t] < 0 or p.obstacle.shape[1] > 0:  # obstacles do not rise
            s.tight[count], s.total[count], s.height[count] = t, 0, 0
            count += 1
    s.place[high] = count
    return count


@inner
def _pile(s: PackingState, size: int, bound: int, since: int, until: int) -> int:
    """Add a buffer to the totals of some of the tight sections; return the height of the highest pile then."""
    worst = 0
    s.spent[0] += until - since
    for k in range(since, until):
        s.total[k] += size
        s.height[k] = max(s.height[k], s.total[k] + bound)
        worst = max(worst, s.height[k])
    return worst


@inner
def holds(p: PackingInstance, s: PackingState, part: I64, top: int, window: tuple[int, int], rise: int) -> bool:
    """Whether, in each section, what must lie above an offset fits between that and the highest ceiling.

    The part is sorted by descending bound. Only sections of the window are looked at: in the others nothing rose; and
    of these only those where `rise` may be too much. Where it does not hold, the slack has to be forgotten.
    """
    (low, high), k = window, 0
    if low >= high:
        return True
    count = _tight(p, s, low, high, rise)
    for j in part:
        since, until, wrapped = max(low, p.first[j]), min(high, p.last[j]), min(high, p.last[j] - p.sections)
        if since >= until and low >= wrapped:
            continue
        bound = s.bound[j]
        if bound + p.size[j] > p.ceiling[j]:
            return False
        while k < p.obstacle.shape[1] and p.obstacle[3, k] >= bound:
            for t in range(p.obstacle[1, k], p.obstacle[2, k]):
                if low <= t % p.sections < high:
                    s.total[s.place[t % p.sections]] += p.obstacle[0, k]
            k += 1
        if since < until and _pile(s, p.size[j], bound, s.place[since], s.place[until]) > top:
            return False
        if low < wrapped and _pile(s, p.size[j], bound, 0, s.place[wrapped]) > top:
            return False
    for k in range(count):
        s.slack[s.tight[k]] = top - s.height[k]
    return True


@inner
def widen(p: PackingInstance, window: tuple[int, int], j: int) -> tuple[int, int]:
    """Return the window with the sections of `j` in it."""
    if p.last[j] > p.sections:
        return 0, p.sections
    return min(window[0], p.first[j]), max(window[1], p.last[j])


@inner
def count_options(p: PackingInstance, s: PackingState, part: I64, top: int) -> None:
    """Count in each section's total which buffers can be the lowest there without leaving too little for the rest."""
    n = p.sections
    for j in part:
        s.spent[0] += OPTION * (p.last[j] - p.first[j])
        for k in range(p.first[j], p.last[j]):
            s.total[k - n if k >= n else k] = 0
    for j in part:
        for k in range(p.first[j], p.last[j]):
            t = k - n if k >= n else k
            s.total[t] += s.bound[j] + s.left[t] <= top


@inner
def flush(p: PackingInstance, s: PackingState, i: int, first: int, last: int, top: int) -> int:
    """Tell how level a buffer would end with what lies beside it: 2 for each side, 1 with the ceiling at an end.

    `[first, last)` are the sections of its part. So holes are filled, and what lies flat grows.
    """
    n, end = p.sections, s.least[i] + p.size[i]
    before, after = (p.first[i] + n - 1) % n, p.last[i] % n
    found = 0
    if p.first[i] == first % n or s.left[before] == 0:
        found += end == top
    elif s.top[before] == end:
        found += 2
    if after == last % n or s.left[after] == 0:
        found += end == top
    elif s.top[after] == end:
        found += 2
    return found


@inner
def fewest(p: PackingInstance, s: PackingState, j: int) -> int:
    """Return the options in that section of a buffer which has the fewest."""
    found = FAR
    for k in range(p.first[j], p.last[j]):
        found = min(found, s.total[k - p.sections if k >= p.sections else k])
    return found
