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
from gpumem.base.jit import jit
from gpumem.execute.backend import Work
from gpumem.execute.layout import Block, Layout
from gpumem.trace import I64


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
        both = [[x for x in layout.blocks if x.host == host] for host in (False, True)]
        self.edges = [np.unique([0, *(e for x in blocks for e in (x.offset, x.offset + x.size))]) for blocks in both]
        self.base = (0, len(self.edges[0]))  # the host's pieces come after the device's
        pieces = sum(len(e) for e in self.edges)
        self.ranges = {x.buffer: self._pieces(x) for x in layout.blocks}
        reads, writes = layout.trace.ops.reads.tolist(), layout.trace.ops.writes.tolist()
        self.rows = [self._row(r, w) for r, w in zip(reads, writes)]
        self.wrote = np.full(pieces, -1, np.int64)
        self.read = np.full((self.streams, pieces), -1, np.int64)
        self.stream = layout.trace.ops.stream
        self.begin(0)

    def _pieces(self, x: Block) -> tuple[int, int]:
        low, high = np.searchsorted(self.edges[x.host], [x.offset, x.offset + x.size])
        return self.base[x.host] + int(low), self.base[x.host] + int(high)

    def _row(self, reads: list[int], writes: list[int]) -> I64:
        rows = [(*self.ranges[b], 0) for b in reads] + [(*self.ranges[b], 1) for b in writes]
        return np.array(rows, np.int64).reshape(-1, 3)

    def begin(self, ops: int) -> None:
        """Start anew with room for `ops` ops, of which the last count: whatever was issued before has ended."""
        self.wrote[:], self.read[:] = -1, -1
        self.clock = np.full((ops, self.streams), -1, np.int64)
        self.last = np.full(self.streams, -1, np.int64)

    def issue(self, k: int, work: Work, after: Sequence[int]) -> None:
        """Op `work` is issued as number `k`, after those numbered `after`; raise the `Race` that this makes."""
        waits, touched = np.array(after, np.int64), self.rows[work.op]
        if len(after) and k - waits.min() >= len(self.clock):
            raise ValueError(f"waits for op {waits.min()} in issue order, {k - waits.min()} before it: too long ago")
        y, piece = _observe(k, self.stream, waits, touched, self.clock, self.last, self.wrote, self.read)
        if y >= 0:
            raise self._race(int(y) % len(self.rows), work, int(piece))

    def _race(self, first: int, second: Work, piece: int) -> Race:
        """Name the two and the bytes in common of the buffers that hold `piece`."""
        host = piece >= self.base[1]
        rows = [self.rows[op].tolist() for op in (first, second.op)]
        touched = [next(r for r in row if r[0] <= piece < r[1]) for row in rows]
        at = self.edges[host]
        low = int(at[max(t[0] for t in touched) - self.base[host]])
        high = int(at[min(t[1] for t in touched) - self.base[host]])
        names = self.layout.trace.ops.name
        return Race((first, names[first]), (second.op, second.name), "host" if host else "device", low, high)


@jit
def _observe(
    k: int, stream: I64, waits: I64, touched: I64, clock: I64, last: I64, wrote: I64, read: I64
) -> tuple[int, int]:
    """Set the clock of op `k` and note what it touches; return an op that it races with and the piece, or -1, -1."""
    n, (rows, streams) = len(stream), clock.shape
    own, mine = stream[k % n], clock[k % rows]  # a ring: older ops are asked for by nobody
    known = last[own] >= 0
    for s in range(streams):
        mine[s] = clock[last[own] % rows, s] if known else -1
    mine[own] = last[own]
    for y in waits:
        for s in range(streams):
            mine[s] = max(mine[s], clock[y % rows, s])
        mine[stream[y % n]] = max(mine[stream[y % n]], y)
    for t in range(len(touched)):
        for piece in range(touched[t, 0], touched[t, 1]):
            y = wrote[piece]
            if y >= 0 and mine[stream[y % n]] < y:
                return y, piece
            if touched[t, 2]:
                for s in range(streams):
                    if mine[s] < read[s, piece]:
                        return read[s, piece], piece
    for t in range(len(touched)):
        for piece in range(touched[t, 0], touched[t, 1]):
            if touched[t, 2]:
                wrote[piece] = k
            else:
                read[own, piece] = k
    last[own] = k
    return -1, -1
