"""Checksums, fills and delays in NumPy are the published splitmix64 and LCG, and see every byte and its place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.kernels import reference
from tests.kernel_cases import zeros
from tests.kernels.formulas import MASK, naive_mix

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


@given(x=st.binary(max_size=40), salt=st.integers(-(2**65), 2**65), before=st.integers(0, MASK))
def test_checksum_and_fill_are_splitmix64(x: bytes, salt: int, before: int) -> None:
    start = naive_mix(salt & MASK)
    weights = [naive_mix((start + (i + 1) * 0x9E3779B97F4A7C15) & MASK) | 1 for i in range(len(x))]
    digest, out = np.array([before], np.uint64), np.zeros(len(x), np.uint8)
    reference.checksum(None, np.frombuffer(x, np.uint8), digest, salt)
    assert digest[0] == (before + sum((byte + 1) * weight for byte, weight in zip(x, weights, strict=True))) & MASK
    reference.fill(None, digest, out, salt)
    start = naive_mix(int(digest[0]) ^ start)
    states = [(start + (i + 1) * 0x9E3779B97F4A7C15) & MASK for i in range(len(x))]
    assert out.tolist() == [naive_mix(state) >> 56 for state in states]


def test_long_buffers_are_hashed_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    x, sums = np.arange(100, dtype=np.uint8), set()
    for chunk in (1000, 7):
        monkeypatch.setattr("gpumem.kernels.reference._CHUNK", chunk)
        monkeypatch.setattr("gpumem.kernels.reference.norm._CHUNK", chunk)
        digest, out, y, mask = np.zeros(1, np.uint64), np.zeros(100, np.uint8), zeros(100), np.zeros(100, np.uint8)
        reference.checksum(None, x, digest)
        reference.fill(None, digest, out)
        reference.dropout(None, zeros(100) + 1, y, mask, digest, 3)
        sums.add((int(digest[0]), out.tobytes(), mask.tobytes(), y.tobytes()))
    assert len(sums) == 1


@given(x=st.binary(min_size=2, max_size=40), data=st.data())
def test_a_checksum_sees_bytes_positions_and_salts(x: bytes, data: st.DataObject) -> None:
    def digest(x: bytes, salt: int = 0) -> int:
        out = np.zeros(1, np.uint64)
        reference.checksum(None, np.frombuffer(x, np.uint8), out, salt)
        return int(out[0])

    i, j = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=2, max_size=2, unique=True))
    other = bytearray(x)
    other[i], other[j] = x[j], x[i]
    assert (digest(bytes(other)) == digest(x)) == (x[i] == x[j])
    other = bytearray(x)
    other[i] ^= data.draw(st.integers(1, 255))
    assert digest(bytes(other)) != digest(x) != digest(x + b"\0")
    assert digest(x, 1) != digest(x)


@given(steps=st.integers(0, 500))
def test_delay_is_an_lcg(steps: int) -> None:
    state, out = 0, np.ones(1, np.uint64)
    for _ in range(steps):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
    reference.delay(None, steps, out)
    assert out[0] == state
