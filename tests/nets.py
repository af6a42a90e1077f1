"""Traces that several tests plan for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpumem.base.errors import Infeasible, NotReached
from gpumem.execute.models import Model
from gpumem.simulator.machine import Machine
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.facts.recompute import backward_start, kept_over, recomputable
from gpumem.swap.plan import Plan, Recompute
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.kinds import ACTIVATION
from gpumem.trace.record.recorder import Recorder

MIB = 2**20
GTX = Machine.named("gtx1080ti")


def hill(*sizes: int, ns: int | Sequence[int] = 100) -> Trace:
    """Buffers made one after the other and used in the opposite order; an op takes `ns`, or each its own."""
    k = len(sizes)
    none: list[list[int]] = [[]]
    reads, writes = none * k + [[b] for b in reversed(range(k))], [[b] for b in range(k)] + none * k
    ops = Ops.make(reads, writes, duration=[ns] * (2 * k) if isinstance(ns, int) else ns)
    return Trace(Buffers.make(sizes, range(k), [2 * k - b for b in range(k)]), ops)


def ramp() -> Trace:
    """X (8 bytes): made by 0, used by 5. Y (4): 1, 4. Z (6): 2, 3. Ops take 10, 20, 30, 40, 50, 60 ns."""
    return hill(8, 4, 6, ns=[10, 20, 30, 40, 50, 60])


def bump(wait: int = 100) -> Trace:
    """A (50 bytes) is made by op 0 and read by op 4; op 2 holds B (50) as well. Copies of A take 28 and 15 ns."""
    ops = Ops.make([[], [], [], [], [0]], [[0], [], [1], [], []], duration=[10, wait, 10, wait, 10])
    return Trace(Buffers.make([50, 50], [0, 2], [5, 3]), ops, name="bump")


def net() -> Trace:
    """Four layers of 4 MiB activations, one weight each; an iteration of ten ops with time to swap in."""
    device = Recorder()
    weights = [device.malloc(MIB, kind="param") for _ in range(4)]
    values = [device.malloc(4 * MIB, kind="input")]
    device.exec("batch", writes=values, duration=10**6)
    for k in range(4):
        values.append(device.malloc(4 * MIB, kind="activation"))
        device.exec(f"forward {k}", reads=[weights[k], values[k]], writes=[values[-1]], duration=10**6)
    for k in reversed(range(4)):
        device.exec(f"backward {k}", reads=[values[k], values[k + 1], weights[k]], writes=[weights[k]], duration=10**6)
        device.free(values[k + 1])
    device.exec("end", duration=10**6)
    device.free(values[0])
    return device.trace(name="net")


PEAK = net().peak_live_bytes


def dense(rng: np.random.Generator) -> Trace:
    """A trace of a few wide buffers, each touched again and again: much to swap."""
    n, count = int(rng.integers(4, 14)), int(rng.integers(2, 8))
    start = rng.integers(0, n, count)
    length = rng.integers(max(n // 2, 1), n + 1, count)
    forever = rng.random(count) < 0.4
    start[forever], length[forever] = 0, n
    reads: list[list[int]] = [[] for _ in range(n)]
    writes: list[list[int]] = [[] for _ in range(n)]
    for b in range(count):
        for life in np.flatnonzero(rng.random(int(length[b])) < 0.35).tolist():
            i = int(start[b] + life) % n
            how = rng.integers(0, 3)
            (reads if how < 2 else writes)[i].append(b)
            if how == 0:
                writes[i].append(b)
    end = start + length
    persistent = forever | ((end > n) & (rng.random(count) < 0.5))
    buffers = Buffers.make(rng.choice([1, 8, 40, 40, 100], count), start, end, persistent=persistent)
    return Trace(buffers, Ops.make(reads, writes, duration=rng.integers(0, 30, n)))


def lowest(model: Model) -> Trace:
    """The model's trace under AutoSwap at the lowest live bytes that it reaches."""
    try:
        autoswap(model.trace, GTX, 1, threshold=0, peaks="all")
    except Infeasible as floor:
        least = floor.needs
    peak = model.trace.peak_live_bytes
    for limit in range(least, peak, max(peak // 20, 1)):
        try:
            return autoswap(model.trace, GTX, limit, threshold=0, peaks="all").apply(model.trace)
        except NotReached:
            continue
    raise AssertionError("nothing was swapped")


def half_again(model: Model) -> Trace:
    """Half of the activation bytes are dropped before the backward pass and recomputed: first what takes no flops."""
    trace = model.trace
    found = recomputable(trace, GTX)
    size = trace.buffers.size[found.gaps.buffer]
    mine = [trace.buffers.kind[i] == ACTIVATION for i in found.gaps.buffer]
    whole = sum(trace.buffers.size[i] for i, kind in enumerate(trace.buffers.kind) if kind == ACTIVATION)
    able = np.flatnonzero(found.ok & kept_over(found.gaps, backward_start(trace), trace.n) & mine)
    able = able[np.argsort([trace.ops.flops[found.ops[i]].sum() for i in able], kind="stable")]
    able = able[: np.searchsorted(np.cumsum(size[able]), whole / 2) + 1]
    assert 2 * size[able].sum() >= whole
    gaps = found.gaps
    rows = zip(*(column[able].tolist() for column in (gaps.buffer, gaps.after, gaps.before, found.until)))
    return Plan(tuple(Recompute(*row) for row in rows), trace.n).apply(trace)
