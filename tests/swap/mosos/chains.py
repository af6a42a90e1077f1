"""Random chains of ops, other ways to run them, and machines."""

from __future__ import annotations

from hypothesis import strategies as st

from gpumem import Machine
from gpumem.simulator.machine import Link
from gpumem.swap import Variant
from gpumem.trace import Buffers, Ops, Trace


@st.composite
def chains(draw: st.DrawFn) -> Trace:
    """Ops with one output each, read by later ones: mostly by the next, and again from the other end."""
    n = draw(st.integers(3, 8))
    reads: list[list[int]] = [[] for _ in range(n)]
    for i in range(1, n):
        reads[i].append(i - 1)
        if i > n // 2:
            reads[i].append(n - 1 - i)
        reads[i] += draw(st.lists(st.integers(0, i - 1), max_size=1))
    last = [max((i for i in range(n) if j in reads[i]), default=j) for j in range(n)]
    size = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    duration = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    ops = Ops.make([sorted(set(r)) for r in reads], [[i] for i in range(n)], duration=duration, name=["op"] * n)
    return Trace(Buffers.make(size, range(n), [x + 1 for x in last]), ops)


@st.composite
def menus(draw: st.DrawFn, trace: Trace) -> dict[int, list[Variant]]:
    """For some ops a slower way with less workspace than the one they run by."""
    found = {}
    for op in draw(st.lists(st.integers(0, trace.n - 1), unique=True, max_size=3)):
        now = int(trace.ops.duration[op])
        found[op] = [Variant(op, "wide", now, draw(st.integers(1, 60))), Variant(op, "narrow", now + 7, 0)]
    return found


def machine(data: st.DataObject) -> Machine:
    slow = data.draw(st.sampled_from([0.3, 1.0, 3.0]))
    return Machine("m", 10_000, Link(0, slow), Link(0, slow), 1.0, 1.0, duplex=data.draw(st.booleans()))
