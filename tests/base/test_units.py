"""Amounts and moments as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gpumem.base.units import amount, moment


@given(st.integers(1, 2**50))
def test_all_of_it_is_100_percent(whole: int) -> None:
    assert amount("100%", whole, "--limit") == whole
    assert amount("200%", whole, "--limit") == 2 * whole
    assert amount("70%", 10 * whole, "--limit") == 7 * whole


def test_moments() -> None:
    assert [moment(text, "x") for text in ("7", "7ns", "2us", ".5 ms", "3s")] == [7, 7, 2_000, 500_000, 3_000_000_000]
    for text in ("", "-1", "5 days", "9" * 50, "9999999999s"):
        with pytest.raises(ValueError, match=r"^x: "):
            moment(text, "x")
