"""Rewrites: hand-checked arcs, clean copies, recomputation, and every valid plan by the oracles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.plan import Decision, Plan, Recompute, Swap, Variant
from gpumem.trace import RECOMPUTE, Buffers, Csr, Ops, Trace
from tests.strategies import plans, traces
from tests.swap.nets import activation


def shape(trace: Trace) -> list[tuple[str, list[int], list[int]]]:
    return [(o.role, list(o.reads), list(o.writes)) for o in trace.ops]


def arcs(trace: Trace) -> list[tuple[int, int, str, bool, int]]:
    return [(b.start, b.end, b.space, b.persistent, b.of) for b in trace.buffers]


def parameter() -> Trace:
    """W: persistent, read by 1, updated in place by 3."""
    ops = Ops.make([[], [0], [], [0], []], [[], [], [], [0], []])
    return Trace(Buffers.make([8], [0], [5], persistent=[True]), ops)


def test_a_swap_within_the_iteration() -> None:
    trace = activation()
    swapped = Plan((Swap(0, after=0, before=4, release=2, prefetch=3),)).apply(trace)
    # 0 make X, 1 copy out, 2 op 1, 3 op 2, 4 copy in, 5 op 3, 6 op 4, 7 op 5
    assert [o[0] for o in shape(swapped)] == ["compute", "copy_out", *["compute"] * 2, "copy_in", *["compute"] * 3]
    assert arcs(swapped) == [
        (0, 3, "device", False, 0),  # held through op 1, that is new index 2
        (2, 6, "device", False, 1),
        (4, 8, "device", False, 0),  # the dead tail stays
        (1, 5, "host", False, 0),
    ]
    assert [o[1:] for o in shape(swapped)][1::3] == [([0], [3]), ([3], [2]), ([], [])]
    assert swapped.ops.of.tolist() == [0, -1, 1, 2, -1, 3, 4, 5]
    check.data_flow(trace, swapped)


def test_the_device_buffer_is_held_through_the_copy_out() -> None:
    swapped = Plan((Swap(0, after=0, before=4, release=1, prefetch=4),)).apply(activation())
    assert arcs(swapped)[0][:2] == (0, 2)


def test_a_copy_out_may_be_delayed() -> None:
    trace = activation()
    swapped = Plan((Swap(0, after=0, before=4, release=2, prefetch=3, out=1),)).apply(trace)
    # 0 make X, 1 op 1, 2 copy out, 3 op 2, 4 copy in, 5 op 3, 6 op 4, 7 op 5
    assert swapped.ops.of.tolist() == [0, 1, -1, 2, -1, 3, 4, 5]
    assert arcs(swapped)[0][:2] == (0, 3)  # held through the copy out
    assert arcs(swapped)[3][:2] == (2, 5)
    check.data_flow(trace, swapped)


def test_a_copy_out_may_be_delayed_over_the_boundary() -> None:
    trace = parameter()
    swapped = Plan((Swap(0, after=3, before=6, release=6, prefetch=6, out=5),)).apply(trace)
    # op 0, copy out, copy in, op 1, ...: the value crosses on the device
    assert [o.role for o in swapped.ops][:4] == ["compute", "copy_out", "copy_in", "compute"]
    assert arcs(swapped)[0] == (2, 2 + 7, "device", True, 0)
    check.data_flow(trace, swapped)


def test_a_gap_over_the_boundary_leaves_the_value_on_the_host() -> None:
    trace = parameter()
    swapped = Plan((Swap(0, after=3, before=6, release=4, prefetch=6),)).apply(trace)
    # 0 op 0, 1 copy in, 2 op 1 (reads W), 3 op 2, 4 op 3 (updates W), 5 copy out, 6 op 4
    assert [o[0] for o in shape(swapped)] == ["compute", "copy_in", *["compute"] * 3, "copy_out", "compute"]
    assert arcs(swapped) == [(1, 6, "device", False, 0), (5, 9, "host", True, 0)]
    assert swapped.live_bytes().tolist() == [0, 8, 8, 8, 8, 8, 0]
    check.data_flow(trace, swapped)


def test_a_prefetch_before_the_boundary_leaves_the_value_on_the_device() -> None:
    trace = parameter()
    swapped = Plan((Swap(0, after=3, before=6, release=4, prefetch=4),)).apply(trace)
    # 0 op 0, 1 op 1, 2 op 2, 3 op 3, 4 copy out, 5 copy in, 6 op 4
    assert arcs(swapped) == [(5, 12, "device", True, 0), (4, 6, "host", False, 0)]
    check.data_flow(trace, swapped)


def test_a_prefetch_at_the_boundary_is_issued_by_the_next_iteration() -> None:
    swapped = Plan((Swap(0, after=3, before=6, release=4, prefetch=5),)).apply(parameter())
    assert [o[0] for o in shape(swapped)] == ["copy_in", *["compute"] * 4, "copy_out", "compute"]
    assert arcs(swapped) == [(0, 6, "device", False, 0), (5, 8, "host", True, 0)]


@pytest.mark.parametrize("start, began", [(0, 0), (1, 2)])
def test_what_lives_for_ever_goes_round_from_where_it_began(start: int, began: int) -> None:
    # beside W, which comes back before op 0, P is read by op 2; its lifetime is told from op 0 or from op 1 on
    ops = Ops.make([[], [0], [1], [0], []], [[], [], [], [0], []])
    trace = Trace(Buffers.make([8, 4], [0, start], [5, start + 5], persistent=[True, True]), ops)
    swapped = Plan((Swap(0, after=3, before=6, release=4, prefetch=5),)).apply(trace)
    # 0 copy in, 1 op 0, 2 op 1
    assert arcs(swapped)[1] == (began, began + 7, "device", True, 1)
    check.data_flow(trace, swapped)


def test_one_access_an_iteration_gives_a_gap_of_a_whole_iteration() -> None:
    ops = Ops.make([[], [0], []], [[], [0], []])
    trace = Trace(Buffers.make([8], [0], [3], persistent=[True]), ops)
    swapped = Plan((Swap(0, after=1, before=4, release=2, prefetch=4),)).apply(trace)
    assert arcs(swapped) == [(1, 4, "device", False, 0), (3, 7, "host", True, 0)]
    check.data_flow(trace, swapped)


def test_a_clean_copy_is_not_copied_out_again() -> None:
    # written by 0, read by 2 and by 4: the second gap needs no copy out, the host copy serves both
    ops = Ops.make([[], [], [0], [], [0]], [[0], [], [], [], []])
    trace = Trace(Buffers.make([8], [0], [5]), ops)
    swapped = Plan((Swap(0, 0, 2, 1, 2), Swap(0, 2, 4, 3, 4))).apply(trace)
    assert [o[0] for o in shape(swapped)].count("copy_out") == 1
    assert arcs(swapped)[-1] == (1, 7, "host", False, 0)
    check.data_flow(trace, swapped)


def test_a_written_buffer_is_copied_out_again_to_a_host_buffer_of_its_own() -> None:
    ops = Ops.make([[], [], [0], [], [0]], [[0], [], [0], [], []])
    trace = Trace(Buffers.make([8], [0], [5]), ops)
    swapped = Plan((Swap(0, 0, 2, 1, 2), Swap(0, 2, 4, 3, 4))).apply(trace)
    assert [o[0] for o in shape(swapped)].count("copy_out") == 2
    assert sorted(a for a in arcs(swapped) if a[2] == "host") == [(1, 4, "host", False, 0), (5, 8, "host", False, 0)]
    check.data_flow(trace, swapped)


def test_a_constant_is_never_copied_out() -> None:
    ops = Ops.make([[0], [], [0], []], [[], [], [], []])
    trace = Trace(Buffers.make([8], [0], [4], persistent=[True]), ops)
    swapped = Plan((Swap(0, 0, 2, 1, 2), Swap(0, 2, 4, 3, 4))).apply(trace)
    assert [o[0] for o in shape(swapped)].count("copy_out") == 0
    assert arcs(swapped)[-1] == (0, 6, "host", True, 0)
    check.data_flow(trace, swapped)


def test_at_one_place_copies_out_come_first_ties_in_plan_order() -> None:
    ops = Ops.make([[], [0, 1], [2], [2, 0], [1]], [[0, 1], [], [2], [], []])
    trace = Trace(Buffers.make([8, 8, 8], [0, 0, 2], [5, 5, 5]), ops)
    swaps = (Swap(1, 1, 4, 2, 4), Swap(0, 1, 3, 2, 2), Swap(2, 2, 3, 3, 3))
    swapped = Plan(swaps).apply(trace)
    moved = [(o.role, swapped.buffers[o.writes[0]].of) for o in swapped.ops if o.role.startswith("copy")]
    # after op 1: both outs in plan order, then the copy in of buffer 0
    assert moved == [("copy_out", 1), ("copy_out", 0), ("copy_in", 0), ("copy_out", 2), ("copy_in", 2), ("copy_in", 1)]


@pytest.mark.parametrize(
    "decision, why",
    [
        (Swap(2, 0, 4, 1, 4), "there are 2 buffers"),
        (Swap(0, 0, 3, 1, 3), "not consecutive accesses of it; the next access is at 4"),
        (Swap(0, 1, 4, 2, 4), "not consecutive accesses"),
        (Swap(0, 4, 6, 5, 6), "not consecutive accesses"),  # not persistent: nothing goes round
        (Swap(0, 0, 4, 0, 4), "after <= out < release <= prefetch <= before"),
        (Swap(0, 0, 4, 3, 2), "after <= out < release <= prefetch <= before"),
        (Swap(0, 0, 4, 3, 5), "after <= out < release <= prefetch <= before"),
        (Swap(0, 0, 4, 2, 3, 2), "after <= out < release"),
        (Swap(0, 2, 4, 4, 4, 1), "after <= out < release"),
        (Swap(0, 6, 8, 7, 8), "0 <= after < 6"),
        (Recompute(0, 0, 4, 5), "after < at <= before"),
        (Variant(6, "fast", 1, 1), "there are 6 ops"),
        (Variant(6, "fast", 1, 1, at=2), "there are 6 ops"),
        (Variant(0, "fast", 1, 1, at=4), "op 0 is not recomputed before op 4, nowhere"),
    ],
)
def test_a_decision_that_does_not_fit_is_refused(decision: Decision, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        Plan((decision,)).apply(activation())
    assert type(decision).__name__ in str(error.value)


def test_a_gap_can_be_taken_once() -> None:
    with pytest.raises(ValueError, match="already taken"):
        Plan((Swap(0, 0, 4, 1, 4), Swap(0, 0, 4, 2, 3))).apply(activation())


def test_a_plan_for_another_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="made for 7 ops, the trace has 6"):
        Plan((), n=7).apply(activation())


def chain() -> Trace:
    """A by 0; B = f(A) by 1, with a second output C; B used by 2 and 4; A alive until 4."""
    ops = Ops.make([[], [0], [1], [], [1, 0]], [[0], [1, 2], [], [], []], name=list("abcde"))
    return Trace(Buffers.make([4, 8, 2], [0, 1, 1], [5, 5, 2]), ops)


def test_recomputation_runs_the_producer_once_more() -> None:
    trace = chain()
    again = Plan((Recompute(1, after=2, before=4, at=4),)).apply(trace)
    assert shape(again)[4] == ("recompute", [0], [3, 4])
    assert again.ops.of.tolist() == [0, 1, 2, 3, 1, 4]
    assert arcs(again)[1] == (1, 3, "device", False, 1)
    assert arcs(again)[3:] == [(4, 6, "device", False, 1), (4, 5, "device", False, 2)]
    check.data_flow(trace, again)


@pytest.mark.parametrize("blocking", [False, True])
def test_copies_block_as_the_plan_says_and_reruns_as_their_op_does(blocking: bool) -> None:
    for waits in ([False] * 5, [False, True, False, False, True]):
        trace = Trace(chain().buffers, replace(chain().ops, blocking=np.array(waits)))
        plan = Plan((Recompute(1, after=2, before=4, at=4), Swap(0, 1, 4, 3, 4)), blocking=blocking)
        done = plan.apply(trace).ops  # A is back for the recomputation of op 1
        want = [blocking if of < 0 else waits[of] for of in done.of.tolist()]
        assert done.copies.sum() == 2 and 1 in done.of[done.role == RECOMPUTE] and done.blocking.tolist() == want


def test_what_comes_with_a_rerun_is_no_piece_of_an_old_buffer() -> None:
    trace = chain()
    buffers = replace(trace.buffers, name=("A", "B", "C"), shape=((4,), (8,), (2,)), dtype=("int8",) * 3)
    random = Trace(buffers, replace(trace.ops, rng=np.array([False, True, *[False] * 3])))
    done = Plan((Recompute(1, 2, 4, 4), Variant(1, "fast", 1, 6, at=4))).apply(random)
    assert [o.of for o in done.ops] == [0, 1, 2, 3, 1, 4]
    # 16 bytes of the generator's state on the host, from op 1 to its recomputation, and its workspace
    more = {b.kind: b for b in done.buffers if b.kind}
    assert {kind: (b.size, b.start, b.end, b.space) for kind, b in more.items()} == {
        "generator": (16, 1, 5, "host"),
        "workspace": (6, 4, 5, "device"),
    }
    assert all((b.of, b.name, b.shape, b.dtype, b.persistent) == (-1, "", None, "", False) for b in more.values())


def test_what_cannot_be_recomputed_is_refused() -> None:
    trace = chain()
    batch = replace(trace.buffers, kind=("input", "", ""))
    gone = Buffers.make([4, 8, 2], [0, 1, 1], [3, 5, 2], kind=batch.kind)
    needs = r"op 1 \(b\) needs buffer 0 as it was, which is off the device or changed by then: its data comes from out"
    once, never = Recompute(1, 2, 4, 4), Recompute(0, 1, 4, 4)
    for buffers, changes, plan, why in [
        (batch, {"writes": [[0], [1, 2], [], [0], []]}, [once], needs),
        (batch, {}, [replace(once, at=3), Swap(0, 1, 4, 2, 4)], needs),
        (gone, {"reads": [[], [0], [1], [], [1]]}, [once], needs),
        (
            trace.buffers,
            {"reads": [[], [0, 1], [1], [], [1, 0]]},
            [once],
            r"1 holds after op 2 \(c\): no op makes",
        ),
        (batch, {}, [never], r"buffer 0 holds after op 1 \(b\): its data comes from outside"),
        (replace(batch, kind=("param", "", "")), {}, [never], "it is a parameter or optimizer state"),
        (trace.buffers, {"name": ["empty.memory_format", *"bcde"]}, [never], "its data comes from outside"),
    ]:
        columns = {"reads": trace.ops.reads, "writes": trace.ops.writes, "name": trace.ops.name}
        bad = Trace(buffers, Ops.make(**{**columns, **changes}))
        with pytest.raises(ValueError, match=why):
            Plan.of(bad, plan).apply(bad)


def test_what_is_gone_or_changed_by_then_is_made_again_in_scratch() -> None:
    trace = chain()  # as above, but A is dead, overwritten or away when B is wanted again
    writes = [[0], [1, 2], [], [0], []]
    for again in (
        Plan((Recompute(1, 2, 4, 4),)).apply(
            Trace(Buffers.make([4, 8, 2], [0, 1, 1], [3, 5, 2]), Ops.make([[], [0], [1], [], [1]], trace.ops.writes))
        ),
        Plan((Recompute(1, 2, 4, 4),)).apply(Trace(trace.buffers, replace(trace.ops, writes=Csr.of(writes)))),
        Plan((Recompute(1, 2, 4, 3), Swap(0, 1, 4, 2, 4))).apply(trace),
    ):
        runs = [o for o in again.ops if o.role == "recompute"]
        assert [o.of for o in runs] == [0, 1]
        scratch = again.buffers[runs[0].writes[0]]
        assert runs[1].reads == (scratch.id,) and (scratch.start, scratch.end) == (runs[0].id, runs[1].id + 1)


@given(st.data())
def test_every_valid_plan_keeps_the_values(data: st.DataObject) -> None:
    trace = data.draw(traces())
    swapped = data.draw(plans(trace)).apply(trace)
    check.data_flow(trace, swapped)
    assert swapped.peak_live_bytes <= trace.peak_live_bytes


@given(st.data())
def test_plans_compose(data: st.DataObject) -> None:
    trace = data.draw(traces(max_ops=6, max_buffers=5))
    once = data.draw(plans(trace)).apply(trace)
    twice = data.draw(plans(once)).apply(once)
    check.data_flow(trace, twice)
    machine = Machine.named("h200")
    placement = best_fit(twice, alignment=4)
    line = simulate(twice, machine, placement, iterations=60)
    check.everything(trace, twice, placement, line, machine)
