"""Compiled loops: where nothing can be kept they are compiled all the same, and that is said."""

from __future__ import annotations

import numba
import pytest

from gpumem.base import jit as _jit


@pytest.mark.jit
def test_where_nothing_can_be_kept_loops_are_compiled_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def twice(x: int) -> int:
        return 2 * x

    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])
    monkeypatch.setattr(_jit._listener, "kept", True)
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(twice)
    found = _jit.jit(twice)
    told: list[bool] = []
    monkeypatch.setattr(_jit._listener, "tell", told.append)
    assert (found(21), told) == (42, [False])
