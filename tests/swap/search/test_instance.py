"""Which gaps a search looks at, and which of them can be dropped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpumem.simulator.machine import Link, Machine
from gpumem.swap.plan import Plan, Recompute, Swap
from gpumem.swap.search._evaluate import FAR
from gpumem.swap.search.instance import Instance, problem
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.kinds import GENERATOR_BYTES
from tests.swap.nets import CARD


def gaps(trace: Trace, machine: Machine, goal: int, plan: Plan | None = None, *, recompute: bool = False) -> set[int]:
    """The buffers whose gaps a search looks at."""
    instance = Instance.of(trace, machine, goal, plan=plan, recompute=recompute)
    return set(instance.windows.buffer.tolist())


def two(first: int, second: int, streams: int = 1) -> Trace:
    """X is between ops 1 and 4, Y, which is made of it, between ops 1 and 3; Z lives during op 2. Each takes 10 ns."""
    stream = [op % streams for op in range(5)]
    reads, writes, names = [[], [0], [], [1], [0]], [[0], [1], [2], [], []], ["compute", "side"][:streams]
    ops = Ops.make(reads, writes, duration=[10] * 5, stream=stream, streams=names)
    return Trace(Buffers.make([first, second, first], [0, 1, 2], [5, 4, 3]), ops)


X, Y = 0, 1
Y_SWAPPED = Plan((Swap(Y, 1, 3, 2, 2, 1),), 5)


def test_gaps_of_next_to_nothing_are_looked_at_only_for_a_plan_that_has_them() -> None:
    trace = two(20_000, 1)
    machine = replace(CARD, out=Link(1.0, 0.0), into=Link(1.0, 0.0))
    assert gaps(trace, machine, 20_001) == {X}
    assert gaps(trace, machine, 20_001, Y_SWAPPED) == {X, Y}


def test_gaps_shorter_than_a_copy_are_looked_at_where_they_are_needed() -> None:
    """Y has 10 ns, a copy takes 12; without X 16 bytes are live, without both 8."""
    trace, machine = two(8, 8), replace(CARD, out=Link(1.0, 0.0), into=Link(12.0, 0.0))
    assert gaps(trace, machine, 16) == {X}
    assert gaps(trace, machine, 16, Y_SWAPPED) == {X, Y}
    assert gaps(trace, machine, 8) == {X, Y}
    assert gaps(trace, machine, 16, recompute=True) == {X, Y}  # Y can be recomputed


def droppable(least: int, plan: Plan | None = None, *, streams: int = 1) -> bool:
    """Whether Y, of an op that takes 10 ns, can be dropped where the best plan takes so long."""
    trace = two(8, 8, streams)
    _, recompute, windows = problem(trace, CARD, 8, recompute=True, plan=plan, least=least)
    return bool(recompute.last_place[windows.rows(5)[Y, 1]])


def test_replays_longer_than_a_better_plan_has_time_for_are_left_out() -> None:
    """The ops take 50 ns; a replay may take 8 times what the best plan adds to that, as others may share it."""
    assert droppable(FAR) and droppable(52) and not droppable(51)
    assert droppable(51, Plan((Recompute(Y, 1, 3, 3),), 5))
    assert droppable(51, streams=2)


def last_place(trace: Trace, pinned: int = 10_000) -> int:
    """The last place at which Y can be recomputed."""
    _, recompute, windows = problem(trace, replace(CARD, pinned=pinned), 8, recompute=True)
    row = windows.rows(trace.n).get((Y, 1))
    return 0 if row is None else int(recompute.last_place[row])


def test_random_ops_are_not_run_twice_where_the_host_cannot_hold_their_generators() -> None:
    trace = two(8, 8)
    draws = replace(trace, ops=replace(trace.ops, rng=np.arange(5) == 1))
    assert last_place(draws) == last_place(trace) == 3
    assert last_place(draws, pinned=GENERATOR_BYTES - 1) == 0 and last_place(trace, pinned=GENERATOR_BYTES - 1) == 3


@pytest.mark.parametrize(("end", "last"), [(2, 0), (3, 0), (4, 3), (5, 3)])
def test_a_value_that_can_be_recomputed_only_before_the_next_op_is_not_dropped(end: int, last: int) -> None:
    """Y is dropped for op 2 at least, so X, which it is made of, has to be there before op 3."""
    ops = Ops.make([[], [0], [], [1], []], [[], [1], [2], [], []], duration=[10] * 5)  # nothing makes X
    assert last_place(Trace(Buffers.make([8, 8, 8], [0, 1, 2], [end, 4, 3]), ops)) == last


@pytest.mark.parametrize(("pinned", "counted"), [(15, True), (16, False)])
def test_the_host_is_counted_only_where_it_cannot_hold_all(pinned: int, counted: bool) -> None:
    swap_problem, _, _ = problem(two(8, 8), replace(CARD, pinned=pinned), 8)
    assert swap_problem.pinned == (pinned if counted else -1)
