"""What online allocators keep books with: free ranges that coalesce, live blocks that are counted."""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, SupportsIndex, TypeVar

from gpumem.pool.allocators.protocol import Statistics

B = TypeVar("B")
Home = TypeVar("Home")


def checked(value: SupportsIndex, what: str, least: int = 1) -> int:
    """Return an integer of `least` and more.

    >>> checked(0, "size")
    Traceback (most recent call last):
    ValueError: size: 0 is not an integer of 1 and more
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{what}: {value!r:.60} is not an integer of {least} and more")
    return number


def rounded(size: int, unit: int) -> int:
    """Return the next multiple of `unit`.

    >>> rounded(513, 512)
    1024
    """
    return -(-size // unit) * unit


def block_at(blocks: Mapping[int, B], offset: SupportsIndex) -> B:
    """Return the live block that starts at an offset; `ValueError` where none does."""
    try:
        return blocks[operator.index(offset)]
    except (TypeError, KeyError):
        raise ValueError(f"offset {offset!r:.60}: no live block starts there") from None


class FreeRanges:
    """Free ranges of bytes: neighbours coalesce, but never over the first byte of a segment.

    Examples
    --------
    >>> free = FreeRanges()
    >>> free.open(0, 8); free.open(8, 4)  # neighbours, but two segments
    >>> free.best(3), free.best(5), free.lowest(3), free.best(9)
    (8, 0, 0, None)
    >>> free.take(0, 5)
    >>> free.ranges()
    [(5, 3), (8, 4)]
    >>> free.put(0, 5), free.whole()
    (0, [(0, 8), (8, 4)])
    """

    __slots__ = ("_by_end", "_order", "_size", "segments")

    def __init__(self) -> None:
        self.segments: dict[int, int] = {}  # first byte -> bytes
        self._size: dict[int, int] = {}  # of a free range: first byte -> bytes
        self._by_end: dict[int, int] = {}  # end -> first byte
        self._order: list[tuple[int, int]] = []  # (bytes, first byte), ascending

    def __len__(self) -> int:
        return len(self._order)

    def open(self, start: int, size: int) -> None:
        """Add a segment, all of it free."""
        self.segments[start] = size
        self.put(start, size)

    def close(self, start: int) -> None:
        """Remove a segment that is wholly free."""
        del self.segments[start]
        self._remove(start)

    def put(self, start: int, size: int) -> int:
        """Add a free range, merged with its free neighbours; return where the result starts."""
        end = start + size
        if start in self._by_end and start not in self.segments:
            below = self._by_end[start]
            self._remove(below)
            start = below
        if end in self._size and end not in self.segments:
            end += self._remove(end)
        self._insert(start, end - start)
        return start

    def take(self, start: int, size: int) -> None:
        """Remove the first `size` bytes of the free range at `start`."""
        rest = self._remove(start) - size
        if rest:
            self._insert(start + size, rest)

    def clear(self) -> list[tuple[int, int]]:
        """Remove all ranges, but no segment; return them as `ranges` does."""
        removed = self.ranges()
        for books in (self._size, self._by_end, self._order):
            books.clear()
        return removed

    def best(self, size: int) -> int | None:
        """Return the smallest range that fits, the lowest of several."""
        place = bisect_left(self._order, (size,))
        return self._order[place][1] if place < len(self._order) else None

    def lowest(self, size: int) -> int | None:
        """Return the range that fits at the lowest address."""
        return min((start for _, start in self._order[bisect_left(self._order, (size,)) :]), default=None)

    def at(self, start: int) -> int:
        """Return the bytes of the free range that starts there, 0 where none does."""
        return self._size.get(start, 0)

    def until(self, end: int) -> int:
        """Return where the free range before `end` in the same segment starts, or `end`."""
        return end if end in self.segments else self._by_end.get(end, end)

    def from_size(self, size: int) -> list[tuple[int, int]]:
        """Return (bytes, first byte) of the ranges of at least `size`, ascending."""
        return self._order[bisect_left(self._order, (size,)) :]

    def ranges(self) -> list[tuple[int, int]]:
        """Return (first byte, bytes) of all ranges by address."""
        return sorted(self._size.items())

    def whole(self) -> list[tuple[int, int]]:
        """Return (first byte, bytes) of the segments that are wholly free, by address."""
        return sorted((start, size) for start, size in self.segments.items() if self._size.get(start) == size)

    def _insert(self, start: int, size: int) -> None:
        self._size[start] = size
        self._by_end[start + size] = start
        insort(self._order, (size, start))

    def _remove(self, start: int) -> int:
        size = self._size.pop(start)
        del self._by_end[start + size]
        del self._order[bisect_left(self._order, (size, start))]
        return size


@dataclass(frozen=True, slots=True)
class Granted(Generic[Home]):
    """An allocated block: its bytes, those asked for, and the pool it goes back to."""

    size: int
    requested: int
    home: Home


class Live(Generic[Home]):
    """The allocated blocks, by offset; counts them."""

    __slots__ = ("_blocks", "_counts")

    def __init__(self, statistics: Statistics) -> None:
        self._counts = statistics
        self._blocks: dict[int, Granted[Home]] = {}

    def __getitem__(self, offset: SupportsIndex) -> Granted[Home]:
        return block_at(self._blocks, offset)

    def add(self, offset: int, block: Granted[Home]) -> int:
        """Enter a block and return its offset."""
        self._blocks[offset] = block
        self._counts.add_block(block.size, block.requested)
        return offset

    def remove(self, offset: SupportsIndex) -> Granted[Home]:
        """Strike a block out and return it; `ValueError` where none is live."""
        block = self[offset]
        del self._blocks[operator.index(offset)]
        self._counts.drop_block(block.size, block.requested)
        return block
