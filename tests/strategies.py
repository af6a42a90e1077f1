"""The public strategies, and plans for random traces."""

from __future__ import annotations

from hypothesis import strategies as st

from gpumem.columns import Buffers, Ops
from gpumem.swap.gaps import gaps
from gpumem.swap.plan import Plan, Swap
from gpumem.testing.strategies import lifetimes, traces
from gpumem.trace import Trace

__all__ = ["lifetimes", "nets", "plans", "traces"]


@st.composite
def plans(draw: st.DrawFn, trace: Trace) -> Plan:
    """Any valid swaps of a trace, however unwise."""
    found = gaps(trace)
    swaps = []
    for b, after, before in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist()):
        if draw(st.booleans()):
            release = draw(st.integers(after + 1, before))
            prefetch, out = draw(st.integers(release, before)), draw(st.integers(after, release - 1))
            swaps.append(Swap(b, after, before, release, prefetch, out))
    return Plan(tuple(draw(st.permutations(swaps))), trace.n)


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
