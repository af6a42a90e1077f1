"""The order of a job's ops by their depth in the graph: it is the longest path, and computes the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.jobs.waterwave import by_depth, depth, reordered
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import objects
from tests.strategies import nets, steps, traces


@given(st.one_of(nets(), steps(streams=1), traces(streams=1)))
def test_depth_is_the_longest_path(trace: Trace):
    """By Bellman and Ford on the conflicts, each found naively."""
    touch, write = np.zeros((2, trace.n, len(trace.buffers)), np.bool_)
    for i in range(trace.n):
        touch[i, trace.ops.reads[i]] = touch[i, trace.ops.writes[i]] = write[i, trace.ops.writes[i]] = True
    for b in trace.buffers:
        if not (b.persistent and b.end - b.start == trace.n):
            for i in (b.start, (b.end - 1) % trace.n):
                touch[i, b.id] = write[i, b.id] = True
    found = [0] * trace.n
    for i in range(trace.n):
        for j in range(i):
            if (touch[i] & touch[j] & (write[i] | write[j])).any():
                found[i] = max(found[i], found[j] + 1)
    assert depth(trace).tolist() == found


def one(trace: Trace, after: Trace, order):
    """A job alone in another order, as the oracle of several jobs sees it."""
    zeros = np.zeros(trace.n, np.int64)
    return [trace], after, zeros, zeros, order, zeros, zeros


@given(st.one_of(nets(), steps(streams=1)))
def test_by_depth_computes_the_same(trace: Trace):
    check.data_flow(trace, trace)
    check.together(*one(trace, reordered(trace, order := by_depth(trace)), order))


def test_the_oracle_sees_a_wrong_order():
    ops = Ops.make([[], [0]], [[0], [0]])
    trace, order = Trace(Buffers.make([8], [0], [2], persistent=[True]), ops), np.array([1, 0])
    with objects("dependence", "change places"):
        check.together(*one(trace, reordered(trace, order), order))


def test_no_order_makes_a_buffer_live_for_ever():
    """It is freed and made anew in each iteration, be it at once."""
    ops = Ops.make([[], [0, 1], [], []], [[0], [], [], [1]])
    trace = Trace(Buffers.make([8, 8], [0, 3], [2, 6], persistent=[False, True]), ops)
    order = by_depth(trace)
    after = reordered(trace, order)
    assert order.tolist() == [0, 2, 1, 3]
    assert (after.buffers.start[1], after.buffers.end[1]) == (3, 7)
    assert not after.eternal.any()
