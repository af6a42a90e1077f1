"""The executor's own cost: ops that do nearly nothing, on two streams."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.gpu.shared import Bench, Row
from gpumem import best_fit
from gpumem.execute import prepare
from gpumem.execute.cuda import Cuda
from gpumem.kernels import device as kernels, prebound
from gpumem.trace import Buffers, Ops, Trace

TITLE = "executor, ops that do nearly nothing on two streams with a wait every tenth op: us an op"


def overhead(bench: Bench) -> list[Row]:
    """Microseconds an op costs the host and the device: op by op, and as a graph."""
    rows = []
    for n in [100] if bench.quick else [100, 1000]:
        trace = chain(n)
        row: Row = {"ops": n}
        for name, options in {"stream": {}, "graph": {"graph": True}}.items():
            with Cuda(**options) as backend:
                program = prepare(trace, best_fit(trace), backend, tiny(trace))
                program.run(4)
                times = bench.times(program.run(4).makespan / 1e9, 50, 0.1, least=2)
                begin = time.perf_counter()
                row[f"{name} device"] = program.run(times).makespan / n / 1e3
                row[f"{name} wall"] = (time.perf_counter() - begin) / times / n * 1e6
        rows.append(row)
    return rows


def chain(n: int) -> Trace:
    """`n` ops that each touch 8 bytes, every tenth on a second stream."""
    stream = (np.arange(n) % 10 == 9).astype(np.int64)
    reads = [[i % 2] for i in range(n)]
    ops = Ops.make(reads, reads, stream=stream, streams=["a", "b"], name=["delay"] * n)
    return Trace(Buffers.make([8, 8], [0, 0], [n, n], persistent=[True, True]), ops, name="chain")


def tiny(trace: Trace) -> Any:
    """Launch a kernel of one step for each op."""
    return lambda op, views: prebound(kernels.delay, 1, views(op.writes[0], np.uint64, (1,)))
