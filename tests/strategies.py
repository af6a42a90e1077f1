"""The public strategies; plans for random traces, machines, jobs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gpumem.simulator.machine import Link, Machine
from gpumem.swap import Plan, Swap
from gpumem.swap.tasks import Task
from gpumem.testing.strategies import lifetimes, traces
from gpumem.testing.training_steps import plans as any_plans, steps
from gpumem.trace import Buffers, Ops, Trace

__all__ = ["any_plans", "lifetimes", "machine_of", "nets", "plans", "steps", "tasks", "traces"]


def plans(trace: Trace) -> st.SearchStrategy[Plan]:
    """Any valid swaps of a trace, however unwise."""
    return any_plans(trace, kinds=(Swap,))


@st.composite
def nets(draw: st.DrawFn) -> Trace:
    """A step in which much can be swapped: activations, read again backwards, and parameters, updated at the end."""
    layers = draw(st.integers(2, 7))
    n = 2 * layers + draw(st.integers(1, 5))
    reads: list[list[int]] = [[] for _ in range(n)]
    writes: list[list[int]] = [[] for _ in range(n)]
    for i in range(layers):
        writes[i].append(i)
        reads[2 * layers - 1 - i].append(i)
        reads[i] += [i - 1] if i else []
    rows = [(i, 2 * layers - i, False) for i in range(layers)]
    for i in draw(st.lists(st.integers(0, layers - 1), unique=True, max_size=2)):  # a second result, not kept
        writes[i].append(len(rows))
        rows.append((i, i + 1, False))
    for _ in range(draw(st.integers(0, 3))):  # parameters
        rows.append((0, n, True))
        used = draw(st.lists(st.integers(0, 2 * layers - 1), min_size=1, max_size=3))
        for op in used:
            reads[op].append(len(rows) - 1)
        writes[draw(st.one_of(st.integers(2 * layers, n - 1), st.integers(0, n - 1)))].append(len(rows) - 1)
    for _ in range(draw(st.integers(0, 4))):  # more reads of what is there
        op = draw(st.integers(0, 2 * layers - 1))
        there = [b for b, (start, end, _) in enumerate(rows) if start <= op < end and b not in writes[op]]
        reads[op] += draw(st.lists(st.sampled_from(there), max_size=2)) if there else []
    size = draw(st.lists(st.integers(1, 60), min_size=len(rows), max_size=len(rows)))
    start, end, kept = (list(column) for column in zip(*rows))
    ops = Ops.make([sorted(set(r)) for r in reads], [sorted(set(w)) for w in writes])
    return Trace(Buffers.make(size, start, end, persistent=kept), ops)


def machine_of(data: st.DataObject, *, pinned: int = 10_000, duplex: bool | None = None) -> Machine:
    """Any link, between what costs nothing and what takes as long as the ops of a random trace."""
    link = st.builds(Link, st.sampled_from([0.0, 1.0, 5.0]), st.sampled_from([0.05, 0.3, 1.0]))
    both = data.draw(st.booleans()) if duplex is None else duplex
    return Machine("m", 10_000, data.draw(link), data.draw(link), 1.0, 1.0, pinned=pinned, duplex=both)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """A job of TENSILE, with durations of its own."""
    trace = draw(st.one_of(nets(), nets(), nets(), traces(streams=1), steps(streams=1)))
    n = trace.n
    duration = draw(st.lists(st.integers(0, 100), min_size=n, max_size=n))
    return Task(trace, np.array(duration, np.int64), draw(st.sampled_from([1.0, 1.0, 0.5, 0.2])))
