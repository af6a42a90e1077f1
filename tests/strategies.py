"""The public strategies, and plans for random traces."""

from __future__ import annotations

from hypothesis import strategies as st

from gpumem.swap.gaps import gaps
from gpumem.swap.plan import Plan, Swap
from gpumem.testing.strategies import lifetimes, traces
from gpumem.trace import Trace

__all__ = ["lifetimes", "plans", "traces"]


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
