"""Best fit and first fit for many buffers: what meets a buffer is found without a look at all the others.

Time is cut into blocks; 2**BITS blocks, as many of those, and so on are the nodes of a tree. A buffer y is filed

    +-------+-------+-------+-------+-------+    under `ends`   of the blocks where it starts and ends
    |    y==|=======|=======|=======|==     |    under `over`   of the nodes that make up the blocks between: *
    +-------+-------+-------+-------+-------+    under `begun`  of the block where it starts and of all nodes above it
                *       *       *
             x==|=======|=======|==              x meets what is alive where it starts (`over` of the nodes above),
                *       *       *                what starts between (`begun` of *), and some of `ends` of its own two

A file is sorted by address. In `over` and `begun`, where x meets all or nothing, ranges that touch become one, so these
files stay short where memory is packed well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.base.jit import inner, jit
from gpumem.pool._slots import stack
from gpumem.trace import I64

BITS = 3  # more of them: fewer files to look at, more to write
MASK = 2**BITS - 1
WIDTH = 8  # a block has 2**WIDTH steps
FAR = 2**62  # above every address
STRIDE = 256  # buffers between two looks at the clock: 0.1 s where each meets 50,000
GRACE = 0.5  # seconds that a placement has however late it begins: 100,000 buffers of a net take that long
LOW, TOP, START, END = range(4)  # columns of a row: the bytes taken, and in `ends` the lifetime
FIRST, COUNT, ROOM = range(3)  # columns of a file: where its rows are; there is room for 2**ROOM // 2 of them


class _Arcs(NamedTuple):
    """What is placed, and in which order."""

    size: I64  # of each buffer
    start: I64  # of each buffer, on a circle of `steps`
    end: I64
    offset: I64  # of each buffer: right for `order[:first]`, to be filled in for the others
    order: I64  # buffers
    first: int
    steps: int


class _Index(NamedTuple):
    """Where the files are, and scratch space."""

    width: int  # a block has 2**width steps
    base: I64  # files: `ends` by block, then from each `base` on `over` by level, then `begun`
    files: I64  # of each file: FIRST, COUNT, ROOM
    free: I64  # the first row never used; for each ROOM a chain of those given up, linked by their LOW
    nodes: I64  # the files to look at, or to write to
    cursor: I64  # of each run of rows that a buffer meets: the next one, where they end, where the next one begins


def place(size: I64, start: I64, end: I64, order: I64, first: int, smallest: bool, offset: I64) -> None:
    """Fill `offset` for `order[first:]`; what comes before is placed already.

    Sizes and offsets are multiples of the alignment. Lifetimes are arcs of a circle of as many steps as there are
    buffers in `order`, at each of which one of them starts. Memory O(B log B); time O(B log B) and the ranges in the
    files that each buffer looks at. Once the time is up what is left is stacked above the others.
    """
    arcs, latest = _Arcs(size, start, end, offset, order, first, len(order)), work.now() + GRACE
    index, rows = _empty(arcs)
    for turn in range(0, len(order), STRIDE):
        rows = fill(arcs, smallest, turn, min(turn + STRIDE, len(order)), index, rows)
        done, rest = np.split(order, [max(turn + STRIDE, first)])
        if len(rest) and work.over() and work.now() >= latest:
            stack(size, start, end, len(order), rest, int((offset + size)[done].max()), offset)
            return


def _empty(b: _Arcs) -> tuple[_Index, I64]:
    """The index before anything is filed, and its rows."""
    order, steps = b.order, b.steps
    last, levels = (steps - 1) >> WIDTH, 1
    while last >> BITS * (levels - 1):
        levels += 1
    nodes = (last >> BITS * np.arange(levels) | MASK) + 1
    base = np.concatenate([[0], np.cumsum(nodes)]) + last + 1
    files = np.zeros((2 * base[-1] - base[0], 3), np.int64)
    blocks = np.concatenate([b.start[order], b.end[order] % steps]) >> WIDTH
    scratch = 2 * int(np.bincount(blocks).max()) + 2  # rows for what `_meeting` finds
    rows, free = np.empty((scratch + 4 * len(order), 4), np.int64), np.zeros(64, np.int64)
    free[0] = scratch
    room = 4 * levels << BITS
    return _Index(WIDTH, base, files, free, np.empty(room, np.int64), np.empty((room, 3), np.int64)), rows


@inner
def _between(s: int, e: int, steps: int, width: int, base: I64, nodes: I64) -> int:
    """Fill in the nodes that make up the blocks between those where an arc starts and ends; return how many."""
    count, whole = 0, 1 << BITS * (len(base) - 2)
    low, high, rest = (s >> width) + 1, e >> width, 0
    if e - s == steps:
        low, high = 0, whole  # alive all the time: the root, so that all of these become few ranges
    elif e >= steps:
        high, rest = whole, (e - steps) >> width
    while high > 0:
        level = 0
        while low < high:
            while low < high and low & MASK:
                nodes[count] = base[level] + low
                low += 1
                count += 1
            while low < high and high & MASK:
                high -= 1
                nodes[count] = base[level] + high
                count += 1
            low >>= BITS
            high >>= BITS
            level += 1
        low, high, rest = 0, rest, 0
    return count


@inner
def _move(file: int, files: I64, rows: I64, free: I64) -> I64:
    """Give a file twice the room; return the rows, which may have to move as well."""
    old, room = files[file, FIRST], files[file, ROOM]
    new = free[room + 1]
    if new:
        free[room + 1] = rows[new, LOW]
    else:
        new = free[0]
        free[0] += 1 << room
        if free[0] > len(rows):
            longer = np.empty((2 * free[0], 4), np.int64)
            for k in range(new):
                for c in range(4):
                    longer[k, c] = rows[k, c]
            rows = longer
    for k in range(files[file, COUNT]):
        for c in range(4):
            rows[new + k, c] = rows[old + k, c]
    if room:
        rows[old, LOW] = free[room]
        free[room] = old
    files[file, FIRST], files[file, ROOM] = new, room + 1
    return rows


@inner
def _add(file: int, low: int, top: int, s: int, e: int, files: I64, rows: I64, free: I64, unite: bool) -> I64:
    """File bytes `[low, top)` by address, as one range with those that they touch if told so."""
    if files[file, COUNT] == (1 << files[file, ROOM]) >> 1:
        rows = _move(file, files, rows, free)
    after = files[file, FIRST] + files[file, COUNT]
    i, j, column = files[file, FIRST], after, TOP if unite else LOW
    while i < j:
        middle = (i + j) // 2
        if rows[middle, column] < low:
            i = middle + 1
        else:
            j = middle
    while unite and j < after and rows[j, LOW] <= top:
        low, top = min(low, rows[j, LOW]), max(top, rows[j, TOP])
        j += 1
    if i == j:
        for k in range(after, i, -1):
            for c in range(4):
                rows[k, c] = rows[k - 1, c]
    elif i + 1 < j:
        for k in range(j, after):
            rows[k - j + i + 1, LOW], rows[k - j + i + 1, TOP] = rows[k, LOW], rows[k, TOP]
    files[file, COUNT] += 1 - (j - i)
    rows[i, LOW], rows[i, TOP], rows[i, START], rows[i, END] = low, top, s, e
    return rows


@inner
def _meeting(block: int, s: int, e: int, steps: int, to: int, files: I64, rows: I64) -> int:
    """Copy from `ends` of a block what meets an arc to the rows from `to` on; return where they end."""
    first = files[block, FIRST]
    for k in range(first, first + files[block, COUNT]):
        rows[to, LOW], rows[to, TOP] = rows[k, LOW], rows[k, TOP]
        t, f = rows[k, START], rows[k, END]
        to += ((s < f) & (t < e)) | (s + steps < f) | (t + steps < e)  # no branch: nobody could predict it
    return to


@inner
def _hole(need: int, smallest: bool, cursor: I64, count: int, rows: I64) -> int:
    """Return where the smallest or the lowest hole begins that none of `count` runs of rows reaches into.

    address ^    ====       nearest ---------    `floor` rises over all that begins less than `need` above it until
            |               hole                 nothing does; then what begins next ends a hole that is large enough
            |    ==  ====   floor -----------
    """
    floor, best, best_hole = 0, -1, FAR
    while count:
        nearest, j = FAR, 0
        while j < count:
            low = cursor[j, 2]
            if low < floor + need:
                k, after = cursor[j, 0], cursor[j, 1]
                while low < floor + need:
                    floor = max(floor, rows[k, TOP])
                    k += 1
                    low = rows[k, LOW] if k < after else FAR
                if k == after:  # done: the last run takes its place
                    count -= 1
                    cursor[j, 0], cursor[j, 1], cursor[j, 2] = cursor[count, 0], cursor[count, 1], cursor[count, 2]
                    continue
                cursor[j, 0], cursor[j, 2] = k, low
            nearest = min(nearest, low)
            j += 1
        if count and nearest - floor >= need:
            if nearest - floor < best_hole:
                best, best_hole = floor, nearest - floor
                if not smallest or best_hole == need:
                    break
            floor = nearest
    return best if best >= 0 else floor


@jit
def fill(b: _Arcs, smallest: bool, since: int, until: int, x: _Index, rows: I64) -> I64:
    """Look where there is room for each of `order[since:until]`, then file it; return the rows, they may have moved."""
    width, base, files, nodes, cursor = x.width, x.base, x.files, x.nodes, x.cursor
    levels, begun = len(base) - 1, base[-1] - base[0]
    for turn in range(since, until):
        j = b.order[turn]
        s, e = b.start[j], b.end[j]
        block, stop = s >> width, e - b.steps if e >= b.steps else e
        last = stop >> width if stop & ((1 << width) - 1) else block  # it may end between two blocks
        between = _between(s, e, b.steps, width, base, nodes)
        if turn >= b.first:
            count, found = 0, 0
            for k in range(between + levels + 2):
                if k < between + levels:
                    file = nodes[k] + begun if k < between else base[k - between] + (block >> BITS * (k - between))
                    low, after = files[file, FIRST], files[file, FIRST] + files[file, COUNT]
                else:
                    low = found
                    found = after = _meeting(block if k == between + levels else last, s, e, b.steps, low, files, rows)
                if low < after:
                    cursor[count, 0], cursor[count, 1], cursor[count, 2] = low, after, rows[low, LOW]
                    count += 1
            b.offset[j] = _hole(b.size[j], smallest, cursor, count, rows)
        for level in range(levels):
            nodes[between + level] = base[level] + begun + (block >> BITS * level)
        between += levels
        if e - s < b.steps:
            nodes[between], nodes[between + 1] = block, last
            between += 1 + (last != block)
        low, top = b.offset[j], b.offset[j] + b.size[j]
        for k in range(between):
            rows = _add(nodes[k], low, top, s, e, files, rows, x.free, nodes[k] >= base[0])
    return rows
