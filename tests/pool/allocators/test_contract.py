"""Online allocators: sequences worked by hand from the rules, naive models of each, what all of them owe their user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from functools import partial

import pytest
from hypothesis import example, given, strategies as st

from gpumem.pool import ALLOCATORS
from gpumem.pool.allocators._blocks import FreeRanges
from gpumem.pool.allocators._last_use import LastUse
from gpumem.pool.allocators.bfc import BFC
from gpumem.pool.allocators.buddy import Buddy
from gpumem.pool.allocators.caching import Caching
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import Pool
from tests.requests import MIB, REQUESTS, Request, footprint, play, waits

MORE = {
    "native-1": partial(Native, granularity=1),
    "cnmem-first": partial(CnMem, fit="first"),
    "cnmem-pool": partial(CnMem, pool=8 * MIB),
    "cnmem-fixed": partial(CnMem, pool=8 * MIB, grow=False),
    "bfc-hoards": partial(BFC, garbage_collection=False),
    "caching-split": partial(Caching, max_split_size=21 * MIB),
    "caching-divisions": partial(Caching, roundup_power2_divisions=4),
    "caching-grows": partial(Caching, wait=False),
    "buddy-1": partial(Buddy, min_block=1),
}
ALL: dict[str, Callable[..., Pool]] = {**ALLOCATORS, **MORE}


# What every allocator owes: see the docstring of gpumem.pool.allocators.protocol


@given(st.sampled_from(sorted(ALL)), REQUESTS, st.sampled_from([None, 40 * MIB, 64 * MIB + 512]))
def test_the_contract(name: str, requests: list[Request], capacity: int | None) -> None:
    allocator = ALL[name](capacity=capacity)
    live: dict[int, tuple[int, int]] = {}  # offset -> (size, stream that used it last)
    unsafe: list[tuple[int, int, int]] = []  # (first byte, end, stream) of freed bytes, since the last wait
    allocator.synchronize = unsafe.clear
    statistics = allocator.statistics
    for fresh, size, stream in requests:
        before = [astuple(c) for c in (statistics.blocks, statistics.requested, statistics.allocated)]
        if fresh:
            try:
                offset = allocator.allocate(size, stream=stream)
            except MemoryError:
                assert capacity is not None or name == "cnmem-fixed"
                assert before == [astuple(c) for c in (statistics.blocks, statistics.requested, statistics.allocated)]
                continue
            assert offset >= 0 and offset % allocator.alignment == 0
            assert all(offset + size <= other or other + live[other][0] <= offset for other in live)
            mine = [(a, b, s) for a, b, s in unsafe if a < offset + size and offset < b]
            assert all(s == stream for _, _, s in mine), f"used without waiting: {mine}"
            unsafe[:] = [entry for entry in unsafe if entry not in mine] + [
                (a, b, s) for x, y, s in mine for a, b in ((x, offset), (offset + size, y)) if a < b
            ]
            live[offset] = size, stream
        elif live:
            offset = sorted(live)[size % len(live)]
            unsafe.append((offset, offset + live.pop(offset)[0], stream))
            allocator.free(offset, stream=stream)
        assert statistics.blocks.current == len(live)
        assert statistics.requested.current == sum(size for size, _ in live.values())
        assert statistics.requested.current <= statistics.allocated.current <= statistics.reserved.current
        assert capacity is None or statistics.reserved.peak <= capacity
    for offset in sorted(live):
        allocator.free(offset)
    assert statistics.blocks.current == statistics.requested.current == statistics.allocated.current == 0


@given(st.sampled_from(sorted(ALL)), REQUESTS)
def test_what_is_all_free_is_whole_again(name: str, requests: list[Request]) -> None:
    # 40 MiB are a multiple of every page; 32 MiB are the largest block of a buddy system in them
    allocator = ALL[name](capacity=40 * MIB)
    offsets = play(allocator, [(fresh, size, 0) for fresh, size, _ in requests])
    assert offsets == play(ALL[name](capacity=40 * MIB), [(fresh, size, 0) for fresh, size, _ in requests])
    if name in ("cnmem-pool", "cnmem-fixed", "bfc-hoards"):  # several blocks of the device's, kept for good
        return
    whole = 32 * MIB if "buddy" in name else 40 * MIB
    allocator.allocate(whole)
    with pytest.raises(MemoryError, match=rf"no room for {10 * MIB} bytes: \d+ of {40 * MIB} are reserved"):
        allocator.allocate(10 * MIB)


@pytest.mark.parametrize("name", ALL)
def test_nonsense_is_refused_and_changes_nothing(name: str) -> None:
    allocator = ALL[name]()
    a, b = allocator.allocate(700), allocator.allocate(300)
    allocator.free(a)
    before = astuple(allocator.statistics)
    for size in (0, -1, 1.5, 512.0, None, "8"):
        with pytest.raises(ValueError, match=r"size: .* is not an integer of 1 and more"):
            allocator.allocate(size)  # type: ignore[arg-type]
    for offset in (a, b + 1, -1, float(b), None, [b]):
        with pytest.raises(ValueError, match="no live block starts there"):
            allocator.free(offset)  # type: ignore[arg-type]
    assert astuple(allocator.statistics) == before
    assert allocator.allocate(700) == a


@pytest.mark.parametrize("name", ALL)
def test_capacity_is_an_integer_and_of_the_device(name: str) -> None:
    for capacity in (-1, 0.5):
        with pytest.raises(ValueError, match=r"capacity: .* is not an integer of 0 and more"):
            ALL[name](capacity=capacity)
    if "native" not in name:
        with pytest.raises(ValueError, match=r"capacity: 64 given beside a device, which has its own \(128\)"):
            ALL[name](capacity=64, device=Native(capacity=128))


@pytest.mark.parametrize("name", [name for name in ALL if "native" not in name])
def test_two_share_a_device(name: str) -> None:
    device = Native(capacity=48 * MIB, granularity=512)
    one, other = ALL[name](device=device), Caching(device=device)
    a, b = one.allocate(3 * MIB), other.allocate(5 * MIB)  # the latter takes 20 MiB
    assert a + 3 * MIB <= b or b + 5 * MIB <= a
    assert one.statistics.reserved is other.statistics.reserved is device.statistics.reserved
    held = device.statistics.reserved.current
    with pytest.raises(MemoryError):
        one.allocate(30 * MIB)
    assert device.statistics.reserved.current == held


# Streams


EVENTS = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 6), st.integers(0, 2)), min_size=12, max_size=40)


def run(taken: list[bool], start: int, size: int) -> range:
    """The bytes from `start` on, at most `size`, that are all free or all taken."""
    end = start
    while end < min(start + size, len(taken)) and taken[end] == taken[start]:
        end += 1
    return range(start, end)


@example([(0, 4, 0), (0, 3, 0), (3, 1, 1)])  # the last byte is left over
@example([(0, 4, 0), (1, 3, 0), (0, 1, 1)])  # the first one
@given(EVENTS)
def test_it_waits_exactly_where_bytes_change_streams(events: list[tuple[int, int, int]]) -> None:
    waited: list[None] = []
    use = LastUse(lambda: waited.append(None))
    last: list[int | None] = [None] * 16  # by byte: who used it last, since the last wait; taken bytes are None too
    taken = [True] * 16
    expected = 0
    for start, size, stream in events:
        span = run(taken, start, size)
        if taken[start]:
            use.freed(start, len(span), stream)
            last[start : span.stop] = [stream] * len(span)
        else:
            use.claim(start, len(span), stream)
            if any(last[i] not in (None, stream) for i in span):
                expected += 1
                last = [None] * 16
            last[start : span.stop] = [None] * len(span)
        taken[start : span.stop] = [not taken[start]] * len(span)
        assert len(waited) == expected


@given(EVENTS, st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_free_ranges_merge_within_their_segments(events: list[tuple[int, int, int]], segments: list[int]) -> None:
    free = FreeRanges()
    heads = [sum(segments[:k]) for k in range(len(segments))]
    for start, size in reversed(list(zip(heads, segments))):
        free.open(start, size)
    taken = [False] * sum(segments)
    for at, size, _ in events:
        pieces = naive_ranges(taken, heads)
        assert free.ranges() == pieces
        assert free.whole() == [piece for piece in pieces if piece in list(zip(heads, segments))]
        fits = [(room, start) for start, room in pieces if room >= size]
        assert free.best(size) == (min(fits)[1] if fits else None)
        assert free.lowest(size) == min((start for _, start in fits), default=None)
        assert free.from_size(size) == sorted(fits)
        at %= len(taken)
        if taken[at]:
            end = min([*[h for h in heads if h > at], len(taken)])
            span = run(taken[:end], at, size)
            merged = free.put(at, len(span))
            taken[at : span.stop] = [False] * len(span)
            assert merged == max(start for start, _ in naive_ranges(taken, heads) if start <= at)
        else:
            start, room = next((s, r) for s, r in pieces if s <= at < s + r)
            size = min(size, room)
            free.take(start, size)
            taken[start : start + size] = [True] * size


def naive_ranges(taken: list[bool], heads: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for i in range(len(taken)):
        if not taken[i] and ranges and sum(ranges[-1]) == i and i not in heads:
            ranges[-1] = ranges[-1][0], ranges[-1][1] + 1
        elif not taken[i]:
            ranges.append((i, 1))
    return ranges


@pytest.mark.parametrize("make", [BFC, Buddy, CnMem])
def test_bytes_go_to_another_stream_after_a_wait(make: Callable[..., Pool]) -> None:
    allocator = make(capacity=4096)
    waited = waits(allocator)
    a = allocator.allocate(4096, stream=0)
    allocator.free(a, stream=0)
    assert allocator.allocate(2048, stream=0) == a and not waited  # its own bytes
    b = allocator.allocate(1024, stream=1)
    assert len(waited) == 1
    allocator.free(b, stream=1)
    assert allocator.allocate(1024, stream=1) == b and len(waited) == 1


def test_the_device_waits_at_each_free() -> None:
    device = Native()
    waited = waits(device)
    a = device.allocate(1)
    with pytest.raises(ValueError):
        device.free(a + 1)
    assert not waited
    device.free(a)
    assert len(waited) == 1


# Native


def test_native_counts_rounded_blocks_and_no_holes() -> None:
    device = Native(capacity=8 * MIB)
    a, b, c = (device.allocate(size) for size in (1, 2 * MIB, 2 * MIB + 1))
    assert (a, b, c) == (0, 2 * MIB, 4 * MIB)  # 2 + 2 + 4 MiB: full
    device.free(a)
    device.free(c)
    assert device.available == 6 * MIB
    assert device.allocate(6 * MIB) == 4 * MIB  # 2 + 4 MiB are free on either side of b: addresses cost nothing
    assert footprint(device) == (8, 8)
    assert astuple(device.statistics.requested) == (8 * MIB, 8 * MIB, 10 * MIB + 2)
    with pytest.raises(MemoryError, match="no room for 1 bytes: 8388608 of 8388608 are reserved"):
        device.allocate(1)
    odd = Native(capacity=3 * MIB)
    assert odd.available == 2 * MIB
    odd.allocate(1)
    with pytest.raises(MemoryError):
        odd.allocate(1)
    with pytest.raises(ValueError, match="granularity: 0"):
        Native(granularity=0)


# CnMem


class NaiveCnMem:
    """The list of free blocks as cnmem walks it, of one manager in one pool."""

    def __init__(self, pool: int) -> None:
        self.free_list = [(0, pool)]
        self.used: dict[int, int] = {}

    def allocate(self, size: int, *, stream: int = 0) -> int:
        size = -(-size // 512) * 512
        best = None
        for start, room in self.free_list:
            if room >= size and (best is None or room < best[1]):
                best = (start, room)
        if best is None:
            raise MemoryError
        k = self.free_list.index(best)
        self.free_list[k : k + 1] = [(best[0] + size, best[1] - size)] if best[1] > size else []
        self.used[best[0]] = size
        return best[0]

    def free(self, offset: int, *, stream: int = 0) -> None:
        self.free_list = sorted([*self.free_list, (offset, self.used.pop(offset))])
        for k in range(len(self.free_list) - 1, 0, -1):
            (a, x), (b, y) = self.free_list[k - 1 : k + 1]
            if a + x == b:
                self.free_list[k - 1 : k + 1] = [(a, x + y)]


@given(REQUESTS)
def test_cnmem_is_its_list(requests: list[Request]) -> None:
    requests = [(fresh, size, 0) for fresh, size, _ in requests]
    expected = play(NaiveCnMem(30 * MIB), requests)
    assert play(CnMem(capacity=30 * MIB), requests) == expected
    assert play(CnMem(pool=30 * MIB, grow=False), requests) == expected
    assert play(CnMem(capacity=30 * MIB, pool=30 * MIB), requests) == expected


def test_cnmem_best_and_first_fit() -> None:
    for fit, place in (("best", 3072), ("first", 0)):
        cnmem = CnMem(fit=fit)
        a, _, c, _ = (cnmem.allocate(size) for size in (2000, 1000, 600, 1))  # 2048, 1024, 1024, 512
        cnmem.free(a)
        cnmem.free(c)
        assert cnmem.allocate(1000) == place  # free: [0, 2048), [3072, 4096), [4608, ...)
        assert cnmem.statistics.reserved.peak == 4608
    with pytest.raises(ValueError, match="fit: 'worst' is unknown; there are best, first"):
        CnMem(fit="worst")


def test_cnmem_grows_by_what_is_asked_and_does_not_merge_over_it() -> None:
    cnmem = CnMem(capacity=4096, pool=1000)  # 1024
    a, b = cnmem.allocate(1024), cnmem.allocate(600)  # cudaMalloc(1024) for b
    assert (a, b, cnmem.statistics.reserved.current) == (0, 1024, 2048)
    cnmem.free(a)
    cnmem.free(b)
    assert cnmem.allocate(1100) == 2048  # a and b stay apart: cudaMalloc(1536)
    assert cnmem.statistics.reserved.current == 3584
    with pytest.raises(MemoryError):
        cnmem.allocate(1025)  # 512 are left on the device
    with pytest.raises(MemoryError):
        CnMem(pool=1000, grow=False).allocate(1025)
    with pytest.raises(MemoryError, match="no room for 1024 bytes: 0 of 1023"):
        CnMem(capacity=1023, pool=1000)


def test_cnmem_has_a_manager_for_each_stream() -> None:
    cnmem = CnMem(capacity=4096)
    a = cnmem.allocate(1024, stream=1)  # the root gives stream 1 its first 1024 bytes
    cnmem.free(a, stream=1)
    assert cnmem.allocate(512, stream=0) == 1024  # they are not the root's any more
    assert cnmem.allocate(512, stream=1) == 0
    assert cnmem.allocate(1024, stream=1) == 1536  # 512 are free in its own: not enough
    assert cnmem.allocate(1536, stream=2) == 2560  # the root is empty now
    assert cnmem.allocate(512, stream=2) == 512  # stolen from stream 1
    cnmem.free(512, stream=2)
    assert cnmem.allocate(512, stream=2) == 512  # it is stream 2's now
    with pytest.raises(MemoryError):
        cnmem.allocate(512, stream=1)
    fixed = CnMem(capacity=1024, steal=False)
    fixed.free(fixed.allocate(1024, stream=1), stream=1)
    with pytest.raises(MemoryError):
        fixed.allocate(512, stream=2)


# Buddy


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
