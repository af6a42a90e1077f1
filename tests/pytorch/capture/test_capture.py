"""Recorded steps: against a file of another program, and of a net that no laptop holds."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from gpumem.io import bundled
from gpumem.torch import capture, load, record
from tests.pytorch.described import described
from tests.pytorch.nets import mlp3

DECODER = Path(__file__).parents[3] / "benchmarks" / "speed" / "_decoder.py"


def test_a_step_is_what_another_recorder_saw() -> None:
    mine, theirs = capture(mlp3), bundled("mlp3")
    assert described(mine) == described(theirs)
    assert mine.live_bytes().tolist() == theirs.live_bytes().tolist()
    assert mine.buffers.name[:2] == ("0.weight", "0.bias")


@pytest.mark.slow
def test_seven_billion_parameters() -> None:
    begin = time.perf_counter()
    trace = record(load(f"{DECODER}:make"), batch=1).trace
    assert time.perf_counter() - begin <= 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= 2 * 2**20
    weights = sum(b.size for b in trace.buffers if b.kind == "param")
    assert weights > 4 * 6.7e9
    assert sum(b.size for b in trace.buffers if b.kind == "opt_state") == 2 * weights
    assert trace.live_bytes().max() > 4 * weights
