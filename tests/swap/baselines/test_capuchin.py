"""Capuchin: free time by hand, swap or recompute, chains (algorithm 2), feedback, limits, the oracles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, load
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.baselines.capuchin import capuchin
from gpumem.swap.baselines.capuchin_policy import AccessPattern, Chains
from gpumem.swap.facts.limits import floor
from gpumem.swap.facts.recompute import recomputable
from gpumem.swap.plan import Plan, Recompute
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import shared, tiny_machine
from tests.strategies import steps, traces

GTX = Machine.named("gtx1080ti")


def chain() -> Trace:
    """P (4, constant) -> A (8, op 0) -> B (8, op 1) -> C (8, op 2); op 3 holds 20 more; backward 4, 5, 6: C, B, A."""
    ops = Ops.make(
        [[0], [1], [2], [], [3], [2], [1]],
        [[1], [2], [3], [4], [], [], []],
        duration=[10, 20, 30, 40, 50, 60, 70],
    )
    return Trace(Buffers.make([4, 8, 8, 8, 20], [0, 0, 1, 2, 3], [7, 7, 6, 5, 4], persistent=[1, 0, 0, 0, 0]), ops)


def slow() -> Machine:
    """A link that takes 500 ns a copy."""
    return tiny_machine().with_(out=Link(500, 0.0), into=Link(500, 0.0))


def test_free_time_by_hand(machine: Machine) -> None:
    # copies of 8 bytes take 7 out, 4 in. A: 1..6, gap 30..210; B: 2..5, 60..150; C: 2..4, 60..100
    pattern = AccessPattern.of(chain(), machine, 40, 1)
    assert pattern.values.gaps.buffer[pattern.rows].tolist() == [1, 2, 3]
    assert pattern.free_ns[pattern.rows].tolist() == [210 - 30 - 11, 150 - 60 - 11, 100 - 60 - 11]


def test_the_longest_free_time_goes_first(machine: Machine) -> None:
    plan = capuchin(chain(), machine, 40, threshold=1)
    assert [swap.buffer for swap in plan.swaps] == [1]
    assert [swap.buffer for swap in capuchin(chain(), machine, 32, threshold=1).swaps] == [2, 1]  # B is back first
    assert simulate(plan.apply(chain()), machine, capacity=40).overhead(simulate(chain(), machine)) == 0


def test_what_cannot_hide_its_copies_is_recomputed_if_that_costs_less() -> None:
    plan = capuchin(chain(), slow(), 40, threshold=1)
    assert plan.decisions == (Recompute(1, 1, 6, 6),)  # A takes 10 ns for 8 bytes, the largest MSPS
    only = capuchin(chain(), slow(), 40, threshold=1, recompute=False)
    assert [swap.buffer for swap in only.swaps] == [1]


def test_a_chain_is_recomputed_in_order() -> None:
    trace = chain()
    plan = capuchin(trace, slow(), 28, threshold=1)
    # C starts from B, B from A: all are on the device before op 4, and stay
    assert plan.decisions == (Recompute(1, 1, 6, 4), Recompute(2, 2, 5, 4), Recompute(3, 2, 4, 4))
    after = plan.apply(trace)
    assert [op.of for op in after.ops if op.role == "recompute"] == [0, 1, 2]
    check.data_flow(trace, after)
    # At 24 bytes that is too much at once: A and B are made in scratch before op 4, A once more before op 5.
    plan = capuchin(trace, slow(), 24, threshold=1)
    assert plan.decisions == (Recompute(1, 1, 6, 6), Recompute(2, 2, 5, 5), Recompute(3, 2, 4, 4))
    after = plan.apply(trace)
    assert [op.of for op in after.ops if op.role == "recompute"] == [0, 1, 2, 0, 1, 0]
    assert after.peak_live_bytes == 24
    check.data_flow(trace, after)


@pytest.mark.parametrize("scratch, recomputes", [(2, True), (10, False)])
def test_other_outputs_of_what_is_recomputed_need_bytes(scratch: int, recomputes: bool) -> None:
    # B (8, and scratch) is made of P (4) by op 0 and used by op 2; T (12) is there from op 1 on, Z (8) at op 1
    ops = Ops.make([[0], [], [1]], [[1, 2], [3, 4], []], duration=[10, 10, 10])
    buffers = Buffers.make([4, 8, scratch, 12, 8], [0, 0, 0, 1, 1], [3, 3, 1, 3, 2], persistent=[1, 0, 0, 0, 0])
    plan = capuchin(trace := Trace(buffers, ops), slow(), 26, threshold=1)
    assert (not plan.swaps) == recomputes
    verify(trace, plan, slow(), 26)


def test_algorithm_2_updates_who_starts_from_what() -> None:
    trace = chain()
    found = recomputable(trace, tiny_machine())
    a, b, c = (int(np.flatnonzero((found.gaps.buffer == buffer) & (found.gaps.before >= 4))[0]) for buffer in (1, 2, 3))
    chains = Chains.of(trace, found, [a, b, c])
    assert (chains.sources, chains.time) == ({a: set(), b: {a}, c: {b}}, {a: 10, b: 20, c: 30})
    assert chains.best() == a
    chains.take(b)
    # C now starts from A and runs B as well; A, once dropped, has to run for B too
    assert (chains.sources[c], chains.time[c], chains.extra[a], chains.overhead(a)) == ({a}, 50, 10, 20)
    chains.take(c)
    assert chains.overhead(a) == 10 + 2 * 10
    chains.discard(a)
    assert chains.best() == -1


def test_feedback_triggers_late_copies_earlier() -> None:
    trace = bundled("vgg16")
    base, limit = simulate(trace, GTX), trace.peak_live_bytes * 7 // 10
    cost = [
        simulate(capuchin(trace, GTX, limit, feedback=turns).apply(trace), GTX, capacity=limit) for turns in (0, 5, 20)
    ]
    overhead = [line.overhead(base) for line in cost]
    assert overhead == sorted(overhead, reverse=True)
    assert overhead[2] < overhead[0]


def test_limits_and_budgets(machine: Machine) -> None:
    trace = chain()
    assert capuchin(trace, machine, trace.peak_live_bytes) == Plan((), 7)
    with pytest.raises(Infeasible):
        capuchin(trace, machine, floor(trace)[1] - 1)
    with pytest.raises(NotReached) as stop:
        capuchin(trace, machine.with_(pinned=8), 32, threshold=1, recompute=False)
    assert stop.value.reached == 40
    assert capuchin(trace, machine.with_(pinned=16), 32, threshold=1, recompute=False)


@pytest.mark.parametrize(
    "options, why",
    [({"limit": 0}, "limit: 0"), ({"feedback": -1}, "feedback: -1"), ({"threshold": -1}, "threshold: -1")],
)
def test_bad_options_are_refused(options: dict[str, int], why: str, machine: Machine) -> None:
    with pytest.raises(ValueError, match=why):
        capuchin(chain(), machine, **{"limit": 10, **options})  # type: ignore[arg-type]


@given(st.data())
def test_random_traces_pass_the_oracles(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(traces(max_ops=12), steps()))
    machine = data.draw(st.sampled_from([tiny_machine(), slow()]))
    machine = machine.with_(duplex=data.draw(st.booleans()), pinned=data.draw(st.sampled_from([9, 40, 10**6])))
    least = floor(trace)[1]
    limit = data.draw(st.integers(max(least, 1), max(trace.peak_live_bytes, least, 1)))
    options = {"recompute": data.draw(st.booleans()), "queue": data.draw(st.booleans())}
    try:
        plan = capuchin(trace, machine, limit, threshold=1, feedback=3, **options)
    except NotReached as stop:
        assert limit < stop.reached <= trace.peak_live_bytes
        return
    assert options["recompute"] or not any(isinstance(d, Recompute) for d in plan.decisions)
    verify(trace, plan, machine, limit)


def verify(trace: Trace, plan: Plan, machine: Machine, limit: int) -> float:
    swapped = plan.apply(trace)
    check.budget(swapped, limit, host=machine.pinned)
    check.data_flow(trace, swapped)
    line = simulate(swapped, machine, capacity=limit, iterations=60)
    check.timeline(swapped, line, machine.durations(swapped), capacity=limit, duplex=machine.duplex)
    return line.overhead(simulate(trace, machine))


@pytest.mark.shared
@pytest.mark.parametrize("queue, most", [(False, 0.45), (True, 0.25)])
@pytest.mark.parametrize("path", shared("traces/resnet50_cifar_b100.json.gz"), ids=lambda p: p.name)
def test_resnet50_passes_every_oracle(path: Path, queue: bool, most: float) -> None:
    trace = load(path).trace
    limit = trace.peak_live_bytes // 2
    plan = capuchin(trace, GTX, limit, queue=queue)
    assert queue == any(isinstance(d, Recompute) for d in plan.decisions)
    assert verify(trace, plan, GTX, limit) < most
