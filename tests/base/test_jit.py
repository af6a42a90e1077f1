"""Streams that are full or closed, a place where nothing can be kept: one line, a status, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import gpumem
from gpumem.base import jit as _jit

ENV = os.environ | {"PYTHONPATH": str(Path(gpumem.__file__).parents[1])}
ENV.pop("PYTHONUNBUFFERED", None)
FULL = "gpumem: error: output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("info mlp3 >/dev/full", 1, FULL),
        ("--help >/dev/full", 1, FULL),
        ("info mlp3 >&-", 0, ""),
        ("info nosuch 2>&-", 2, ""),
    ],
)
def test_streams_that_are_full_or_closed(line: str, status: int, told: str) -> None:
    shell = ["sh", "-c", f"{sys.executable} -m gpumem {line}"]
    ran = subprocess.run(shell, env=ENV, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, "", told)


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
