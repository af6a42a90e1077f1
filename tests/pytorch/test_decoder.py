"""A net that no laptop holds: its capture takes seconds, and next to no memory."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from gpumem.torch import load, record

DECODER = Path(__file__).parents[2] / "benchmarks" / "_decoder.py"


@pytest.mark.slow
def test_seven_billion_parameters() -> None:
    begin = time.perf_counter()
    trace = record(load(f"{DECODER}:make"), batch=1).trace
    assert time.perf_counter() - begin <= 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= 2 * 2**20
    weights = sum(b.size for b in trace.buffers if b.kind == "param")
    assert weights > 4 * 6.7e9
    assert sum(b.size for b in trace.buffers if b.kind == "opt_state") == 2 * weights
    assert trace.load().max() > 4 * weights
