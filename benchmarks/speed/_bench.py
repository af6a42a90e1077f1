"""What every benchmark prints first, and traces to measure on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from gpumem.pipeline.report import header as lines
from gpumem.trace import Buffers, Csr, Ops, Trace

SHARED = Path(os.environ.get("GPUMEM_SHARED") or Path(__file__).resolve().parents[3] / "shared" / "data")


def header(seed: int | None = None) -> str:
    """Return machine, versions, seed and command as comment lines."""
    path = Path(sys.argv[0])
    name = path.parent.name if path.stem == "__main__" else f"{path.parent.name}.{path.stem}"
    return lines(f"python -m benchmarks.{' '.join([name, *sys.argv[1:]])}", seed)


def synthetic(n: int, seed: int = 0) -> Trace:
    """A training-like trace of `n` ops: each makes a buffer, reads the one before, and half live until their
    mirror image in the backward half reads them."""
    rng = np.random.default_rng(seed)
    half = n // 2
    start = np.arange(n, dtype=np.int64)
    end = np.minimum(start + 2, n)
    saved = np.flatnonzero(rng.random(half) < 0.5)
    end[saved] = n - saved
    size = (rng.lognormal(12, 2, n).astype(np.int64) // 512 + 1) * 512
    mirror = np.full(n, -1, np.int64)
    mirror[n - 1 - saved] = saved
    reads = [[i - 1] if i else [] for i in range(n)]
    for i in np.flatnonzero(mirror >= 0).tolist():
        if mirror[i] not in reads[i]:
            reads[i].append(int(mirror[i]))
    writes = Csr(np.arange(n + 1, dtype=np.int64), start)
    duration = rng.integers(1_000, 100_000, n)
    return Trace(
        Buffers.make(size, start, end), Ops.make(Csr.of(reads), writes, duration=duration), name=f"synthetic {n}"
    )
