"""Requests that hurt allocators: each pattern is a generator that sees the answers to what it has asked so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from gpumem.testing.allocators.history import Player
from gpumem.testing.requests import Allocate, Free, Request, Sync, Use, WrongFree

UNITS = (1, 2, 4, 8, 64, 256, 512, 4096, 2**20, 2 * 2**20, 10 * 2**20, 20 * 2**20)  # to which allocators round


@dataclass(frozen=True, slots=True)
class Source:
    """Where patterns get their numbers from; `player` performs what they ask for, and they look at its blocks.

    `max_size`: bytes of one request at most; `steps`: requests at most, about.
    """

    player: Player
    random: Random
    max_size: int
    streams: int
    steps: int

    def size(self) -> int:
        """Return a size: near a multiple of a unit, near a fraction of the largest, tiny, or any."""
        r = self.random
        kind = r.random()
        if kind < 0.35:
            size = r.choice([u for u in UNITS if u <= self.max_size]) * r.randint(1, 4) + r.randint(-1, 1)
        elif kind < 0.65:
            size = self.max_size // r.randint(1, 12) + r.randint(-1, 1)
        elif kind < 0.8:
            size = r.randint(1, 16)
        else:
            size = int(2 ** r.uniform(0, (self.max_size).bit_length()))
        return self.clip(size)

    def clip(self, size: int) -> int:
        """Return the nearest legal size."""
        return min(max(size, 1), self.max_size)

    def take(self, size: int, stream: int | None = None) -> Allocate:
        """Ask for a new block."""
        return Allocate(len(self.player.offsets), self.clip(size), self.stream() if stream is None else stream)

    def give(self, block: int, stream: int | None = None) -> Free:
        """Free a block."""
        return Free(block, self.stream() if stream is None else stream)

    def stream(self) -> int:
        """Return any stream, mostly the first."""
        return max(0, self.random.randint(1 - self.streams, self.streams - 1))

    def shared(self) -> Request:
        """Tell of another stream that uses a block, most of the time; or ask for a sync."""
        if self.player.live and self.random.random() < 0.75:
            return Use(self.random.choice(sorted(self.player.live)), self.random.randrange(self.streams))
        return Sync()

    def wrong(self) -> Request:
        """Return a request that must be refused."""
        r, player = self.random, self.player
        if r.random() < 0.3:
            return Allocate(len(player.offsets), r.choice([0, 0, -1, -256]))
        if player.gone and r.random() < 0.6:
            return WrongFree(r.choice(sorted(player.gone)))
        low, size = r.choice(sorted(player.witness.live.items()) or [(0, 1)])
        return WrongFree(-1, r.choice([-1, low + 1, low + size - 1, low + size, player.witness.top + 4096]))


Pattern = Callable[[Source], Iterator[Request]]


def mix(s: Source) -> Iterator[Request]:
    """Anything, in any order."""
    for _ in range(s.steps):
        blocks = s.player.blocks()
        if blocks and s.random.random() < 0.45:
            yield s.give(s.random.choice(blocks))
        else:
            yield s.take(s.size())


def fill(s: Source) -> Iterator[Request]:
    """Fill it up, free every other block, ask for these bytes again and for more than a hole has."""
    size = s.size()
    for _ in range(s.steps // 2):
        yield s.take(size)
        if s.player.offsets[-1] is None:
            break
    for block in s.player.blocks()[s.random.randint(0, 1) :: 2]:
        yield s.give(block)
    for extra in (1, 0, -1, 0):
        yield s.take(size + extra)
    yield from _free_some(s)


def neighbours(s: Source) -> Iterator[Request]:
    """Free blocks that touch, in any order, then ask for exactly their bytes, one more, and parts."""
    sizes = [s.size()] * 5 if s.random.random() < 0.5 else [s.size() for _ in range(5)]
    for _ in range(max(1, s.steps // 20)):
        stream = s.stream()
        for size in sizes:
            yield s.take(size, stream)
        blocks = s.player.blocks()
        first = s.random.randrange(max(1, len(blocks) - 1))
        together = blocks[first : first + s.random.randint(2, 3)]
        room = sum(s.player.witness.live[s.player.live[block]] for block in together)
        s.random.shuffle(together)
        for block in together:
            yield s.give(block)
        for size in s.random.sample([room + 1, room, room - 1, room // 2], 2):
            yield s.take(size)
        yield from _free_some(s)


def holes(s: Source) -> Iterator[Request]:
    """Ask for exactly the bytes of a hole, for one more, and for one less."""
    for _ in range(5):
        yield s.take(s.size())
    for _ in range(s.steps // 4):
        found = s.player.witness.holes()
        if found and s.random.random() < 0.6:
            low, high = s.random.choice(found)
            yield s.take(high - low + s.random.choice([-1, 0, 0, 1]))
        elif blocks := s.player.blocks():
            yield s.give(s.random.choice(blocks))
            yield s.take(s.size())


def stack_and_queue(s: Source) -> Iterator[Request]:
    """Blocks of one size, last in first out, then first in first out."""
    size, many = s.size(), max(2, s.steps // 8)
    for last in (True, False):
        for _ in range(many):
            yield s.take(size)
        for block in sorted(s.player.live, reverse=last):
            yield s.give(block)


def large_and_small(s: Source) -> Iterator[Request]:
    """Large and small in turn; the large go, and others come into their place."""
    large, small = s.max_size // s.random.randint(3, 8), s.random.choice([1, 100, 256, 513])
    for _ in range(s.steps // 6):
        yield s.take(large)
        yield s.take(small)
    for block in sorted(s.player.live)[::2]:
        yield s.give(block)
    for _ in range(s.steps // 6):
        yield s.take(s.random.choice([large // 2, large + 1, large, small]))
    yield from _free_some(s)


def exchange(s: Source) -> Iterator[Request]:
    """Freed on one stream, asked for on another: as it was, a part of it, and with what lies beside it."""
    for _ in range(s.steps // 5):
        size = s.size()
        yield s.take(size)
        yield s.take(size)
        for block in s.player.blocks()[: s.random.randint(1, 2)]:
            yield s.give(block, s.random.randrange(s.streams))
        yield s.take(s.random.choice([size, size // 2, size - 1, 2 * size]), s.random.randrange(s.streams))


def _free_some(s: Source) -> Iterator[Request]:
    blocks = s.player.blocks()
    s.random.shuffle(blocks)
    for block in blocks[: s.random.choice([len(blocks), len(blocks) // 2])]:
        yield s.give(block)


PATTERNS: tuple[Pattern, ...] = (mix, fill, neighbours, holes, stack_and_queue, large_and_small, exchange)
