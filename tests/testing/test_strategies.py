"""Lifetimes and traces that are drawn have what is easily forgotten, and shrink well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import find, given, settings

from gpumem.testing.strategies import Lifetimes, lifetimes, traces
from gpumem.trace import Trace
from tests.testing.tried import drawn


@given(lifetimes(), lifetimes(wrap=False))
def test_lifetimes_make_traces(free: Lifetimes, bound: Lifetimes) -> None:
    for instance in (free, bound):
        trace = Trace.from_lifetimes(instance.size, instance.start, instance.end, n=instance.n)
        assert len(trace.buffers) >= 1
    assert max(bound.end) <= bound.n


FORGOTTEN: dict[str, Callable[[Trace], Any]] = {
    "arcs": lambda t: (t.buffers.end > t.n).any(),
    "all the time": lambda t: (t.buffers.end - t.buffers.start == t.n).any() and t.n > 1,
    "zero bytes": lambda t: (t.buffers.size == 0).any(),
    "in place": lambda t: any(set(op.reads) & set(op.writes) for op in t.ops),
    "equal lifetimes": lambda t: (
        [(b.start, b.end) for b in t.buffers][1:2] == [(b.start, b.end) for b in t.buffers][:1]
    ),
    "equal sizes": lambda t: len(set(t.buffers.size.tolist())) < len(t.buffers),
    "streams": lambda t: len(set(t.ops.stream.tolist())) > 1,
    "host": lambda t: t.buffers.host.any(),
    "persistent": lambda t: t.buffers.persistent.any(),
    "never touched": lambda t: len({*t.ops.reads.idx.tolist(), *t.ops.writes.idx.tolist()}) < len(t.buffers),
    "no duration": lambda t: (t.ops.duration == 0).any(),
}


def test_traces_have_what_is_easily_forgotten() -> None:
    found = drawn(traces(host=True), 100)
    for what, has in FORGOTTEN.items():
        assert sum(bool(has(trace)) for trace in found) >= (30 if what == "equal lifetimes" else 10), what


def test_lifetimes_shrink_well() -> None:
    options = settings(database=None, deadline=None, max_examples=100, derandomize=True)
    small = find(lifetimes(), lambda found: any(end > found.n for end in found.end), settings=options)
    assert small == Lifetimes([0], [1], [3], 2)


@pytest.mark.slow
def test_traces_shrink_well() -> None:
    options = settings(database=None, deadline=None, max_examples=100, derandomize=True)
    small = find(traces(), FORGOTTEN["streams"], settings=options)
    assert (len(small.buffers), small.n) == (1, 2)
