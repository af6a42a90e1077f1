"""Made-up measurements, networks that are trained on them, and a trace with and without copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import gpumem
from gpumem.execute.latency.network import Training
from gpumem.execute.latency.predictor import Predictor, fit
from gpumem.execute.latency.samples import Measurement, Sample, split
from gpumem.execute.latency.synthetic import grid, synthetic
from gpumem.simulator.machine import Machine
from gpumem.trace import Trace

MACHINE = Machine.named("gtx1080ti")
QUICK = Training(hidden=(16, 16), steps=100)


@cache
def swapped() -> tuple[Trace, Trace, np.ndarray]:
    """A trace, the same with copies, and where each op of the latter is in the former (-1 for copies)."""
    trace = gpumem.bundled("resnet18")
    rewritten = gpumem.autoswap(trace, MACHINE, trace.peak_live_bytes * 70 // 100).apply(trace)
    place = {of: i for i, of in enumerate(trace.ops.of.tolist())}
    return trace, rewritten, np.array([place.get(of, -1) for of in rewritten.ops.of.tolist()])


@cache
def table() -> tuple[list[Measurement], list[Measurement]]:
    return split(synthetic(grid(60, seed=1), MACHINE, seed=1), seed=1)


@cache
def trained(features: Callable[[Sample], Any]) -> Predictor:
    return fit(table()[0], features=features)
