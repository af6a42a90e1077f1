"""MO-SOS, Checkmate and STR as planners: within the limit, judged by the clock, and in order of what they may do."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
from hypothesis import given, settings, strategies as st

from gpumem import Infeasible, NotReached, Plan, Swap, Variant, check, simulate
from gpumem.simulator.machine import Link
from gpumem.swap.mosos import mosos, operators, solve_mosos, str_
from gpumem.swap.mosos.parking import crowded
from gpumem.swap.mosos.work import FAMILY
from gpumem.trace import Buffers, Ops, Trace
from tests.strategies import nets
from tests.swap.mosos.chains import chains, machine, menus
from tests.swap.nets import CARD, chain


def test_each_family_does_what_it_may() -> None:
    trace, ways = chain(workspace=25)
    found = {kind: solve_mosos(trace, CARD, 80, kind=kind, algorithms=ways) for kind in FAMILY}
    assert {kind: proof.makespan for kind, proof in found.items()} == {
        "mosos": 265,
        "checkmate": 300,
        "checkmate-auto": 300,
        "str": 300,
        "str-auto": 265,
    }
    assert found["mosos"].plan.decisions == (Swap(0, 0, 4, 2, 3, 0), Variant(1, "narrow", 65, 0))


@given(st.data())
@settings(max_examples=12)
def test_plans_keep_the_limit_and_mosos_is_never_slower(data: st.DataObject) -> None:
    trace, card = data.draw(st.one_of(chains(), nets())), machine(data)
    ways = data.draw(menus(trace)) if (trace.ops.duration >= 0).all() else {}
    limit = data.draw(st.integers(trace.peak_live_bytes // 2, trace.peak_live_bytes))
    times = {}
    for kind in FAMILY:
        try:
            proof = solve_mosos(trace, card, limit, kind=kind, algorithms=ways)
        except (Infeasible, NotReached) as error:
            assert error.limit == limit
            continue
        rewritten = proof.plan.apply(trace)
        usual = Plan.of(trace, [d for d in proof.plan.decisions if isinstance(d, Variant) and d.at < 0])
        check.data_flow(usual.apply(trace), rewritten)
        assert rewritten.peak_live_bytes <= limit
        assert simulate(rewritten, card, capacity=limit).makespan == proof.makespan >= proof.lower_bound
        times[kind] = proof.makespan
    assert not times or all(times["mosos"] <= times[kind] for kind in ("checkmate-auto", "str-auto") if kind in times)


def test_operators_by_free_memory_stay_within_the_limit() -> None:
    trace, ways = chain(workspace=25)
    assert operators(trace, CARD, Plan.of(trace), 100, algorithms=ways).decisions == ()
    assert operators(trace, CARD, Plan.of(trace), 90, algorithms=ways).decisions == (Variant(1, "narrow", 65, 0),)


def test_limits_that_cannot_be_met_and_options_that_are_none() -> None:
    trace, ways = chain()
    with pytest.raises(Infeasible, match="op 2 must hold 60 B"):
        mosos(trace, CARD, 59, algorithms=ways)
    slow = replace(CARD, out=Link(1e6, 1.0))
    lasting = replace(trace, ops=replace(trace.ops, name=("load", *trace.ops.name[1:])))
    with pytest.raises(NotReached, match="a planner that may wait for copies may get lower"):
        mosos(lasting, slow, 80, kind="checkmate", algorithms=ways)
    with pytest.raises(
        NotReached, match="no plan got lower, that is the peak of the step as it is: no schedule of 5 nodes"
    ):
        mosos(lasting, slow, 80, kind="checkmate", algorithms=ways)
    with pytest.raises(ValueError, match=r"gap: 1 is not in \[0, 1\)"):
        mosos(trace, CARD, 80, gap=1, algorithms=ways)
    with pytest.raises(ValueError, match="kind: 'mo-sos' is unknown"):
        mosos(trace, CARD, 80, kind="mo-sos", algorithms=ways)


def test_a_start_and_a_deadline_are_heard() -> None:
    trace, ways = chain()
    start = str_(trace, CARD, 80, algorithms=ways)
    told: list[str] = []
    proof = solve_mosos(trace, CARD, 80, start=start, seconds=20, algorithms=ways, progress=told.append)
    assert proof.makespan == simulate(start.apply(trace), CARD, capacity=80).makespan and proof.status == "optimal"
    assert all(line.startswith("mosos: ") for line in told)


@pytest.mark.parametrize("kind", ["mosos", "str", "str-auto"])
def test_a_planner_that_may_copy_has_a_plan_however_late_it_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, ways = chain()
    looks = iter([0.0, 0.0])
    monkeypatch.setattr("gpumem.base.work.now", lambda: next(looks, 1e6))
    proof = solve_mosos(trace, CARD, 60, kind=kind, algorithms=ways, seconds=1)
    assert proof.plan.apply(trace).peak_live_bytes == 60 and proof.status == "late"


def test_an_interrupt_tells_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    trace, ways = chain(workspace=25)
    start = str_(trace, CARD, 80, algorithms=ways)
    monkeypatch.setattr("gpumem.swap.linear_programs._Worker.ask", stop)
    for known, note in ((None, "no plan yet, at least 250 ns"), (start, "300 ns an iteration, at least 250 ns")):
        with pytest.raises(KeyboardInterrupt) as stopped:
            mosos(trace, CARD, 80, algorithms=ways, start=known)
        assert stopped.value.__notes__[0].startswith(f"{trace.name}: {note}")


def test_what_cannot_be_back_in_time_beside_a_full_op_waits() -> None:
    ops = Ops.make([[], [0], [1], [2], [0, 3]], [[0], [1], [2], [3], []], duration=[50] * 5, name=["load"] * 5)
    trace = Trace(Buffers.make([40, 30, 50, 40, 10], [0, 1, 2, 3, 4], [5, 3, 4, 5, 5]), ops)
    assert crowded(trace, 90, share=0.97).tolist() == [0] and not crowded(trace, 93, share=0.97).size
    proof = solve_mosos(trace, CARD, 90, kind="str", algorithms={})
    (swap,) = proof.plan.decisions
    assert isinstance(swap, Swap) and swap.buffer == 0 and proof.makespan > 250


def coarse() -> Trace:
    """A chain forward and back: of each pair of maps the second one is read twice, too late for a node of both."""
    k = 12
    reads = [[max(i - 1, 0)] if i else [] for i in range(k)] + [[k - 1 - i] for i in range(k)]
    writes = [[i] for i in range(k)] + [[]] * k
    ops = Ops.make(reads, writes, duration=[50] * 2 * k, name=["zeros"] * k + ["back"] * k)
    return Trace(Buffers.make([40] * k, range(k), [2 * k - i for i in range(k)]), ops)


def test_checkmate_takes_finer_nodes_where_coarse_ones_have_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = coarse()
    work = import_module("gpumem.swap.mosos.work")  # `gpumem.swap.mosos` is the planner as well
    monkeypatch.setattr(work, "MOST_NODES", 4)
    monkeypatch.setattr(work, "FINER", ())
    with pytest.raises(NotReached, match="no schedule of 4 nodes"):
        solve_mosos(trace, CARD, 240, kind="checkmate", algorithms={}, seconds=60)
    monkeypatch.setattr(work, "FINER", (8, 24))
    proof = solve_mosos(trace, CARD, 240, kind="checkmate", algorithms={}, seconds=60)
    assert proof.plan.apply(trace).peak_live_bytes <= 240 and proof.lower_bound > 24 * 50
    check.data_flow(trace, proof.plan.apply(trace))
