"""What every benchmark prints first, and traces to measure on."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import numpy as np

from gpumem.columns import Buffers, Csr, Ops
from gpumem.trace import Trace

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def header(seed: int | None = None) -> str:
    """Return machine, versions, seed and command as comment lines."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in (Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else [])
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "numba", "msgspec"))
    return "\n".join(
        [
            f"# machine: {model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            f"# python {platform.python_version()}, {versions}",
            f"# seed: {seed}",
            f"# command: PYTHONPATH=src python {' '.join(['benchmarks/' + Path(sys.argv[0]).name, *sys.argv[1:]])}",
        ]
    )


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
