"""Values recomputed, by hand and on random steps: data flow, every oracle, and equal bytes in every legal order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from gpumem import check
from gpumem.execute import in_issue_order
from gpumem.execute.emulator import shuffled
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.simulate import simulate
from gpumem.swap.plan import Carried, Decision, Hold, Plan, Recompute, Swap
from gpumem.swap.plan.gaps import gaps
from gpumem.swap.plan.replay import Device, replays
from gpumem.swap.plan.values import Origins
from gpumem.trace import COMPUTE, RECOMPUTE, Buffers, Op, Ops, Trace
from gpumem.trace.kinds import GENERATOR
from tests.conftest import tiny_machine
from tests.runs import differs, outcome
from tests.strategies import any_plans, steps, traces
from tests.swap.nets import layers

ITERATIONS = 4


def same_bytes(trace: Trace, rewritten: Trace, orders: int) -> str:
    """Run both, the second in so many orders; return what differs, if anything does."""
    want = outcome(trace, trace, best_fit(trace), in_issue_order, iterations=ITERATIONS)
    placed, host = best_fit(rewritten, alignment=4), best_fit(rewritten.host_side())
    for seed in range(orders):
        got = outcome(trace, rewritten, placed, shuffled(seed), host=host, iterations=ITERATIONS)
        if told := differs(want, got):
            return told
    return ""


def all_oracles(trace: Trace, rewritten: Trace) -> None:
    machine, placement = tiny_machine(), best_fit(rewritten)
    check.everything(trace, rewritten, placement, simulate(rewritten, machine, placement), machine)
    check.budget(rewritten, rewritten.peak_live_bytes, host=int(rewritten.live_bytes(host=True).max()))


def lands(plan: Plan, done: Carried) -> None:
    """Each value is back, by the op that is said to bring it, before the op that it is wanted at."""
    ops, b = done.trace.ops, done.trace.buffers
    place = {of: i for i, of in enumerate(ops.of.tolist()) if ops.role[i] == COMPUTE}
    for d, back in zip(plan.decisions, done.back.tolist()):
        if isinstance(d, Recompute):
            assert ops.role[back] == RECOMPUTE and back < place[d.at]
            assert d.buffer in b.of[ops.writes[back]]


def test_an_op_that_runs_again_for_another_result_changes_what_should_stay() -> None:
    """Op 1 changes A in place and makes B of it: where B is recomputed before op 3, A cannot stay as op 0 left it."""
    ops = Ops.make([[], [0], [], [1], [0], []], [[0], [0, 1], [2], [2], [2], [2]])
    trace = Trace(Buffers.make([8, 8, 8], [0, 1, 2], [5, 4, 6]), ops)
    b = Recompute(1, after=1, before=3, at=3)
    assert check.data_flow(trace, Plan((b,), 6).apply(trace)) is None
    with pytest.raises(ValueError, match=r"buffer 0 holds after op 0.*: recomputations at .* change it further"):
        Plan((b, Hold(0, until=5, after=0, at=3)), 6).apply(trace)


@given(st.data())
def test_any_plan_of_a_training_step(data: st.DataObject) -> None:
    trace = data.draw(steps(streams=3))
    plan = data.draw(any_plans(trace))
    done = plan.carried(trace)
    lands(plan, done)
    all_oracles(trace, done.trace)
    assert not same_bytes(trace, done.trace, 2)


def places(trace: Trace) -> list[list[Op]]:
    """What is inserted before each op of the iteration, and behind the last."""
    rows: list[list[Op]] = [[]]
    for op in trace.ops:
        if op.role == "compute":
            rows.append([])
        else:
            rows[-1].append(op)
    return rows


@given(st.data())
def test_reruns_add_no_more_than_they_need(data: st.DataObject) -> None:
    trace = data.draw(steps())
    plan = data.draw(any_plans(trace))
    rewritten = plan.apply(trace)
    touched: dict[int, list[Op]] = {b.id: [] for b in rewritten.buffers}
    for op in rewritten.ops:
        for b in {*op.reads, *op.writes}:
            touched[b].append(op)
    place = {op.of: op.id for op in rewritten.ops if op.role == "compute"} | {trace.n: rewritten.n}
    ends = {place[d.until] for d in plan.decisions if isinstance(d, Hold) and d.at >= 0}
    kept, held = {}, list[int]()
    for row in places(rewritten):
        again = [op for op in row if op.role == "recompute"]
        roles = [("copy_out", "copy_in", "recompute").index(op.role) for op in row]
        assert roles == sorted(roles)
        assert [op.of for op in again] == sorted({op.of for op in again})  # each once, in recorded order
        kept |= {op.of: op.id + 1 for op in again if rewritten.ops.rng[op.id]}
        used = {b for b in range(len(touched)) if {op.role for op in touched[b]} - {"recompute"}}
        stay = {b for op in again for b in op.writes if rewritten.buffers[b].end > again[-1].id + 1} - used
        held += stay
        used |= stay
        for op in reversed(again):
            assert used & set(op.writes)  # wanted there, or read by a later recomputation
            used |= set(op.reads)
        for b in {b for op in again for b in op.writes}:  # none was there before: it begins with its first write
            assert rewritten.buffers[b].start == min(op.id for op in again if b in op.writes)
            if b in stay:
                assert rewritten.buffers[b].end in ends
            elif all(op.role == "recompute" for op in touched[b]):  # scratch
                assert rewritten.buffers[b].end == touched[b][-1].id + 1 <= again[-1].id + 1
    assert len(held) == sum(isinstance(d, Hold) and d.at >= 0 for d in plan.decisions)
    runs = {op.of: op.id for op in rewritten.ops if op.role == "compute"}
    states = [(b.start, b.end) for b in rewritten.buffers if b.kind == GENERATOR]
    assert sorted(states) == sorted((runs[of], end) for of, end in kept.items())


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_two_thousand_plans_in_two_hundred_orders(data: st.DataObject) -> None:
    trace = data.draw(steps(streams=3))
    rewritten = data.draw(any_plans(trace)).apply(trace)
    all_oracles(trace, rewritten)
    assert not same_bytes(trace, rewritten, 200)


@pytest.mark.jit
def test_draws_are_hardly_ever_empty() -> None:
    count: Counter[object] = Counter()

    @settings(max_examples=60, database=None, derandomize=True, phases=[Phase.generate], deadline=None)
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        trace = data.draw(steps())
        plan = data.draw(any_plans(trace))
        rewritten = plan.apply(trace)
        again = int((rewritten.ops.role == RECOMPUTE).sum())
        count.update(type(d) for d in plan.decisions)
        ends = trace.buffers.end.tolist()
        holds = [d for d in plan.decisions if isinstance(d, Hold)]
        tails = sum(d.after < 0 and d.until < ends[d.buffer] for d in holds)
        made = sum(d.at >= 0 for d in holds)
        count.update({"tails": tails, "made": made, "later": sum(d.at < 0 <= d.after for d in holds)})
        count.update({"draws": 1, "recomputations": again, "none": not again})

    draw()
    assert count["draws"] >= 60 and count["none"] * 4 <= count["draws"]
    assert count["recomputations"] >= 8 * count["draws"]
    assert min(count[Recompute], count[Swap]) >= 2 * count["draws"] and count[Hold] >= count["draws"] // 2
    assert min(count["tails"], count["made"], count["later"]) >= 5


@given(st.data())
def test_plans_of_rewritten_steps_compose(data: st.DataObject) -> None:
    trace = data.draw(steps(max_layers=6))
    once = data.draw(any_plans(trace)).apply(trace)
    twice = Plan.of(once, data.draw(any_plans(once)).decisions).apply(once)
    for before in (trace, once):
        check.data_flow(before, twice)
        assert not same_bytes(before, twice, 1)


@given(st.data())
def test_what_is_away_at_each_place(data: st.DataObject) -> None:
    trace = data.draw(steps(max_layers=6))
    chosen = data.draw(any_plans(trace)).decisions
    swaps = [d for d in chosen if isinstance(d, Swap)]
    device = Device(trace, Origins.of(trace), swaps)
    device.decide([d for d in chosen if not isinstance(d, Swap)])
    holds, ends = [d for d in chosen if isinstance(d, Hold)], trace.buffers.end.tolist()
    dropped = {(d.buffer, d.after) for d in chosen if isinstance(d, Recompute)}
    later = {(d.buffer, d.after): d.until for d in holds if d.at < 0 and (d.buffer, d.after) in dropped}
    held = {d.buffer: d.until for d in holds if d.at < 0 and (d.buffer, d.after) not in dropped}
    spans = [(b, range(until + 1, ends[b])) for b, until in held.items()]
    for d in chosen:
        if isinstance(d, Recompute):
            spans.append((d.buffer, range(later.get((d.buffer, d.after), d.after) + 1, d.at)))
        elif isinstance(d, Swap):
            spans.append((d.buffer, range(d.release, d.prefetch)))
    for place in range(1, trace.n + 1):
        wanted = data.draw(st.sets(st.integers(0, len(trace.buffers) - 1), max_size=2))
        away = {b for b, span in spans if place in span or place + trace.n in span} | wanted
        there = device.present(place, wanted)
        assert set(np.flatnonzero(there.absent)) == away
        assert set(np.flatnonzero(there.kept >= 0)) == {
            d.buffer for d in holds if d.at >= 0 and d.at < place <= d.until
        }
    assert device.until.tolist() == [held.get(b, 0) for b in range(len(trace.buffers))]


def test_what_reruns_read_on_the_device_are_their_sources() -> None:
    # ops 0 and 1 make A and B, op 2 makes C of both, read by 3 and 5; B is dead at 4
    ops = Ops.make([[], [], [0, 1], [2, 1], [], [2, 0]], [[0], [1], [2], [], [], []])
    trace = Trace(Buffers.make([8] * 3, [0, 1, 2], [6, 4, 6]), ops)
    drop, away = Recompute(2, 3, 5, 5), Swap(0, 2, 5, 3, 5)
    for more, sources, again in (([], {0}, [1, 2]), ([Hold(1, 5)], {0, 1}, [2]), ([away], {0}, [1, 2])):
        (found,) = replays(Device(trace, Origins.of(trace), [drop, *more]), [drop])
        assert (found.sources, [step.op for step in found.recomputed_ops]) == (sources, again)
    late, early = Recompute(0, 2, 5, 5), replace(drop, at=4)
    (found,) = replays(Device(trace, Origins.of(trace), [early, late]), [early])
    assert (found.sources, [step.op for step in found.recomputed_ops]) == (frozenset(), [0, 1, 2])


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
