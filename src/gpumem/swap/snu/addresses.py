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
        found = min(wide, default=None) if self.fit == "best" else next(wide, None)
        return -1 if found is None else found[1]

    def take(self, buffer: int, offset: int, size: int) -> None:
        """Give `buffer` a piece."""
        insort(self.rows, (offset, offset + size, buffer))
        self.at[buffer] = offset

    def give_back(self, buffer: int) -> None:
        """Take its piece from `buffer`."""
        del self.rows[bisect_left(self.rows, (self.at.pop(buffer),))]

    def run(self, size: int, oldest: Iterable[int], dirty: Mapping[int, int], room: int) -> list[int]:
        """Return neighbours which leave a hole of `size` bytes if they go, or nothing.

        Only `oldest` can go, the least recently used first; `dirty` bytes of each have to be copied out, and there is
        `room` for so many on the host. Of all such runs it is the one whose most recently used member was used
        longest ago, of equal ones the lowest; each ends as soon as it suffices.
        """
        rank = {b: k for k, b in enumerate(oldest)}
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
                when = max(rank[b] for b in run)
                if when < newest and sum(dirty[b] for b in run) <= room:
                    newest, best = when, run
        return best

    def largest(self) -> tuple[int, int]:
        """The bytes of the largest hole, and of all."""
        sizes = [high - low for low, high in self.holes()]
        return max(sizes, default=0), sum(sizes)
