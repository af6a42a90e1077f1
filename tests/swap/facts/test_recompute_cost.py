"""The account of recomputations against the rewritten trace; segments on two levels, by hand and on real nets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.deadline import Deadline
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import load
from gpumem.simulator.simulate import simulate
from gpumem.swap.baselines._checkpoint_segments import NO_CUT, PART, SEGMENT, Levels
from gpumem.swap.baselines.checkpoint import checkpoint
from gpumem.swap.facts.recompute_cost import MadeAgain
from gpumem.swap.plan import Hold, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.testing import plans, steps
from gpumem.trace import RECOMPUTE, Buffers, Ops, Trace
from tests.conftest import shared, tiny_machine
from tests.nets import GTX
from tests.swap.facts.test_recompute import layers


@given(st.data())
def test_the_account_is_the_rewritten_trace(data: st.DataObject) -> None:
    trace = data.draw(steps())
    plan = data.draw(plans(trace, kinds=(Recompute, Hold)))
    machine, found = tiny_machine(), gaps(trace)
    row, at = found.rows(trace.n), np.zeros(len(found), np.int64)
    until = np.full(len(trace.buffers), -1, np.int64)
    for d in plan.decisions:
        if isinstance(d, Recompute):
            at[row[d.buffer, d.after]] = d.at
        elif isinstance(d, Hold):
            until[d.buffer] = d.until
    again = plan.apply(trace)
    costs = MadeAgain.of(trace, machine.durations(trace), found).costs(at, until)
    ran = again.ops.role == RECOMPUTE
    assert (costs.peak, costs.reruns) == (again.peak_load, ran.sum())
    assert costs.ns == machine.durations(again)[ran].sum()


def test_what_cannot_be_made_again_has_no_price() -> None:
    ops = Ops.make([[], [0], [], [1]], [[0], [1], [], []])
    trace = Trace(Buffers.make([4, 8], [0, 1], [2, 4], kind=["input", ""]), ops)  # the batch is dead when B is wanted
    found = gaps(trace).where(gaps(trace).buffer == 1)
    account, none = MadeAgain.of(trace, np.ones(4, np.int64), found), np.full(2, -1)
    assert account.costs(np.array([0]), none) == (12, 3, 0, 0)
    assert account.costs(np.array([3]), none) == (-1, -1, -1, -1)
    assert account.costs(np.array([3]), np.array([3, -1])) == (12, 3, 1, 1)  # held


def levels(trace: Trace) -> Levels:
    found = gaps(trace)
    found = found.where((found.buffer > 0) & (found.after < 8) & (found.before >= 8))
    found = found.where(found.before > found.after + 1)
    made = found.buffer - 1  # `layers`: op i makes map i + 1
    order = np.argsort(made, kind="stable")
    rest = {"limit": 1, "hurry": Deadline()}
    account = MadeAgain.of(trace, trace.ops.duration, found.where(order))
    return Levels.of(trace, account, made[order], made[order] < 0, **rest)


def test_two_levels_by_hand() -> None:
    trace = layers(8)  # map i + 1 is made by op i, used by op i + 1, and by op 15 - i, its backward
    found = levels(trace)
    assert found.places.tolist() == list(range(7))
    cut = np.array([NO_CUT, NO_CUT, PART, NO_CUT, SEGMENT, NO_CUT, PART])
    at = dict(zip(found.account.buffer.tolist(), found.back(cut).tolist()))
    # Segments 1 2:3 4 | 5 6:7 8; op 15 is the backward of map 1, op 9 of map 7. Maps 2 and 6 are used in the next part:
    # back when the backward of their segment begins. Map 4 is used in the next segment: kept.
    assert at == {1: 15, 2: 13, 3: 13, 4: 0, 5: 11, 6: 9, 7: 9}


@given(st.data())
def test_cuts_for_random_steps_pass_the_oracles(data: st.DataObject) -> None:
    trace = data.draw(steps())
    machine = replace(tiny_machine(), pinned=data.draw(st.sampled_from([0, 16, 10_000])))
    limit = data.draw(st.integers(max(trace.peak_load // 2, 1), max(trace.peak_load, 1)))
    try:
        options = data.draw(st.sampled_from([{}, {"hold": False}, {"rule": "sqrt"}]))
        plan = checkpoint(trace, machine, limit, **options)
    except (Infeasible, NotReached):
        return
    again = plan.apply(trace)
    check.budget(again, limit, host=machine.pinned)
    check.data_flow(trace, again)
    check.timeline(
        again, simulate(again, machine, capacity=limit, iterations=60), machine.durations(again), capacity=limit
    )


BARS = [  # trace, limit as a share of the peak, time at most
    ("vgg19_227_b144", 0.60, 0.15),
    ("unet_256_b16", 0.55, 0.40),
    ("resnet50_224_b64", 0.35, 0.35),
    ("vgg16_cifar_b100", 0.63, 0.20),
    ("bert_base_s128_b32", 0.50, 0.35),
    ("densenet121_224_b2", 0.46, 0.35),
]


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.thorough
@pytest.mark.parametrize(
    "path, share, most",
    [pytest.param(p, *bar, id=name) for name, *bar in BARS for p in shared(f"traces/{name}.json.gz")],
)
def test_real_nets_at_the_loads_that_were_asked_for(path: Path, share: float, most: float) -> None:
    trace = load(path).trace
    limit = int(trace.peak_load * share)
    again = checkpoint(trace, GTX, limit).apply(trace)
    check.budget(again, limit, host=GTX.pinned)
    check.data_flow(trace, again)
    line = simulate(again, GTX, capacity=limit)
    check.timeline(again, line, GTX.durations(again), capacity=limit)
    assert line.overhead(simulate(trace, GTX)) <= most
