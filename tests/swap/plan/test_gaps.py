"""Gaps are the spaces between the accesses of each buffer, by a slow loop."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given

from gpumem.swap.plan.gaps import gaps
from gpumem.trace import Trace
from tests.strategies import traces


@given(traces())
def test_gaps_are_the_spaces_between_accesses(trace: Trace) -> None:
    n, found = trace.n, gaps(trace)
    expected = []
    for b, x in enumerate(trace.buffers):
        life = [t for t in range(x.start, x.end) if b in trace.ops.reads[t % n] or b in trace.ops.writes[t % n]]
        if x.persistent and x.end - x.start == n and life:
            life.append(life[0] + n)
        expected += [(b, s % n, s % n + t - s) for s, t in pairwise(life)]
    assert list(zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist())) == expected
