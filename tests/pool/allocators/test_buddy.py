"""The buddy system against Knuth's rules taken literally, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given

from gpumem.pool.allocators.buddy import Buddy
from gpumem.pool.allocators.native import Native
from tests.requests import MIB, REQUESTS, Request, play


class NaiveBuddy:
    """Free blocks (bytes, start) in an arena of a fixed size."""

    def __init__(self, size: int) -> None:
        self.free_blocks = {(size, 0)}
        self.used: dict[int, int] = {}

    def allocate(self, size: int, *, stream: int = 0) -> int:
        need = 256
        while need < size:
            need *= 2
        fits = [block for block in self.free_blocks if block[0] >= need]
        if not fits:
            raise MemoryError
        room, start = min(fits)
        self.free_blocks.remove((room, start))
        while room > need:
            room //= 2
            self.free_blocks.add((room, start + room))
        self.used[start] = need
        return start

    def free(self, offset: int, *, stream: int = 0) -> None:
        size = self.used.pop(offset)
        while (size, offset ^ size) in self.free_blocks:
            self.free_blocks.remove((size, offset ^ size))
            offset, size = min(offset, offset ^ size), 2 * size
        self.free_blocks.add((size, offset))


@given(REQUESTS)
def test_buddy_is_knuths(requests: list[Request]) -> None:
    grown = Buddy(capacity=32 * MIB)
    grown.free(grown.allocate(32 * MIB))  # the whole arena at once, as Knuth has it
    assert play(grown, requests) == play(NaiveBuddy(32 * MIB), requests)


def test_buddy_doubles_until_it_fits() -> None:
    buddy = Buddy()
    sizes = []
    for size in (1, 257, 300, 4096, 256):
        buddy.allocate(size)
        sizes.append(buddy.statistics.reserved.current)
    # 256; 512 at 512 (the arena is 1024); 512 at 1024 (2048); 4096 at 4096 (8192); 256 at 256
    assert sizes == [256, 1024, 2048, 8192, 8192]
    assert [buddy.allocate(512), buddy.allocate(512), buddy.allocate(1024)] == [1536, 2048, 3072]
    idle = Buddy()
    idle.free(idle.allocate(256))
    assert (idle.allocate(512), idle.statistics.reserved.current) == (0, 512)  # the old part and the new one merge
    device = Native(capacity=48, granularity=1)
    shared = Buddy(device=device, min_block=1)
    shared.allocate(4)
    device.allocate(20)
    with pytest.raises(MemoryError):
        shared.allocate(16)  # the arena would be 32, but of the 28 more there are 24
    assert (shared.allocate(8), device.available) == (8, 12)


def test_buddy_merges_with_its_buddy_only() -> None:
    buddy = Buddy(capacity=1024)
    blocks = [buddy.allocate(256) for _ in range(4)]
    assert blocks == [0, 256, 512, 768]
    buddy.free(256)
    buddy.free(512)  # neighbours, but not buddies
    with pytest.raises(MemoryError):
        buddy.allocate(512)
    buddy.free(768)
    assert buddy.allocate(512) == 512


def test_buddy_uses_a_capacity_that_is_no_power_of_two() -> None:
    buddy = Buddy(capacity=7 * 256 + 255)  # blocks of 4, 2 and 1 units
    with pytest.raises(MemoryError):
        buddy.allocate(5 * 256)
    assert buddy.statistics.reserved.peak == 0
    assert [buddy.allocate(n * 256) for n in (4, 2, 1)] == [0, 1024, 1536]
    assert buddy.statistics.reserved.peak == 7 * 256
    odd = Buddy(capacity=15, min_block=1)
    assert (odd.allocate(1), odd.allocate(4)) == (0, 4)
    with pytest.raises(MemoryError):
        odd.allocate(8)  # from [8, 15): 4, 2, 1
    with pytest.raises(ValueError, match="min_block: 3 is not a power of two"):
        Buddy(min_block=3)
