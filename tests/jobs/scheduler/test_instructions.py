"""A plan as what an executor carries out: ops and copies in order, what each waits for, its delay, the budget."""

from __future__ import annotations

import pytest

from gpumem import best_fit
from gpumem.jobs import instructions
from gpumem.swap.plan import Plan, Recompute, Swap
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine


def test_instructions_of_a_plan_that_recomputes_and_swaps() -> None:
    """Delays go to the copies of their own decision, whatever the order of the decisions."""
    ops = Ops.make([[0], [1], [], [1], [2, 4]], [[1], [2], [3], [], []], duration=[1] * 5)
    kept = [True, False, False, False, True]
    trace = Trace(Buffers.make([1, 8, 8, 2, 3], [0, 0, 1, 2, 0], [5, 4, 5, 3, 5], persistent=kept), ops)
    plan = Plan((Swap(2, 1, 4, 2, 4), Recompute(1, 1, 3, 3), Swap(4, 4, 9, 5, 9)), 5)
    todo = instructions(trace, plan, tiny_machine(), [(1, 2), (0, 0), (3, 4)])
    assert [(r, o, d) for r, o, d in zip(todo.role, todo.op, todo.delay)] == [
        (0, 0, 0),
        (0, 1, 0),
        (1, -1, 1),  # buffer 2 goes after op 1
        (0, 2, 0),
        (3, 0, 0),  # op 0 again, right before op 3
        (0, 3, 0),
        (2, -1, 2),
        (2, -1, 4),  # buffer 4 was never written: no copy-out
        (0, 4, 0),
    ]
    assert (todo.host, todo.device) == ({4}, {0: 0})
    with pytest.raises(ValueError, match="delays: 1 pairs for 3 decisions"):
        instructions(trace, plan, tiny_machine(), [(1, 2)])
    with pytest.raises(ValueError, match="a delay of -2 ns is below 0"):
        instructions(trace, plan, tiny_machine(), [(1, -2), (0, 0), (0, 0)])


def test_waits_by_bytes() -> None:
    """Where buffers share bytes, an op waits for the copy of what lay there before; without a placement it need not."""
    ops = Ops.make([[], [], [0]], [[0], [1], []])
    trace = Trace(Buffers.make([8, 8], [0, 1], [3, 2]), ops)
    plan = Plan((Swap(0, 0, 2, 1, 2),), 3)
    assert instructions(trace, plan, tiny_machine()).after[2] == ()
    placed = instructions(trace, plan, tiny_machine(), place=best_fit)
    assert placed.budget == 8 and set(placed.after[2]) == {1, 3}
