"""Durations as a backend measures them, so that plans and predictions rest on this machine's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem.base.arguments import strict
from gpumem.execute import Backend, Launch, prepare
from gpumem.simulator.machine import Link, Machine
from gpumem.trace import COPY_IN, COPY_OUT, NOWHERE, Buffers, Ops, Placement, Trace

REPEATS = 5  # iterations, of which the median counts for each op; one more warms up. Not tuned


@strict
def measured(
    trace: Trace,
    backend: Backend,
    launch: Launch | None,
    *,
    place: Callable[[Trace], Placement],
    state: Mapping[int, NDArray[Any]] | None = None,
) -> Trace:
    """Return `trace` with the durations (ns, medians) that a backend measures.

    Parameters
    ----------
    trace : Trace
    backend : Backend
        One that measures single ops: an `Emulator`, or `Cuda(timing=True)`.
    launch : callable
        What starts its ops; see `gpumem.execute.prepare`.
    place : callable
        Where its buffers lie while it is measured, as `gpumem.best_fit` says.
    state : dict of int to array, optional
        Initial values.

    Raises
    ------
    ValueError
        The backend did not measure some op.

    Examples
    --------
    >>> from gpumem import best_fit
    >>> from gpumem.execute import Emulator
    >>> from gpumem.kernels import reference
    >>> from gpumem.execute.models import mlp
    >>> model = mlp(batch=2, features=3, hidden=[4])
    >>> trace = measured(model.trace, Emulator(), model.launch(reference), place=best_fit, state=model.initial)
    >>> bool((trace.ops.duration > 0).all())
    True
    """
    program = prepare(trace, place(trace), backend, launch)
    program.write(state or {})
    rows = []
    for _ in range(REPEATS + 1):
        line = program.run()
        if (line.start < 0).any():
            op = int(np.argmax(line.start < 0))
            raise ValueError(f"op {op}: {type(backend).__name__} did not measure it (CUDA needs timing=True)")
        rows.append(line.end - line.start)
    duration = np.rint(np.median(rows[1:], axis=0)).astype(np.int64)
    return replace(trace, ops=replace(trace.ops, duration=duration))


@strict
def measured_machine(machine: Machine, backend: Backend, *, large: int = 2**26) -> Machine:
    """Return `machine` with the links that a backend measures, from copies of 64 KiB and of `large` bytes.

    >>> from gpumem.execute import Simulator
    >>> v100 = Machine.named("v100")
    >>> measured_machine(v100, Simulator(v100)).into
    Link(latency_ns=9700, ns_per_byte=0.0823)
    """
    sizes = [2**16, large]
    reads, writes, role = [[0], [2], [1], [3]], [[2], [0], [3], [1]], [COPY_OUT, COPY_IN] * 2
    ops = Ops.make(reads, writes, role=role, stream=[0, 1] * 2, streams=["d2h", "h2d"], name=["copy"] * 4)
    flags = [False, False, True, True]
    trace = Trace(Buffers.make([*sizes, *sizes], [0] * 4, [4] * 4, persistent=[True] * 4, host=flags), ops)
    beside = Placement.at(trace, [0, sizes[0], NOWHERE, NOWHERE])
    ns = measured(trace, backend, None, place=lambda _: beside).ops.duration.astype(float)
    out, into = (_line(sizes, float(ns[index]), float(ns[index + 2])) for index in (0, 1))
    return machine.with_(out=out, into=into)


def _line(sizes: list[int], small: float, big: float) -> Link:
    """The straight line through two copies."""
    slope = round(max(big - small, 0.0) / (sizes[1] - sizes[0]), 7)
    return Link(max(round(small - sizes[0] * slope), 0), slope)
