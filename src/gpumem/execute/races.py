"""Race detection with vector clocks: two ops that touch the same bytes, one writing, must be ordered.

Each op knows, for every stream, the last op there that has certainly ended before it starts::

    compute   0 ---------- 2        clock of 2: (compute 0, d2h 1), as it waits for 1
                 \\        /
    d2h           1 ------

The bytes of both slabs are cut where any buffer begins or ends. For each piece the detector remembers the
last op that wrote it and, by stream, the last that read it; an op that touches a piece must know of them.
It looks at issue order and waits only, so it finds a race whatever order the ops happen to run in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpumem.base.errors import ExecutionError
from gpumem.base.jit import inner, jit
from gpumem.execute.backend import Work
from gpumem.execute.layout import Block, Layout
from gpumem.trace import I64

FIRST, END, WRITES = range(3)  # columns of what an op touches: pieces, and whether it writes them


class Race(ExecutionError):
    """Two ops touch the same bytes, at least one writes, and nothing orders them.

    `first` and `second` are their indices in the iteration (the first may be of the one before), `low` and
    `high` the byte range in the slab of `space`.
    """

    def __init__(self, first: tuple[int, str], second: tuple[int, str], space: str, low: int, high: int) -> None:
        self.first, self.second, self.space, self.low, self.high = first[0], second[0], space, low, high
        text = f"races with op {first[0]} ({first[1]}) for {space} bytes {low}..{high}: neither waits for the other"
        super().__init__(*second, text)


class Races:
    """Watches ops as they are issued; O(waits x streams + pieces touched) for each."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.streams = len(layout.trace.ops.streams)
        spaces = [[block for block in layout.blocks if block.host == host] for host in (False, True)]
        self.edges = [
            np.unique([0, *(edge for block in blocks for edge in (block.offset, block.offset + block.size))])
            for blocks in spaces
        ]
        self.base = (0, len(self.edges[0]))  # the host's pieces come after the device's
        pieces = sum(len(edge) for edge in self.edges)
        self.ranges = {block.buffer: self._pieces(block) for block in layout.blocks}
        reads, writes = layout.trace.ops.reads.tolist(), layout.trace.ops.writes.tolist()
        self.rows = [self._row(read, written) for read, written in zip(reads, writes)]
        self.wrote = np.full(pieces, -1, np.int64)
        self.read = np.full((self.streams, pieces), -1, np.int64)
        self.stream = layout.trace.ops.stream
        self.begin(0)

    def _pieces(self, block: Block) -> tuple[int, int]:
        low, high = np.searchsorted(self.edges[block.host], [block.offset, block.offset + block.size])
        return self.base[block.host] + int(low), self.base[block.host] + int(high)

    def _row(self, reads: list[int], writes: list[int]) -> I64:
        rows = [(*self.ranges[buffer], 0) for buffer in reads] + [(*self.ranges[buffer], 1) for buffer in writes]
        return np.array(rows, np.int64).reshape(-1, 3)

    def begin(self, ops: int) -> None:
        """Start anew with room for `ops` ops, of which the last count: whatever was issued before has ended."""
        self.wrote[:], self.read[:] = -1, -1
        self.clock = np.full((ops, self.streams), -1, np.int64)
        self.last = np.full(self.streams, -1, np.int64)

    def issue(self, number: int, work: Work, after: Sequence[int]) -> None:
        """Op `work` is issued as number `number`, after those numbered `after`; raise the `Race` that this makes."""
        waits, touched = np.array(after, np.int64), self.rows[work.op]
        if len(after) and number - waits.min() >= len(self.clock):
            raise ValueError(
                f"waits for op {waits.min()} in issue order, {number - waits.min()} before it: too long ago"
            )
        rival, piece = _observe(number, self.stream, waits, touched, self.clock, self.last, self.wrote, self.read)
        if rival >= 0:
            raise self._race(int(rival) % len(self.rows), work, int(piece))

    def _race(self, first: int, second: Work, piece: int) -> Race:
        """Name the two and the bytes in common of the buffers that hold `piece`."""
        host = piece >= self.base[1]
        rows = [self.rows[op].tolist() for op in (first, second.op)]
        touched = [next(range_ for range_ in row if range_[0] <= piece < range_[1]) for row in rows]
        at = self.edges[host]
        low = int(at[max(range_[0] for range_ in touched) - self.base[host]])
        high = int(at[min(range_[1] for range_ in touched) - self.base[host]])
        names = self.layout.trace.ops.name
        return Race((first, names[first]), (second.op, second.name), "host" if host else "device", low, high)


@jit
def _observe(  # noqa: PLR0917  compiled: no keyword-only parameters
    number: int, stream: I64, waits: I64, touched: I64, clock: I64, last: I64, wrote: I64, read: I64
) -> tuple[int, int]:
    """Set the clock of op `number` and note what it touches; return an op that it races with and the piece, or -1s."""
    ops, own = len(stream), stream[number % len(stream)]
    seen = clock[number % len(clock)]  # a ring: nothing waits for older ops
    _follow(seen, clock, last[own], -1)
    seen[own] = last[own]
    for earlier in waits:
        by = stream[earlier % ops]
        _follow(seen, clock, earlier, by)
    for row in range(len(touched)):
        for piece in range(touched[row, FIRST], touched[row, END]):
            rival = _rival(piece, touched[row, WRITES] != 0, stream, seen, wrote, read)
            if rival >= 0:
                return rival, piece
    for row in range(len(touched)):
        for piece in range(touched[row, FIRST], touched[row, END]):
            if touched[row, WRITES]:
                wrote[piece] = number
            else:
                read[own, piece] = number
    last[own] = number
    return -1, -1


@inner
def _follow(seen: I64, clock: I64, earlier: int, by: int) -> None:
    """An op has seen all that one before it has, and if that ran `by` a stream, that one too."""
    for other in range(len(seen)):
        known = clock[earlier % len(clock), other] if earlier >= 0 else -1
        seen[other] = max(seen[other], known) if by >= 0 else known
    if by >= 0:
        seen[by] = max(seen[by], earlier)


@inner
def _rival(piece: int, writes: bool, stream: I64, seen: I64, wrote: I64, read: I64) -> int:  # noqa: PLR0917  compiled
    """Return an op that touched a piece and that this one has not seen the end of; -1 if there is none."""
    writer: int = wrote[piece]
    if writer >= 0 and seen[stream[writer % len(stream)]] < writer:
        return writer
    if writes:
        for other in range(len(seen)):
            if seen[other] < read[other, piece]:
                reader: int = read[other, piece]
                return reader
    return -1
