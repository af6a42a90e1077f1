"""A bundled plan shrunk to a few bytes, and two streams that meet in one place."""

from __future__ import annotations

from gpumem import autoswap, bundled
from gpumem.execute import scaled
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Machine
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement


def planned(name: str, percent: int = 70) -> tuple[Trace, Placement, Trace, Placement]:
    """A bundled trace and its plan, shrunk: unswapped and swapped, each with a placement."""
    trace = bundled(name)
    swapped = autoswap(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * percent // 100).apply(trace)
    return *scaled(trace, best_fit(trace)), *scaled(swapped, best_fit(swapped))


def two_streams() -> Trace:
    """a writes X; b, on another stream, reads it; c writes Y in the same place."""
    ops = Ops.make([[], [0], []], [[0], [], [1]], stream=[0, 1, 0], streams=["x", "y"], name=list("abc"))
    return Trace(Buffers.make([8, 6], [0, 2], [2, 3]), ops)
