"""TensorFlow's allocator against its bins taken literally, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gpumem.pool.allocators.bfc import BFC
from gpumem.pool.allocators.native import Native
from tests.requests import MIB, REQUESTS, Request, footprint, play, waits


class NaiveBFC:
    """Twenty-one bins, searched upwards; regions from a device."""

    def __init__(self, capacity: int | None) -> None:
        self.device = Native(capacity=capacity, granularity=256)
        self.next_region = 2 * MIB
        self.regions: list[list[list[int]]] = []  # of chunks [start, size, free]

    def bin(self, size: int) -> int:
        return min(20, (size // 256).bit_length() - 1)

    def find(self, size: int) -> int | None:
        for b in range(self.bin(size), 21):
            chunks = sorted((c[1], c[0], c, r) for r in self.regions for c in r if c[2] and self.bin(c[1]) == b)
            for room, start, chunk, region in chunks:
                if room >= size:
                    chunk[2] = 0
                    if room >= 2 * size or room - size >= 128 * MIB:
                        chunk[1] = size
                        region.insert(region.index(chunk) + 1, [start + size, room - size, 1])
                    return start
        return None

    def extend(self, size: int) -> None:
        if size > self.device.available:
            idle = [region for region in self.regions if all(c[2] for c in region)]
            if size > self.device.available + sum(c[1] for region in idle for c in region):
                raise MemoryError
            for region in idle:
                self.device.free(region[0][0])
                self.regions.remove(region)
        doubled = False
        while self.next_region < size:
            self.next_region, doubled = 2 * self.next_region, True
        bytes_ = min(self.next_region, self.device.available)
        self.regions.append([[self.device.allocate(bytes_), bytes_, 1]])
        self.next_region *= 1 if doubled else 2

    def allocate(self, size: int, *, stream: int = 0) -> int:
        size = -(-size // 256) * 256
        start = self.find(size)
        if start is None:
            self.extend(size)
            start = self.find(size)
        assert start is not None
        return start

    def free(self, offset: int, *, stream: int = 0) -> None:
        region = next(r for r in self.regions if any(c[0] == offset for c in r))
        k = next(k for k, c in enumerate(region) if c[0] == offset)
        region[k][2] = 1
        for i in (k + 1, k):
            if 0 < i < len(region) and region[i - 1][2] and region[i][2]:
                region[i - 1][1] += region.pop(i)[1]


@given(REQUESTS, st.sampled_from([None, 40 * MIB, 300 * MIB]), st.integers(1, 12))
def test_bfc_is_its_bins(requests: list[Request], capacity: int | None, scale: int) -> None:
    requests = [(fresh, size * scale, stream) for fresh, size, stream in requests]  # up to 288 MiB
    assert play(BFC(capacity=capacity), requests) == play(NaiveBFC(capacity), requests)


def test_bfc_splits_where_that_leaves_enough() -> None:
    bfc = BFC(capacity=1 << 30, allow_growth=False)
    a = bfc.allocate(400 * MIB)
    assert footprint(bfc) == (1024, 1024)  # the whole capacity at once
    guard = bfc.allocate(1)
    bfc.free(a)
    assert (bfc.allocate(273 * MIB), bfc.statistics.allocated.current) == (0, 400 * MIB + 256)  # 127 MiB are wasted
    bfc.free(0)
    assert (bfc.allocate(272 * MIB), bfc.statistics.allocated.current) == (0, 272 * MIB + 256)  # 128 MiB are not
    assert bfc.allocate(64 * MIB) == 272 * MIB  # half of the rest: split
    assert guard == 400 * MIB
    with pytest.raises(ValueError, match="allow_growth: False"):
        BFC(allow_growth=False)


def test_bfc_regions_double() -> None:
    bfc = BFC()
    seen = []
    for size in (1, 3, 8, 1, 30):
        bfc.allocate(size * MIB)
        seen.append(footprint(bfc)[0])
    # 1: a region of 2 is split, 1 is left, the next region is to be 4. 3: a region of 4, kept whole; next 8.
    # 8: a region of 8; next 16. 1: the half of the first one. 30: 16 doubles to 32, and stays 32 for the next one.
    assert seen == [2, 6, 14, 14, 46]
    bfc.allocate(32 * MIB)
    assert footprint(bfc) == (78, 78)
    small = BFC()
    assert [(small.allocate(2 * MIB), footprint(small)[0])[1] for _ in range(4)] == [2, 6, 6, 14]  # 2, 4 in halves, 8


def test_bfc_gives_idle_regions_back_for_a_larger_one() -> None:
    for collect in (True, False):
        bfc = BFC(capacity=16 * MIB, garbage_collection=collect)
        a, b = bfc.allocate(2 * MIB), bfc.allocate(4 * MIB)  # regions of 2 and 4
        bfc.free(a, stream=1)
        bfc.free(b, stream=1)
        waited = waits(bfc)
        if collect:
            bfc.allocate(14 * MIB)  # 10 are left: with 2 and 4 back, one region of min(16, 16)
            assert (footprint(bfc), len(waited)) == ((16, 16), 2)  # the device waits at each; none is needed after that
        else:
            with pytest.raises(MemoryError, match="6291456 of 16777216"):
                bfc.allocate(14 * MIB)
    with pytest.raises(MemoryError):  # and does not, where that would not be enough
        bfc = BFC(capacity=16 * MIB)
        bfc.free(bfc.allocate(2 * MIB))
        bfc.allocate(17 * MIB)
    assert footprint(bfc) == (2, 2)
