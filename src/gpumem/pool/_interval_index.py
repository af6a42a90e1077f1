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

# A node has 2**BITS children: more of them are fewer files to look at, and more to write to. Not tuned further.
BITS = 3
MASK = 2**BITS - 1
WIDTH = 8  # a block has 2**WIDTH steps; not tuned
FAR = 2**62  # above every address
STRIDE = 256  # buffers between two looks at the clock: 0.1 s where each meets 50,000
# Seconds that a placement has however late it begins: 100,000 buffers of a net take that long.
GRACE = 0.5
LOW, TOP, START, END = range(4)  # columns of a row: the bytes taken, and in `ends` the lifetime
FIRST, COUNT, CLASS = range(3)  # columns of a file: where its rows are; it can hold 2**CLASS // 2 of them
NEXT, STOP, BEGIN = range(3)  # columns of a run of rows: the next one, where they stop, where the next one begins


class _Taken(NamedTuple):
    """Bytes `[low, top)` that a buffer takes during the arc `[start, end)`."""

    low: int
    top: int
    start: int
    end: int


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
    files: I64  # of each file: FIRST, COUNT, CLASS
    free: I64  # the first row never used; for each CLASS a chain of those given up, linked by their LOW
    nodes: I64  # the files to look at, or to write to
    runs: I64  # of each run of rows that a buffer meets: NEXT, STOP, BEGIN


def place(size: I64, start: I64, end: I64, order: I64, *, first: int, smallest: bool, offset: I64) -> None:
    """Fill `offset` for `order[first:]`; what comes before is placed already.

    Sizes and offsets are multiples of the alignment. Lifetimes are arcs of a circle of as many steps as there are
    buffers in `order`, at each of which one of them starts. Memory O(B log B); time O(B log B) and the ranges in the
    files that each buffer looks at. Once the time is up what is left is stacked above the others.
    """
    arcs = _Arcs(size, start, end, offset, order=order, first=first, steps=len(order))
    latest = work.now() + GRACE
    index, rows = _empty(arcs)
    for turn in range(0, len(order), STRIDE):
        until = min(turn + STRIDE, len(order))
        rows = fill(arcs, index, rows, smallest=smallest, since=turn, until=until)
        done, rest = np.split(order, [max(turn + STRIDE, first)])
        if len(rest) and work.over() and work.now() >= latest:
            top = int((offset + size)[done].max())
            stack(size, start, end, steps=len(order), rest=rest, bottom=top, offset=offset)
            return


def _empty(arcs: _Arcs) -> tuple[_Index, I64]:
    """The index before anything is filed, and its rows."""
    order, steps = arcs.order, arcs.steps
    last, levels = (steps - 1) >> WIDTH, 1
    while last >> BITS * (levels - 1):
        levels += 1
    per_level = (last >> BITS * np.arange(levels) | MASK) + 1
    base = np.concatenate([[0], np.cumsum(per_level)]) + last + 1
    files = np.zeros((2 * base[-1] - base[0], 3), np.int64)
    blocks = np.concatenate([arcs.start[order], arcs.end[order] % steps]) >> WIDTH
    scratch = 2 * int(np.bincount(blocks).max()) + 2  # rows for what `_meeting` finds
    rows, free = np.empty((scratch + 4 * len(order), 4), np.int64), np.zeros(64, np.int64)
    free[0] = scratch
    most = 4 * levels << BITS
    nodes, runs = np.empty(most, np.int64), np.empty((most, 3), np.int64)
    return _Index(WIDTH, base, files, free, nodes=nodes, runs=runs), rows


@inner
def _between(  # noqa: PLR0917  compiled: no keyword-only parameters
    start: int, end: int, steps: int, width: int, base: I64, nodes: I64
) -> int:
    """Fill in the nodes that make up the blocks between those where an arc starts and ends; return how many."""
    count, whole = 0, 1 << BITS * (len(base) - 2)
    low, high, rest = (start >> width) + 1, end >> width, 0
    if end - start == steps:
        low, high = 0, whole  # alive all the time: the root, so that all of these become few ranges
    elif end >= steps:
        high, rest = whole, (end - steps) >> width
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
    """Give a file space for twice as many rows; return the rows, which may have to move as well."""
    old, size_class = files[file, FIRST], files[file, CLASS]
    new = free[size_class + 1]
    if new:
        free[size_class + 1] = rows[new, LOW]
    else:
        new = free[0]
        free[0] += 1 << size_class
        if free[0] > len(rows):
            longer = np.empty((2 * free[0], 4), np.int64)
            for row in range(new):
                for column in range(4):
                    longer[row, column] = rows[row, column]
            rows = longer
    for row in range(files[file, COUNT]):
        for column in range(4):
            rows[new + row, column] = rows[old + row, column]
    if size_class:
        rows[old, LOW] = free[size_class]
        free[size_class] = old
    files[file, FIRST], files[file, CLASS] = new, size_class + 1
    return rows


