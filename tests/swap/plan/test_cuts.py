"""Where decisions cut: each of their rules right at its edge, by messages, and the order of what is inserted."""

from __future__ import annotations

import re

import pytest

from gpumem.swap.plan import Decision, Hold, Plan, Recompute, Swap
from gpumem.trace import Buffers, Ops, Trace
from tests.swap.nets import activation


@pytest.mark.parametrize(
    "decision, step",
    [
        (Swap(0, 2, 4, 4, 4, 1), "; after 2 <= out 1 does not hold"),
        (Swap(0, 0, 4, 2, 3, 2), "; out 2 < release 2 does not hold"),
        (Swap(0, 0, 4, 0, 4), "; out 0 < release 0 does not hold"),
        (Swap(0, 0, 4, 3, 2), "; release 3 <= prefetch 2 does not hold"),
        (Swap(0, 0, 4, 3, 5), "; prefetch 5 <= before 4 does not hold"),
        (Swap(0, 0, 7, 1, 4), ""),  # before is more than an iteration after
        (Swap(0, 6, 8, 7, 8), ""),  # after is no op
        (Recompute(0, 0, 4, 0), "; after 0 < at 0 does not hold"),
        (Recompute(0, 0, 4, 5), "; at 5 <= before 4 does not hold"),
        (Recompute(0, 0, 7, 4), ""),
        (Recompute(0, 6, 7, 7), ""),
    ],
)
def test_steps_that_are_out_of_order_are_named(decision: Decision, step: str) -> None:
    names = "out < release <= prefetch" if isinstance(decision, Swap) else "at"
    between = "<=" if isinstance(decision, Swap) else "<"
    rule = f"must obey 0 <= after < 6 and after {between} {names} <= before <= after + 6"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{decision}: {rule}{step}')}$"):
        Plan((decision,)).apply(activation())


@pytest.mark.parametrize("decision", [Swap(0, 0, 6, 1, 6), Swap(0, 0, 4, 4, 4, 3), Swap(0, 5, 6, 6, 6)])
def test_steps_may_be_equal(decision: Swap) -> None:
    told = "" if decision.before == 4 else "; the next access is at 4" if decision.after == 0 else ""
    if decision.before == 4:
        assert Plan((decision,)).apply(activation()).n == 8
        return
    why = f"ops {decision.after} and {decision.before} are not consecutive accesses of it{told}"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{decision}: {why}')}$"):
        Plan((decision,)).apply(activation())


def lasting() -> Trace:
    """P, a constant, and W live for ever: op 2 makes W of P, ops 0 and 2 read it. H lies on the host."""
    ops = Ops.make([[1], [0], [1]], [[], [1], []])
    keep = [True, True, False]
    return Trace(Buffers.make([1, 8, 8], [0, 0, 0], [3, 3, 3], persistent=keep, host=[False, False, True]), ops)


def test_the_first_op_after_the_boundary_is_behind_it() -> None:
    trace = lasting()
    assert Plan((Recompute(1, 1, 2, 2),)).apply(trace).n == 4
    with pytest.raises(ValueError, match="wraps the iteration boundary, over which a recomputation does not carry"):
        Plan((Recompute(1, 2, 3, 3),)).apply(trace)
    assert Plan((Swap(1, 2, 3, 3, 3),)).apply(trace).n == 5


@pytest.mark.parametrize("decision", [Swap(2, 0, 1, 1, 1), Recompute(2, 0, 1, 1), Hold(2, 3)])
def test_what_is_on_the_host_has_no_gap(decision: Decision) -> None:
    with pytest.raises(ValueError, match="the buffer is on the host already"):
        Plan((decision,)).apply(lasting())


@pytest.mark.parametrize("buffer", [-1, 3])
def test_a_buffer_that_is_not_there(buffer: int) -> None:
    for decision in (Swap(buffer, 0, 1, 1, 1), Recompute(buffer, 0, 1, 1), Hold(buffer, 3)):
        with pytest.raises(ValueError, match=f"^{re.escape(f'{decision}: there are 3 buffers')}$"):
            Plan((decision,)).apply(lasting())


@pytest.mark.parametrize("first", [0, 1])
def test_the_recomputation_that_cannot_be_is_the_one_that_is_named(first: int) -> None:
    # ops 0 to 2 make maps 1 to 3, ops 3 to 5 read them in reverse order; op 1 takes its data from outside
    trace = Trace(
        Buffers.make(
            [1, 8, 8, 8], [0, 0, 1, 2], [6, 6, 5, 4], persistent=[True, *[False] * 3], kind=["", "", "input", ""]
        ),
        Ops.make([[0], [], [2], [3], [2], [1]], [[1], [2], [3], [], [], []], name=list("abcdef")),
    )
    fine, bad = Recompute(1, 0, 5, 4), Recompute(2, 2, 4, 4)
    assert Plan((fine,)).apply(trace).n == 7
    why = f"{bad}: cannot be recomputed before op 4: what buffer 2 holds after op 2 (c): its data comes from outside"
    with pytest.raises(ValueError, match=f"^{re.escape(why)}"):
        Plan((fine, bad) if first == 0 else (bad, fine)).apply(trace)


def test_a_hold_ends_where_it_says() -> None:
    trace = activation()
    assert Plan((Hold(1, 4),)).apply(trace).buffers.end.tolist() == [6, 4]  # as long as it lives anyway
    assert Plan((Hold(1, 6),)).apply(trace).buffers.end.tolist() == [6, 6]
    lives = r"must obey 3 <= until <= 6, and its lifetime is \[1, 4\)"
    for until in (2, 7):
        with pytest.raises(ValueError, match=lives):
            Plan((Hold(1, until),)).apply(trace)


def test_at_one_place_reruns_come_after_copies() -> None:
    # ops 0 and 1 make A and B, op 3 reads both; C is made by 1 and read by 2: A comes in, B again, C out, before op 3
    ops = Ops.make([[], [], [2], [0, 1], [2]], [[0], [1, 2], [], [], []])
    trace = Trace(Buffers.make([8] * 3, [0, 1, 1], [4, 4, 5]), ops)
    for plan in (
        (Recompute(1, 1, 3, 3), Swap(0, 0, 3, 1, 3), Swap(2, 2, 4, 3, 4)),
        (Swap(2, 2, 4, 3, 4), Swap(0, 0, 3, 1, 3), Recompute(1, 1, 3, 3)),
    ):
        done = Plan(plan).apply(trace)
        roles = ["compute", "copy_out", "compute", "compute", "copy_out", "copy_in", "recompute", "compute", "copy_in"]
        assert [op.role for op in done.ops] == [*roles, "compute"]
