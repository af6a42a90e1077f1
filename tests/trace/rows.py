"""What tests compare of a trace, row by row."""

from __future__ import annotations

from gpumem.trace import Ops, Trace


def lifetimes(trace: Trace) -> list[tuple[int, int, int, bool]]:
    return [(b.size, b.start, b.end, b.persistent) for b in trace.buffers]


def columns(ops: Ops) -> list[tuple[object, ...]]:
    return [(op.attributes, op.module, op.host, op.blocking) for op in ops]
