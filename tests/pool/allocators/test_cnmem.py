"""cnmem's allocator against its list of free blocks taken literally, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given

from gpumem.pool.allocators.cnmem import CnMem
from tests.requests import MIB, REQUESTS, Request, play


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
