"""The device itself by hand: rounded blocks, no holes, a wait at each free."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from gpumem.pool.allocators.native import Native
from tests.requests import MIB, footprint, waits


def test_the_device_waits_at_each_free() -> None:
    device = Native()
    waited = waits(device)
    a = device.allocate(1)
    with pytest.raises(ValueError):
        device.free(a + 1)
    assert not waited
    device.free(a)
    assert len(waited) == 1


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
