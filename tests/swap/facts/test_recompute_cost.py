"""What recomputations cost, against the rewritten trace."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, strategies as st

from gpumem.swap.facts.recompute_cost import RecomputableGaps
from gpumem.swap.plan import Decision, Hold, Plan, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.testing import plans, steps
from gpumem.trace import RECOMPUTE, Buffers, Ops, Trace
from tests.conftest import tiny_machine


def dies_later(d: Decision, trace: Trace) -> bool:
    return isinstance(d, Hold) and d.after < 0 and d.until >= trace.buffers.end[d.buffer]


@given(st.data())
def test_the_account_is_the_rewritten_trace(data: st.DataObject) -> None:
    trace = data.draw(steps())
    plan = data.draw(plans(trace, kinds=(Recompute, Hold)))
    plan = Plan.of(trace, [d for d in plan.decisions if isinstance(d, Recompute) or dies_later(d, trace)])
    machine, found = tiny_machine(), gaps(trace)
    row, at = found.rows(trace.n), np.zeros(len(found), np.int64)
    until = np.full(len(trace.buffers), -1, np.int64)
    for d in plan.decisions:
        if isinstance(d, Recompute):
            at[row[d.buffer, d.after]] = d.at
        elif isinstance(d, Hold):
            until[d.buffer] = d.until
    try:
        again = plan.apply(trace)
    except ValueError:  # it needs what has been left out
        assume(False)
    costs = RecomputableGaps.of(trace, machine.durations(trace), found).costs(at, until)
    ran = again.ops.role == RECOMPUTE
    assert (costs.peak, costs.recomputed_ops) == (again.peak_live_bytes, ran.sum())
    assert costs.ns == machine.durations(again)[ran].sum()


def test_what_cannot_be_made_again_has_no_price() -> None:
    ops = Ops.make([[], [0], [], [1]], [[0], [1], [], []])
    trace = Trace(Buffers.make([4, 8], [0, 1], [2, 4], kind=["input", ""]), ops)  # the batch is dead when B is wanted
    found = gaps(trace).where(gaps(trace).buffer == 1)
    account, none = RecomputableGaps.of(trace, np.ones(4, np.int64), found), np.full(2, -1)
    assert account.costs(np.array([0]), none) == (12, 3, 0, 0)
    assert account.costs(np.array([3]), none) == (-1, -1, -1, -1)
    assert account.costs(np.array([3]), np.array([3, -1])) == (12, 3, 1, 1)  # held
    assert account.costs(np.array([3]), np.array([3, -1]), 1) == (12, 3, 1, 1)
    assert account.costs(np.array([3]), np.array([3, -1]), 0) == (-1, -1, -1, 1)
