"""Checkpoints of programs of many passes: by hand, by the oracles, and what all passes through a trace rely on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base import work
from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.baselines._checkpoint_evict import EvictionSearch
from gpumem.swap.baselines._checkpoint_rollout import rollout
from gpumem.swap.baselines._checkpoint_state import DropRules, PassFacts
from gpumem.swap.baselines.checkpoint import checkpoint
from gpumem.swap.facts.recompute import barred, takes_unknown
from gpumem.swap.facts.recompute_cost import RecomputableGaps
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.testing import steps
from gpumem.trace import Trace
from tests.conftest import tiny_machine
from tests.swap.baselines.passes import programs, unrolled
from tests.swap.nets import layers

BARE = replace(tiny_machine(), pinned=0)


def account(trace: Trace, machine: Machine = BARE) -> RecomputableGaps:
    spans = gaps(trace)
    spans = spans.where(
        (spans.before < trace.n) & (spans.before > spans.after + 1) & (trace.buffers.size[spans.buffer] > 0)
    )
    return RecomputableGaps.of(trace, machine.durations(trace), spans, barred(trace, machine) | takes_unknown(trace))


def run(trace: Trace, limit: int, **other: float) -> tuple[dict[int, int], bool]:
    """Before which op each dropped buffer comes back."""
    priced = account(trace)
    rules = DropRules(limit, int(other.get("half_powers", 1)), 0.0, np.ones(len(priced.buffer)), 10**6, 10**9)
    at, fits, _ = rollout(priced, PassFacts.of(priced), rules, np.full(len(priced.size), -1))
    return {int(buffer): int(op) for buffer, op in zip(priced.buffer, at) if op}, fits


def test_what_is_recomputed_on_the_way_stays_if_it_fits() -> None:
    # `layers`: op i makes map i + 1 of map i; ops 6 to 11 go back, op 11 - i reads map i + 1. What is read last is
    # dropped first. At 25 bytes maps 1 to 3 are dropped; op 9 reads map 3, and the others, recomputed on the way, stay.
    # At 33 bytes map 2 is worth more: without it map 3, which is read soon, would take two ops.
    assert run(layers(6), 25) == ({1: 9, 2: 9, 3: 9}, True)
    assert run(layers(6), 33) == ({1: 11, 3: 9}, True)
    assert run(layers(6), 8) == ({}, False)


@pytest.mark.jit
@pytest.mark.parametrize("passes, share", [(2, 50), (3, 50), (4, 40)])
def test_programs_of_many_passes_come_down_for_less_than_by_cuts(passes: int, share: int) -> None:
    trace = unrolled(passes, 12)
    limit = trace.peak_live_bytes * share // 100
    plan = checkpoint(trace, BARE, limit)
    after = plan.apply(trace)
    assert after.peak_live_bytes <= limit
    check.data_flow(trace, after)
    took = simulate(after, BARE, capacity=limit).overhead(simulate(trace, BARE))
    try:
        other = checkpoint(trace, BARE, limit, rule="cuts").apply(trace)
    except NotReached:
        return
    assert took < simulate(other, BARE, capacity=limit).overhead(simulate(trace, BARE))


def test_a_value_is_back_before_the_weight_that_made_it_changes() -> None:
    trace = unrolled(2, 6)
    first_update = next(op for op, row in enumerate(trace.ops.writes.tolist()) if row == [0])
    facts, priced = PassFacts.of(account(trace)), account(trace)
    over = (priced.after < first_update) & (priced.before > first_update)
    assert over.any()
    assert (facts.lasts[over] <= first_update).all()


@given(st.data())
def test_all_can_be_dropped_at_once_and_be_back_at_its_last_place(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(programs(), steps()))
    priced = account(trace)
    lasts = PassFacts.of(priced).lasts
    assert ((lasts == 0) | ((priced.after + 1 < lasts) & (lasts <= priced.before))).all()
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(lasts), max_size=len(lasts))), bool)
    at = np.where(chosen, lasts, 0)
    assert priced.costs(at, np.full(len(priced.size), -1)).peak >= 0
    rows = np.flatnonzero(at)
    columns = (column[rows].tolist() for column in (priced.buffer, priced.after, priced.before, at))
    check.data_flow(trace, Plan.of(trace, map(Recompute, *columns)).apply(trace))


@given(st.data())
def test_a_pass_that_fits_has_counted_what_it_holds(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(programs(), steps()))
    priced = account(trace)
    limit = data.draw(st.integers(max(trace.peak_live_bytes // 3, 1), max(trace.peak_live_bytes, 1)))
    rules = DropRules(limit, data.draw(st.integers(0, 2)), 1.0, np.ones(len(priced.buffer)), 10**6, 10**9)
    until = np.full(len(priced.size), -1)
    at, fits, steps_ = rollout(priced, PassFacts.of(priced), rules, until)
    costs = priced.costs(at, until)
    assert costs.peak >= 0
    assert steps_ > 0 or not len(priced.buffer) or not fits or not at.any()
    if fits:  # at ops; places may need more where a value was taken back to an earlier drop
        search = EvictionSearch.of(trace, priced, limit=limit)
        plan = Plan.of(trace, search.decisions(search.price(at, until))).apply(trace)
        assert plan.peak_live_bytes == costs.peak


@given(st.data())
def test_plans_for_many_passes_pass_the_oracles_and_are_the_same_each_time(data: st.DataObject) -> None:
    trace = data.draw(programs())
    limit = data.draw(st.integers(max(trace.peak_live_bytes // 3, 1), trace.peak_live_bytes))
    try:
        plan = checkpoint(trace, BARE, limit)
    except (Infeasible, NotReached):
        return
    assert plan == checkpoint(trace, BARE, limit)
    after = plan.apply(trace)
    check.budget(after, limit, host=0)
    check.data_flow(trace, after)
    line = simulate(after, BARE, capacity=limit, iterations=60)
    check.timeline(after, line, BARE.durations(after), capacity=limit)


def test_a_search_that_is_late_says_so() -> None:
    trace = unrolled(3, 8)
    with pytest.raises(NotReached, match=work.LATE):
        checkpoint(trace, BARE, trace.peak_live_bytes // 2, seconds=1e-9)
