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
        rng = self.random
        kind = rng.random()
        if kind < 0.35:
            size = rng.choice([unit for unit in UNITS if unit <= self.max_size]) * rng.randint(1, 4) + rng.randint(
                -1, 1
            )
        elif kind < 0.65:
            size = self.max_size // rng.randint(1, 12) + rng.randint(-1, 1)
        elif kind < 0.8:
            size = rng.randint(1, 16)
        else:
            size = int(2 ** rng.uniform(0, (self.max_size).bit_length()))
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
        rng, player = self.random, self.player
        if rng.random() < 0.3:
            return Allocate(len(player.offsets), rng.choice([0, 0, -1, -256]))
        if player.freed and rng.random() < 0.6:
            return WrongFree(rng.choice(sorted(player.freed)))
        low, size = rng.choice(sorted(player.witness.live.items()) or [(0, 1)])
        return WrongFree(-1, rng.choice([-1, low + 1, low + size - 1, low + size, player.witness.top + 4096]))


Pattern = Callable[[Source], Iterator[Request]]


def mix(source: Source) -> Iterator[Request]:
    """Anything, in any order."""
    for _ in range(source.steps):
        blocks = source.player.blocks()
        if blocks and source.random.random() < 0.45:
            yield source.give(source.random.choice(blocks))
        else:
            yield source.take(source.size())


def fill(source: Source) -> Iterator[Request]:
    """Fill it up, free every other block, ask for these bytes once more and for more than a hole has."""
    size = source.size()
    for _ in range(source.steps // 2):
        yield source.take(size)
        if source.player.offsets[-1] is None:
            break
    for block in source.player.blocks()[source.random.randint(0, 1) :: 2]:
        yield source.give(block)
    for extra in (1, 0, -1, 0):
        yield source.take(size + extra)
    yield from _free_some(source)


def neighbours(source: Source) -> Iterator[Request]:
    """Free blocks that touch, in any order, then ask for exactly their bytes, one more, and parts."""
    sizes = [source.size()] * 5 if source.random.random() < 0.5 else [source.size() for _ in range(5)]
    for _ in range(max(1, source.steps // 20)):
        stream = source.stream()
        for size in sizes:
            yield source.take(size, stream)
        blocks = source.player.blocks()
        first = source.random.randrange(max(1, len(blocks) - 1))
        together = blocks[first : first + source.random.randint(2, 3)]
        freed = sum(source.player.witness.live[source.player.live[block]] for block in together)
        source.random.shuffle(together)
        for block in together:
            yield source.give(block)
        for size in source.random.sample([freed + 1, freed, freed - 1, freed // 2], 2):
            yield source.take(size)
        yield from _free_some(source)


def holes(source: Source) -> Iterator[Request]:
    """Ask for exactly the bytes of a hole, for one more, and for one less."""
    for _ in range(5):
        yield source.take(source.size())
    for _ in range(source.steps // 4):
        free_ranges = source.player.witness.holes()
        if free_ranges and source.random.random() < 0.6:
            low, high = source.random.choice(free_ranges)
            yield source.take(high - low + source.random.choice([-1, 0, 0, 1]))
        elif blocks := source.player.blocks():
            yield source.give(source.random.choice(blocks))
            yield source.take(source.size())


def stack_and_queue(source: Source) -> Iterator[Request]:
    """Blocks of one size, last in first out, then first in first out."""
    size, many = source.size(), max(2, source.steps // 8)
    for last in (True, False):
        for _ in range(many):
            yield source.take(size)
        for block in sorted(source.player.live, reverse=last):
            yield source.give(block)


def large_and_small(source: Source) -> Iterator[Request]:
    """Large and small in turn; the large go, and others come into their place."""
    large, small = source.max_size // source.random.randint(3, 8), source.random.choice([1, 100, 256, 513])
    for _ in range(source.steps // 6):
        yield source.take(large)
        yield source.take(small)
    for block in sorted(source.player.live)[::2]:
        yield source.give(block)
    for _ in range(source.steps // 6):
        yield source.take(source.random.choice([large // 2, large + 1, large, small]))
    yield from _free_some(source)


def exchange(source: Source) -> Iterator[Request]:
    """Freed on one stream, asked for on another: as it was, a part of it, and with what lies beside it."""
    for _ in range(source.steps // 5):
        size = source.size()
        yield source.take(size)
        yield source.take(size)
        for block in source.player.blocks()[: source.random.randint(1, 2)]:
            yield source.give(block, source.random.randrange(source.streams))
        yield source.take(
            source.random.choice([size, size // 2, size - 1, 2 * size]), source.random.randrange(source.streams)
        )


def _free_some(source: Source) -> Iterator[Request]:
    blocks = source.player.blocks()
    source.random.shuffle(blocks)
    for block in blocks[: source.random.choice([len(blocks), len(blocks) // 2])]:
        yield source.give(block)


PATTERNS: tuple[Pattern, ...] = (mix, fill, neighbours, holes, stack_and_queue, large_and_small, exchange)
