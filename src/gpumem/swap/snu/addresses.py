"""A pool of bytes of which buffers get pieces by offset: its holes, and runs of neighbours."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

FITS = ("best", "first")


@dataclass(slots=True)
class Pieces:
    """Pieces `(offset, end, buffer)` of `capacity` bytes, in the order of addresses.

    `fit`: `best`, the smallest hole that is large enough, the lowest of equal ones; `first`, the lowest.
    """

    capacity: int
    fit: str
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    at: dict[int, int] = field(default_factory=dict)  # buffer -> offset

    def holes(self) -> Iterator[tuple[int, int]]:
        """Where each hole begins and ends, the lowest first."""
        low = 0
        for offset, end, _ in self.rows:
            if offset > low:
                yield low, offset
            low = end
        if self.capacity > low:
            yield low, self.capacity

    def find(self, size: int) -> int:
        """The offset of a hole for `size` bytes, or -1."""
        wide = ((high - low, low) for low, high in self.holes() if high - low >= size)
        hole = min(wide, default=None) if self.fit == "best" else next(wide, None)
        return -1 if hole is None else hole[1]

    def take(self, buffer: int, offset: int, size: int) -> None:
        """Give `buffer` a piece."""
        insort(self.rows, (offset, offset + size, buffer))
        self.at[buffer] = offset

    def free(self, buffer: int) -> None:
        """Free the piece of `buffer`."""
        del self.rows[bisect_left(self.rows, (self.at.pop(buffer),))]

    def run(self, size: int, *, lru: Iterable[int], dirty: Mapping[int, int], host_free: int) -> list[int]:
        """Return neighbours whose eviction leaves a hole of `size` bytes, or nothing.

        Only buffers of `lru` can be evicted, the least recently used first; `dirty` bytes of each have to be copied
        out, and the host has `host_free` bytes for these. Of all such runs it is the one whose most recently used
        member was used longest ago, of equal ones the lowest; each run ends as soon as it suffices, since a longer one
        evicts more for the same hole.
        """
        rank = {buffer: index for index, buffer in enumerate(lru)}
        ends = [0, *(end for _, end, _ in self.rows)]
        starts = [*(offset for offset, _, _ in self.rows), self.capacity]
        buffers = [buffer for _, _, buffer in self.rows]
        newest, best = len(rank), list[int]()
        for first in range(len(buffers)):
            last = first
            while last < len(buffers) and buffers[last] in rank and starts[last + 1] - ends[first] < size:
                last += 1
            if last < len(buffers) and buffers[last] in rank:
                run = buffers[first : last + 1]
                last_used = max(rank[buffer] for buffer in run)
                if last_used < newest and sum(dirty[buffer] for buffer in run) <= host_free:
                    newest, best = last_used, run
        return best

    def largest(self) -> tuple[int, int]:
        """The bytes of the largest hole, and of all."""
        sizes = [high - low for low, high in self.holes()]
        return max(sizes, default=0), sum(sizes)