@inner
def _add(  # noqa: PLR0917  compiled: no keyword-only parameters
    file: int, taken: _Taken, files: I64, rows: I64, free: I64, unite: bool
) -> I64:
    """File what is taken by address; where `unite`, as one range with those that it touches."""
    low, top = taken.low, taken.top
    if files[file, COUNT] == (1 << files[file, CLASS]) >> 1:
        rows = _move(file, files, rows, free)
    after = files[file, FIRST] + files[file, COUNT]
    at, beyond, column = files[file, FIRST], after, TOP if unite else LOW
    while at < beyond:
        middle = (at + beyond) // 2
        if rows[middle, column] < low:
            at = middle + 1
        else:
            beyond = middle
    while unite and beyond < after and rows[beyond, LOW] <= top:
        low, top = min(low, rows[beyond, LOW]), max(top, rows[beyond, TOP])
        beyond += 1
    if at == beyond:
        for row in range(after, at, -1):
            for field in range(4):
                rows[row, field] = rows[row - 1, field]
    elif at + 1 < beyond:
        for row in range(beyond, after):
            to = row - beyond + at + 1
            rows[to, LOW], rows[to, TOP] = rows[row, LOW], rows[row, TOP]
    files[file, COUNT] += 1 - (beyond - at)
    rows[at, LOW], rows[at, TOP], rows[at, START], rows[at, END] = low, top, taken.start, taken.end
    return rows


@inner
def _meeting(  # noqa: PLR0917  compiled: no keyword-only parameters
    block: int, start: int, end: int, steps: int, to: int, files: I64, rows: I64
) -> int:
    """Copy from `ends` of a block what meets an arc to the rows from `to` on; return where they end."""
    first = files[block, FIRST]
    for row in range(first, first + files[block, COUNT]):
        rows[to, LOW], rows[to, TOP] = rows[row, LOW], rows[row, TOP]
        other_start, other_end = rows[row, START], rows[row, END]
        wraps = (start + steps < other_end) | (other_start + steps < end)
        to += wraps | ((start < other_end) & (other_start < end))  # no branch: nobody could predict it
    return to


@inner
def _hole(size: int, smallest: bool, runs: I64, count: int, rows: I64) -> int:
    """Return where the smallest or the lowest hole begins that none of `count` runs of rows reaches into.

    address ^    ====       nearest ---------    `floor` rises over all that begins less than `size` above it until
            |               hole                 nothing does; then what begins next ends a hole that is large enough
            |    ==  ====   floor -----------
    """
    floor, best, best_hole = 0, -1, FAR
    while count:
        nearest, run = FAR, 0
        while run < count:
            low = runs[run, BEGIN]
            if low < floor + size:
                row, after = runs[run, NEXT], runs[run, STOP]
                while low < floor + size:
                    floor = max(floor, rows[row, TOP])
                    row += 1
                    low = rows[row, LOW] if row < after else FAR
                if row == after:  # done: the last run takes its place
                    count -= 1
                    runs[run, NEXT], runs[run, STOP] = runs[count, NEXT], runs[count, STOP]
                    runs[run, BEGIN] = runs[count, BEGIN]
                    continue
                runs[run, NEXT], runs[run, BEGIN] = row, low
            nearest = min(nearest, low)
            run += 1
        if count and nearest - floor >= size:
            if nearest - floor < best_hole:
                best, best_hole = floor, nearest - floor
                if not smallest or best_hole == size:
                    break
            floor = nearest
    return best if best >= 0 else floor


@inner
def _find_runs(  # noqa: PLR0917  compiled: no keyword-only parameters
    arcs: _Arcs, index: _Index, rows: I64, buffer: int, between: int, block: int, last: int
) -> int:
    """List the runs of rows that a buffer meets; return how many. `between` nodes are between its two blocks."""
    base, files, nodes, runs = index.base, index.files, index.nodes, index.runs
    levels, begun = len(base) - 1, base[-1] - base[0]
    start, end = arcs.start[buffer], arcs.end[buffer]
    count, scratch = 0, 0  # the first rows are scratch: those of `ends` that the buffer meets are copied there
    for place in range(between + levels + 2):
        if place < between + levels:
            file = nodes[place] + begun
            if place >= between:
                file = base[place - between] + (block >> BITS * (place - between))
            low, after = files[file, FIRST], files[file, FIRST] + files[file, COUNT]
        else:
            own = block if place == between + levels else last
            low = scratch
            scratch = after = _meeting(own, start, end, arcs.steps, to=low, files=files, rows=rows)
        if low < after:
            runs[count, NEXT], runs[count, STOP], runs[count, BEGIN] = low, after, rows[low, LOW]
            count += 1
    return count


@jit
def fill(  # noqa: PLR0917  compiled: no keyword-only parameters
    arcs: _Arcs, index: _Index, rows: I64, smallest: bool, since: int, until: int
) -> I64:
    """Find a hole for each of `order[since:until]`, then file it; return the rows, which may have moved."""
    width, base, nodes = index.width, index.base, index.nodes
    levels, begun = len(base) - 1, base[-1] - base[0]
    for turn in range(since, until):
        buffer = arcs.order[turn]
        start, end = arcs.start[buffer], arcs.end[buffer]
        block, stop = start >> width, end - arcs.steps if end >= arcs.steps else end
        last = stop >> width if stop & ((1 << width) - 1) else block  # it may end between two blocks
        between = _between(start, end, arcs.steps, width=width, base=base, nodes=nodes)
        if turn >= arcs.first:
            count = _find_runs(arcs, index, rows, buffer, between=between, block=block, last=last)
            arcs.offset[buffer] = _hole(arcs.size[buffer], smallest, index.runs, count=count, rows=rows)
        for level in range(levels):
            nodes[between + level] = base[level] + begun + (block >> BITS * level)
        between += levels
        if end - start < arcs.steps:
            nodes[between], nodes[between + 1] = block, last
            between += 1 + (last != block)
        taken = _Taken(arcs.offset[buffer], arcs.offset[buffer] + arcs.size[buffer], start, end)
        for place in range(between):
            unite = nodes[place] >= base[0]
            rows = _add(nodes[place], taken, files=index.files, rows=rows, free=index.free, unite=unite)
    return rows
