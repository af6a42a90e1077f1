"""Data flow: the oracle lets right rewrites pass and objects where an op reads, or a boundary keeps, another value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.swap.plan import Plan, Recompute, Swap
from gpumem.trace import COPY_IN, COPY_OUT, RECOMPUTE, SYNC, Buffers, Csr, Ops, Trace
from gpumem.trace.kinds import STATISTICS
from tests.check.nets import net
from tests.conftest import objects
from tests.strategies import plans, traces


def op_with(trace: Trace, i: int, **change: object) -> Trace:
    """`trace` with the reads or the writes of op `i` replaced."""
    columns = {}
    for key, value in change.items():
        rows = getattr(trace.ops, key).tolist()
        rows[i] = value
        columns[key] = Csr.of(rows)
    return Trace(trace.buffers, replace(trace.ops, **columns), name=trace.name)  # type: ignore[arg-type]


def test_the_net_is_what_the_tests_below_think() -> None:
    trace, swapped = net()
    check.data_flow(trace, swapped)
    assert [(o.role, o.reads, o.writes) for o in swapped.ops] == [
        ("compute", (), (1,)),
        ("copy_out", (1,), (4,)),
        ("copy_in", (2,), (0,)),
        ("compute", (0,), ()),
        ("copy_in", (4,), (3,)),
        ("compute", (3,), ()),
        ("compute", (0,), (0,)),
        ("copy_out", (0,), (2,)),
        ("compute", (), ()),
    ]


def without(trace: Trace, i: int) -> Trace:
    """`trace` with op `i` turned into one that does nothing."""
    role, (reads, writes) = trace.ops.role.copy(), (rows.tolist() for rows in (trace.ops.reads, trace.ops.writes))
    role[i], reads[i], writes[i] = SYNC, [], []
    return Trace(trace.buffers, replace(trace.ops, role=role, reads=Csr.of(reads), writes=Csr.of(writes)))


def test_a_missing_copy_is_seen() -> None:
    trace, swapped = net()
    with objects("value", r"op 3 .recorded op 1.: reads another value of buffer 0"):
        check.data_flow(trace, without(swapped, 2))
    with objects("value", r"op 5 .recorded op 2.: reads another value of buffer 1"):
        check.data_flow(trace, without(swapped, 4))
    with objects("lost value", "buffer 0"):
        check.data_flow(trace, without(swapped, 7))  # the update never reaches the host


def test_statistics_of_a_trace_that_runs_ops_again_already() -> None:
    table = Buffers.make([8, 8], [0, 0], [5, 5], persistent=[True, False], kind=[STATISTICS, "activation"])
    trace = Trace(table, Ops.make([[0], [], [1], [], [1]], [[0, 1], [], [], [], []]))
    once = Plan((Recompute(buffer=1, after=2, before=4, at=4),)).apply(trace)
    twice = Plan((Recompute(buffer=1, after=0, before=2, at=2),)).apply(once)
    check.data_flow(trace, twice)
    check.data_flow(once, twice)


def test_two_pieces_of_a_buffer_that_differ_are_seen() -> None:
    trace, swapped = net()
    longer = replace(swapped.buffers, end=np.where(np.arange(len(swapped.buffers)) == 1, 6, swapped.buffers.end))
    both = op_with(Trace(longer, swapped.ops), 5, reads=[1, 3])
    check.data_flow(trace, both)
    with objects("value", "op 5: reads two different values of recorded buffer 1") as found:
        check.data_flow(trace, without(both, 4))
    assert (found.value.ops, found.value.buffers, found.value.event) == ((5,), (1,), -1)


def test_a_value_that_nobody_carries_over_the_boundary_is_seen() -> None:
    trace = Trace(Buffers.make([8], [0], [2], persistent=[True]), Ops.make([[], []], [[0], []]))
    shorter = Trace(Buffers.make([8], [0], [2], persistent=[False]), trace.ops)
    with objects("lost value", "iteration 0: nobody carries buffer 0 over the boundary") as found:
        check.data_flow(trace, shorter)
    assert found.value.buffers == (0,)


def test_a_copy_from_the_wrong_buffer_is_seen() -> None:
    trace, swapped = net()
    everywhere = replace(swapped.buffers, start=np.where(swapped.buffers.host, 0, swapped.buffers.start))
    everywhere = replace(everywhere, end=np.where(swapped.buffers.host, swapped.n, swapped.buffers.end))
    crossed = op_with(Trace(everywhere, swapped.ops), 2, reads=[4])
    with objects("value", r"recorded op 1.: reads another value of buffer 0"):
        check.data_flow(trace, crossed)


def test_a_copy_out_before_the_write_is_seen() -> None:
    trace, swapped = net()
    order = np.array([0, 1, 2, 3, 4, 5, 7, 6, 8])  # the copy out of W comes before its update
    ops = swapped.ops
    early = Ops.make(
        ops.reads.take(order), ops.writes.take(order), name=[ops.name[k] for k in order], stream=ops.stream[order],
        streams=ops.streams, role=ops.role[order], of=ops.of[order],
    )  # fmt: skip
    everywhere = replace(swapped.buffers, start=swapped.buffers.start.copy(), end=swapped.buffers.end.copy())
    everywhere.start[2], everywhere.end[2] = 6, 12
    with objects("lost value", "buffer"):
        check.data_flow(trace, Trace(everywhere, early))


def test_a_stale_clean_copy_is_seen() -> None:
    # X written by 0, updated by 2, read by 4: the copy of op 0 must not serve the second gap
    ops = Ops.make([[], [], [0], [], [0]], [[0], [], [0], [], []])
    trace = Trace(Buffers.make([8], [0], [5]), ops)
    swapped = Plan((Swap(0, 0, 2, 1, 2), Swap(0, 2, 4, 3, 4))).apply(trace)
    last = max(i for i in range(swapped.n) if swapped.ops.role[i] == COPY_IN)
    first_host = min(j for o in swapped.ops if o.role == "copy_out" for j in o.writes)
    b = replace(swapped.buffers, start=np.where(swapped.buffers.host, 0, swapped.buffers.start))
    b = replace(b, end=np.where(b.host, swapped.n, b.end))
    hosts = [o.writes[0] for o in swapped.ops if o.role == "copy_out"]
    check.data_flow(trace, op_with(Trace(b, swapped.ops), last, reads=[hosts[1]]))
    with objects("value", r"recorded op 4.: reads another value of buffer 0"):
        check.data_flow(trace, op_with(Trace(b, swapped.ops), last, reads=[hosts[0]]))
    assert first_host in hosts


def test_a_recomputation_from_changed_inputs_is_seen() -> None:
    # B = f(A) by 1; A updated by 3; running op 1 again after that makes another value
    ops = Ops.make([[], [0], [1], [0], [1]], [[0], [1], [], [0], []])
    trace = Trace(Buffers.make([4, 8], [0, 1], [5, 5]), ops)
    good = Plan((Recompute(1, after=2, before=4, at=3),)).apply(trace)
    check.data_flow(trace, good)
    i = good.ops.role.tolist().index(RECOMPUTE)
    late = np.array([k for k in range(good.n) if k != i] + [i])[[0, 1, 2, 3, 5, 4]]
    o = good.ops
    ops = Ops.make(o.reads.take(late), o.writes.take(late), role=o.role[late], of=o.of[late])
    start = good.buffers.start.copy()
    start[2] = 4
    with objects("value", r"recorded op 4.: reads another value of buffer 1"):
        check.data_flow(trace, Trace(replace(good.buffers, start=start), ops))


def test_missing_doubled_and_reordered_ops_are_seen() -> None:
    trace, swapped = net()
    for of in ([0, -1, -1, 1, -1, 2, 3, -1, 3], [0, -1, -1, 2, -1, 1, 3, -1, 4]):
        with objects("ops", "recorded op"):
            check.data_flow(trace, Trace(swapped.buffers, replace(swapped.ops, of=np.array(of))))


@given(st.data())
def test_dropping_any_copy_in_that_is_read_is_seen(data: st.DataObject) -> None:
    trace = data.draw(traces(max_ops=6, max_buffers=4, streams=1))
    swapped = data.draw(plans(trace)).apply(trace)
    roles, of, n = swapped.ops.role, swapped.buffers.of, swapped.n
    needed = []
    for i in np.flatnonzero(roles == COPY_IN).tolist():
        b = int(swapped.ops.writes[i][0])
        if swapped.buffers.end[b] - swapped.buffers.start[b] == n:
            continue  # never gone, so the copy brings nothing new
        users = [k % n for k in range(i + 1, i + n) if b in (*swapped.ops.reads[k % n], *swapped.ops.writes[k % n])]
        if users and b in swapped.ops.reads[users[0]] and roles[users[0]] < COPY_OUT:
            needed.append((i, int(of[b])))
    assume(needed)
    i, buffer = data.draw(st.sampled_from(needed))
    with pytest.raises(CheckError, match=f"buffer {buffer}") as found:
        check.data_flow(trace, without(swapped, i))
    assert found.value.rule in ("value", "lost value")
