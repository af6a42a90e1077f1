"""The evaluator of the search against the clock, and its account of the host."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.plan import Plan, Variant
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import Evaluation, evaluate, host_excess, retime
from gpumem.swap.search._hold_moves import hold_step
from gpumem.swap.search._recompute_changes import fill, settle
from gpumem.swap.search._recompute_state import Drops, remember
from gpumem.swap.search.annealing import Annealing, start, swaps
from gpumem.swap.search.instance import Instance, problem
from gpumem.testing import steps
from tests.conftest import tiny_machine
from tests.strategies import machine_of, nets, plans, traces
from tests.swap.accounts import as_taken, on_host
from tests.swap.search.oracles import menus


@given(st.data())
def test_the_evaluator_of_the_search_counts_the_same(data: st.DataObject) -> None:
    """The same bytes of pinned memory as `facts.pinned` and as the rewritten trace, copies at their accesses."""
    trace = data.draw(st.one_of(nets(), traces()))
    if data.draw(st.booleans()):
        trace = data.draw(plans(trace)).apply(trace)
    p, r, w = problem(trace, tiny_machine(), 1)
    p, d = p._replace(pinned=0), Drops.of(r)
    settle(r, d)
    x, state, host = Evaluation.of(p), start(p), Pinned(trace, w, 10**6)
    for g in range(len(w)):
        if data.draw(st.booleans()):
            toggle(p, d, state, g)
            assert host.take(g, int(w.after[g]), int(w.before[g]))
    assert host_excess(p, state, x) == host.peak == on_host(trace, as_taken(host, trace))


@given(st.data())
def test_a_state_without_overload_runs_without_stall(data: st.DataObject) -> None:
    """The evaluator against the clock: any selection, any order of the engines, one compute stream, full duplex."""
    trace = data.draw(traces(streams=1, max_ops=14))
    target = machine_of(data, duplex=True)
    p, r, w = problem(trace, target, 0)
    d, s, x = Drops.of(r), start(p), Evaluation.of(p)
    settle(r, d)
    assume(len(w))
    for g in data.draw(st.lists(st.integers(0, len(w) - 1), max_size=6, unique=True)):
        toggle(p, d, s, g)
    if s.used[0] > 1 and data.draw(st.booleans()):
        s.outs[: s.used[0]] = data.draw(st.permutations(s.outs[: s.used[0]].tolist()))
    if s.used[1] > 1 and data.draw(st.booleans()):
        s.ins[: s.used[1]] = data.draw(st.permutations(s.ins[: s.used[1]].tolist()))
    retime(p, d, s, x)
    fits = [limit for limit in range(1, trace.peak_live_bytes + 1) if evaluate(p, d, s, x, limit)[1] == 0]
    assume(fits)
    swapped = Plan(tuple(swaps(p, w, d, s, x)), trace.n).apply(trace)
    check.data_flow(trace, swapped)
    assert swapped.peak_live_bytes <= fits[0]
    line = simulate(swapped, target, capacity=fits[0])
    assert line.stalls == {"data": 0, "copy": 0, "memory": 0}


@given(st.data())
def test_a_state_without_overload_takes_what_reruns_take(data: st.DataObject) -> None:
    """The evaluator against the clock: swaps, drops, holds and ways together, one compute stream, full duplex."""
    trace = data.draw(steps(streams=1))
    target = machine_of(data, duplex=True)
    found = Annealing(Instance.of(trace, target, 1, recompute=True, algorithms=data.draw(menus(trace))), 1.0, 0)
    p, r, w, d, s, x = found.p, found.r, found.w, found.d, found.now, found.x
    assume(len(w))
    chosen = d.c.copy()
    at = chosen.at
    for g in data.draw(st.lists(st.sampled_from(r.can.tolist()), max_size=4, unique=True)) if len(r.can) else ():
        at[g] = r.lasts[g]
    chosen.by[:] = found.by(lambda row: data.draw(st.integers(0, len(row) - 1)))
    assume(fill(r, d, chosen))
    was = d.copy()
    for seed in data.draw(st.lists(st.integers(1, 10**6), max_size=4)):
        if hold_step(r, d, np.array([seed])):
            settle(r, d)
            remember(r, was, d)
        else:
            remember(r, d, was)
    for g in data.draw(st.lists(st.integers(0, len(w) - 1), max_size=4, unique=True)):
        if not at[g]:
            toggle(p, d, s, g)
    retime(p, d, s, x)
    fits = [limit for limit in range(1, trace.peak_live_bytes + 250) if evaluate(p, d, s, x, limit)[1] == 0]
    assume(fits)
    other = found.changes(d.c)
    swapped = Plan.of(trace, [*swaps(p, w, d, s, x), *other]).apply(trace)
    check.data_flow(Plan.of(trace, [c for c in other if isinstance(c, Variant)]).apply(trace), swapped)
    assert swapped.peak_live_bytes <= fits[0]
    line = simulate(swapped, target, capacity=fits[0])
    assert line.stalls == {"data": 0, "copy": 0, "memory": 0}
    assert line.makespan == p.turn + d.added.sum() + d.longer.sum() == x.turn[0]
