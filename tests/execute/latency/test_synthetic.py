"""Made-up measurements follow their formula, and the ops of their grid are of float32 arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gpumem.execute.latency.samples import Sample
from gpumem.execute.latency.synthetic import SPREAD, TILE, UNITS, grid, synthetic
from tests.execute.latency.rows import MACHINE

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here


def test_made_up_times_follow_the_formula() -> None:
    def alone(op: Sample, **options: Any) -> float:
        options = {"seed": 3, "noise": 0, "utilisations": (0,)} | options
        return synthetic([op], MACHINE, **options)[0].ns - MACHINE.launch_ns

    wave = 4 * TILE * UNITS
    full, more, two = (Sample("relu", (n,), (n,), moved=2 * wave) for n in (wave, wave + 4, 2 * wave))
    assert alone(more) == pytest.approx(2 * alone(full), rel=1e-3)
    assert alone(two) == pytest.approx(alone(full), rel=1e-3)
    assert alone(full, utilisations=(0.5,), slowdown=3) == pytest.approx(2.5 * alone(full), rel=1e-3)
    own = alone(full) / (float(MACHINE.roofline_ns(np.array(0.0), np.array(2.0 * wave))) - MACHINE.launch_ns)
    assert math.exp(-4 * SPREAD) < own < math.exp(4 * SPREAD) and abs(math.log(own)) > 0.01
    noisy = [row.ns for row in synthetic([full] * 400, MACHINE, seed=3, noise=0.2, utilisations=(0,))]
    assert np.std(np.log(noisy)) == pytest.approx(0.2, rel=0.2)
    assert grid(3, seed=1) == grid(3, seed=1) != grid(3, seed=2)


def test_the_grid_is_of_float32_arrays() -> None:
    for op in grid(30, seed=5):
        assert op.shapes is not None
        assert op.reads == tuple(4 * math.prod(shape) for shape in op.shapes)
        assert op.moved == sum(op.reads) + sum(op.writes)
    convolutions = [op for op in grid(30, seed=5) if op.name == "conv2d"]
    for op in convolutions:
        (_, c, _, _), (_, depth, r, s) = op.shapes or ()
        assert c == depth and op.flops == 2 * (op.writes[0] // 4) * c * r * s
