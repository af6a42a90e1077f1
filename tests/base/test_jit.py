"""Compiled loops: where nothing can be kept they are compiled all the same, and that is said; no deadline counts it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import pytest

from gpumem.base import jit as _jit, work

SOURCE = Path(_jit.__file__).parents[2]
HURRY = """
from gpumem import Machine, io
from gpumem.swap import PLANNERS
trace = io.bundled("vgg16")
print(PLANNERS["autoswap"](trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * 7 // 10, seconds=0.5))
"""


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


OTHER = """
from typing import NamedTuple
from gpumem.base.jit import inner, jit
STEP = 1

class Pair(NamedTuple):
    first: int
    second: int

@inner
def further(pair):
    return pair.first + 10 * pair.second
"""
LOOP = """
from gpumem.base.jit import jit
from other import STEP, further

@jit
def loop(pair):
    return further(pair) + 100 * STEP
"""
ASK = """
import other
from loop import loop
print(loop([one for one in vars(other).values() if isinstance(one, type) and hasattr(one, "_fields")][0](2, 3)))
print(sum(loop.stats.cache_hits.values()))
"""


@pytest.mark.jit
def test_a_kept_loop_is_compiled_anew_where_what_it_takes_from_elsewhere_has_changed(tmp_path: Path) -> None:
    """Numba alone looks at the file of the loop: it would go on with the old constant, and fail at the old record."""

    def ask(other: str) -> tuple[int, int]:
        """What the loop returns, and how often it came from the cache."""
        (tmp_path / "other.py").write_text(other)
        (tmp_path / "loop.py").write_text(LOOP)
        os.utime(tmp_path / "loop.py", (1, 1))
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": f"{tmp_path}:{SOURCE}"}
        run = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
        value, hits = run.stdout.split()
        return int(value), int(hits)

    assert ask(OTHER) == (132, 0)
    assert ask(OTHER) == (132, 1)
    assert ask(OTHER.replace("Pair", "Two")) == (132, 0)  # only its caller names the record
    assert ask(OTHER.replace("Pair", "Two")) == (132, 1)
    assert ask(OTHER.replace("STEP = 1", "STEP = 2")) == (232, 0)
    assert ask(OTHER.replace("10 * pair", "20 * pair")) == (162, 0)


@pytest.mark.jit
def test_the_time_in_which_a_loop_is_compiled_is_in_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 5.0

    def compiled(kept: bool) -> None:
        nonlocal moment
        moment += 60

    @_jit.jit
    def twice(x: int) -> int:
        return 2 * x

    @_jit.jit
    def fourfold(x: int) -> int:
        return twice(twice(x))  # whose compilation is a part of this one's

    monkeypatch.setattr(work, "wall", lambda: moment)
    monkeypatch.setattr(_jit._listener, "tell", compiled)
    begin = work.now()
    with work.within(1):
        assert (fourfold(3), moment) == (12, 65) and not work.over() and work.now() == begin
        moment += 0.5
        assert work.left() == 0.5


def test_the_clock_stands_still_for_the_thread_that_waits_and_goes_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    moment, seen = 5.0, list[float]()
    monkeypatch.setattr(work, "wall", lambda: moment)

    def other() -> None:
        begin = moment - work.now()
        work.stop_clock()
        seen.append(begin)

    with work.within(10):
        work.stop_clock()
        moment += 3
        work.stop_clock()
        moment += 4
        work.start_clock()
        moment += 5
        work.start_clock()
        assert work.left() == 10
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        moment += 2
        assert (seen, work.left()) == ([0.0], 8)  # the other one's clock had not stood still, and does not matter here


@pytest.mark.thorough
@pytest.mark.jit
def test_a_search_in_a_hurry_finds_the_same_whatever_is_compiled(tmp_path: Path) -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", HURRY],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert told[0] == told[1] and "swaps" in told[0]
