"""What every allocator of the table owes its user, as the docstring of `gpumem.pool.allocators.protocol` says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from functools import partial

import pytest
from hypothesis import given, strategies as st

from gpumem.pool import ALLOCATORS
from gpumem.pool.allocators.bfc import BFC
from gpumem.pool.allocators.buddy import Buddy
from gpumem.pool.allocators.caching import Caching
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import Pool
from tests.requests import MIB, REQUESTS, Request, play, waits

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
