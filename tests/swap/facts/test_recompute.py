"""Recomputation: chains by hand, what is refused and why, random decisions by the oracle, checkpointing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, load
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.baselines.checkpoint import checkpoint
from gpumem.swap.facts.limits import floor
from gpumem.swap.facts.recompute import REASONS, backward_start, recomputable
from gpumem.swap.plan import Decision, Plan, Recompute, Swap
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import shared, tiny_machine
from tests.strategies import traces

GTX = Machine.named("gtx1080ti")


def layers(k: int) -> Trace:
    """P, a constant; op i makes map i + 1 of map i (op 0 of P), op 2k - 1 - i is its backward and needs map i + 1."""
    ops = Ops.make([[i] for i in range(k)] + [[k - i] for i in range(k)], [[i + 1] for i in range(k)] + [[]] * k)
    ops = replace(ops, duration=np.full(2 * k, 10))
    end = [2 * k, *(2 * k - i for i in range(k))]
    return Trace(Buffers.make([1] + [8] * k, [0, *range(k)], end, persistent=[True] + [False] * k), ops)


def test_a_chain_runs_in_order_before_its_first_use() -> None:
    trace = layers(4)  # map 4 is used by op 4, map 3 by op 5, map 2 by op 6, map 1 by op 7
    dropped = (Recompute(2, 2, 6, 5), Recompute(3, 3, 5, 5))
    again = Plan(dropped).apply(trace)
    assert [(o.role, o.of) for o in again.ops][5:8] == [("recompute", 1), ("recompute", 2), ("compute", 5)]
    assert again.buffers[again.ops[6].reads[0]].start == 5  # the second reads what the first has just made
    check.data_flow(trace, again)
    same = Plan(dropped[::-1]).apply(trace)  # united, so their order does not matter
    assert [(o.reads, o.writes) for o in same.ops] == [(o.reads, o.writes) for o in again.ops]
    late = Plan((Recompute(2, 2, 6, 6), Recompute(3, 3, 5, 5))).apply(trace)  # map 2 comes too late for map 3
    assert [o.of for o in late.ops] == [0, 1, 2, 3, 4, 1, 2, 5, 1, 6, 7]
    check.data_flow(trace, late)


def test_no_recomputation_over_the_boundary() -> None:
    # W is written by op 1 from the constant P; its gaps: 1..2 and 2..4, where 4 is op 1 of the next iteration
    ops = Ops.make([[], [0], [1]], [[], [1], []])
    trace = Trace(Buffers.make([1, 8], [0, 0], [3, 3], persistent=[True, True]), ops)
    check.data_flow(trace, Plan((Recompute(1, 1, 2, 2),)).apply(trace))
    for at in (3, 4):
        with pytest.raises(ValueError, match=r"Recompute\(buffer=1.*wraps the iteration boundary"):
            Plan((Recompute(1, 2, 4, at),)).apply(trace)


def test_a_value_from_before_the_boundary_is_not_made_again() -> None:
    # A is made by op 2, lives over the boundary, read by ops 0 and 1
    trace = Trace(
        Buffers.make([1, 8], [0, 2], [3, 5], persistent=[True, False]), Ops.make([[1], [1], [0]], [[], [], [1]])
    )
    with pytest.raises(ValueError, match="it was made before the iteration boundary"):
        Plan((Recompute(1, 0, 1, 1),)).apply(trace)


def test_every_reason_is_told(machine: Machine) -> None:
    def reason(ops: Ops, *, buffer: int = 1, end: int = 3) -> str:
        found = recomputable(Trace(Buffers.make([1, 8], [0, 0], [end, 3], persistent=[end == 3, False]), ops), machine)
        k = int(np.flatnonzero((found.gaps.buffer == buffer) & (found.gaps.after == 0))[0])
        return REASONS[found.reason[k]]

    make = Ops.make([[0], [], [1]], [[1], [], []])
    assert reason(make) == ""
    assert reason(Ops.make([[0], [], []], [[], [], []]), buffer=0) == "the gap wraps the iteration boundary"
    assert reason(Ops.make([[1], [], [1]], [[], [], []])) == "no op makes it as a whole"
    assert reason(Ops.make([[0, 1], [], [1]], [[1], [], []])) == "no op makes it as a whole"
    assert reason(replace(make, rng=np.array([True, False, False]))) == ""
    assert "reads nothing" in reason(Ops.make([[], [], [1]], [[1], [], []]))
    assert reason(make, end=2) == "no op makes it as a whole"  # its input, which is dead by then
    assert reason(Ops.make([[0], [], [1]], [[1], [0], []])) == "it was made before the iteration boundary"


def test_the_producers_time_is_the_cost(machine: Machine) -> None:
    found = recomputable(layers(2), machine)
    assert found.cost_ns[found.ok].tolist() == [10] * int(found.ok.sum())


def test_the_turn_of_a_trace() -> None:
    trace = bundled("vgg16")
    assert trace.ops.name[backward_start(trace)] == "ones_like.default"  # the gradient of the loss
    plain = replace(trace, buffers=replace(trace.buffers, kind=("",) * len(trace.buffers)))
    assert trace.ops.name[backward_start(plain)] == "nll_loss_backward.default"
    assert backward_start(replace(plain, ops=replace(trace.ops, name=("",) * trace.n))) == trace.peak[0]


def test_four_segments_of_sixteen_layers(machine: Machine) -> None:
    trace = layers(17)  # the last map is used at once: 16 values can be dropped
    plan = checkpoint(trace, machine, 81, rule="sqrt", segments=4)
    assert plan.apply(trace).peak_load <= 81 < trace.peak_load == 137
    at = [d.at for d in plan.decisions if isinstance(d, Recompute)]
    assert len(set(at)) == 4  # each segment at one place
    assert checkpoint(trace, machine, 81, rule="sqrt") == plan  # the square root of the values
    check.data_flow(trace, plan.apply(trace))


def test_the_number_of_segments_that_gives_the_lowest_peak(machine: Machine) -> None:
    trace = layers(16)
    with pytest.raises(NotReached) as stop:
        checkpoint(trace, machine, floor(trace)[1])
    reached = stop.value.reached
    assert checkpoint(trace, machine, reached).apply(trace).peak_load == reached < 73
    with pytest.raises(Infeasible):
        checkpoint(trace, machine, floor(trace)[1] - 1)
    assert checkpoint(trace, machine, trace.peak_load) == Plan((), trace.n)


@pytest.mark.parametrize(
    "options, why",
    [
        ({"limit": 0}, "limit: 0"),
        ({"rule": "sqrt", "segments": 0}, "segments: 0"),
        ({"rule": "sqrt", "segments": 10**9}, "segments: 1000000000 of them, but the iteration has"),
        ({"segments": 4}, "segments: 4 of them with rule 'cuts'"),
        ({"rule": "sqr"}, "rule: 'sqr' is unknown.*did you mean 'sqrt'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], why: str, machine: Machine) -> None:
    with pytest.raises(ValueError, match=why):
        checkpoint(layers(4), machine, **{"limit": 10, **options})


@st.composite
def mixed(draw: st.DrawFn, trace: Trace) -> Plan:
    """Any decisions that obey the order of a gap, recomputations among them; `apply` may refuse them."""
    found = gaps(trace)
    chosen: list[Decision] = []
    for b, after, before in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist()):
        what = draw(st.sampled_from(["keep", "swap", "recompute", "recompute"]))
        if what == "swap":
            release = draw(st.integers(after + 1, before))
            chosen.append(Swap(b, after, before, release, draw(st.integers(release, before))))
        elif what == "recompute":
            chosen.append(Recompute(b, after, before, draw(st.integers(after + 1, before))))
    return Plan(tuple(draw(st.permutations(chosen))), trace.n)


@given(st.data())
def test_what_apply_accepts_keeps_the_values(data: st.DataObject) -> None:
    trace = data.draw(traces())
    plan = data.draw(mixed(trace))
    accepted: tuple[Decision, ...] = ()
    for d in plan.decisions:
        try:
            Plan((*accepted, d), trace.n).apply(trace)
        except ValueError:
            continue
        accepted = (*accepted, d)
    check.data_flow(trace, Plan(accepted, trace.n).apply(trace))


@given(st.data())
def test_checkpoints_of_random_traces_pass_the_oracles(data: st.DataObject) -> None:
    trace = data.draw(traces(max_ops=12))
    options = data.draw(st.sampled_from([{}, {"hold": False}, {"rule": "sqrt"}, {"rule": "sqrt", "segments": 2}]))
    machine = tiny_machine()
    least = floor(trace)[1]
    limit = data.draw(st.integers(max(least, 1), max(trace.peak_load, least, 1)))
    try:
        again = checkpoint(trace, machine, limit, **options).apply(trace)
    except NotReached as stop:
        assert limit < stop.reached
        limit = stop.reached
        again = checkpoint(trace, machine, limit, **options).apply(trace)
    verify(trace, again, machine, limit)


@given(st.data())
def test_what_is_called_recomputable_is(data: st.DataObject) -> None:
    trace = data.draw(traces())
    found = recomputable(trace, tiny_machine())
    for k in range(len(found)):
        b, after, before = (int(x[k]) for x in (found.gaps.buffer, found.gaps.after, found.gaps.before))
        if at := int(found.until[k]):
            check.data_flow(trace, Plan((Recompute(b, after, before, at),)).apply(trace))
        if at < before and "reads nothing" not in REASONS[found.reason[k]]:  # and no later
            with pytest.raises(ValueError):
                Plan((Recompute(b, after, before, max(at, after) + 1),)).apply(trace)


def verify(trace: Trace, again: Trace, machine: Machine, limit: int) -> float:
    check.budget(again, limit, host=0)
    check.data_flow(trace, again)
    line = simulate(again, machine, capacity=limit, iterations=60)
    check.timeline(again, line, machine.durations(again), capacity=limit)
    return line.overhead(simulate(trace, machine))


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.thorough
@pytest.mark.parametrize("path", shared("traces/resnet50_cifar_b100.json.gz"), ids=lambda p: p.name)
def test_half_of_resnet50_for_a_quarter_of_the_time(path: Path) -> None:
    trace = load(path).trace
    limit = trace.peak_load * 58 // 100
    assert verify(trace, checkpoint(trace, GTX, limit).apply(trace), GTX, limit) < 0.27
