"""The oracles let the right thing pass and object to each kind of wrong thing."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import COPY, HOST, Timeline
from gpumem.swap.plan import Plan, Recompute, Swap
from gpumem.trace import COPY_IN, COPY_OUT, RECOMPUTE, SYNC, Buffers, Csr, Ops, Trace
from gpumem.trace.kinds import STATISTICS
from gpumem.trace.placement import Placement
from tests.conftest import objects, tiny_machine
from tests.strategies import plans, traces


def bare() -> Trace:
    return Trace.from_lifetimes([4, 4, 0], [8, 0, 0], [12, 9, 10], n=10)  # the first wraps and meets the second


@pytest.mark.parametrize(
    "offset, height, alignment, rule, why",
    [
        ([0, 3, 0], 8, 1, "overlap", "buffers 0 and 1: overlap in time and address, at byte 3"),
        ([0, 4, 0], 7, 1, "height", "buffer 1: ends at byte 8, above the height of 7"),
        ([0, 5, 0], 9, 4, "alignment", "buffer 1: offset 5 is not a multiple of 4"),
        ([-4, 4, 0], 8, 1, "alignment", "buffer 0: offset -4 is not"),
        ([0, 4], 8, 1, "offsets", "the trace has 3 buffers, the placement 2"),
    ],
)
def test_a_wrong_placement(offset: list[int], height: int, alignment: int, rule: str, why: str) -> None:
    check.placement(bare(), Placement(np.array([0, 4, 2]), 8))
    with objects(rule, why) as found:
        check.placement(bare(), Placement(np.array(offset), height, alignment))
    assert found.value.buffers == tuple(map(int, re.findall(r"\d+", why.split(":")[0]))) or rule == "offsets"


def test_a_host_buffer_has_no_offset() -> None:
    trace = Trace(Buffers.make([4], [0], [1], host=[True]), Ops.make([[]], [[]]))
    with objects("offsets", "on the host"):
        check.placement(trace, Placement(np.array([0]), 4))


@given(traces(max_ops=6), st.data())
def test_the_placement_oracle_agrees_with_a_grid_of_bytes(trace: Trace, data: st.DataObject) -> None:
    offset = [data.draw(st.integers(0, 12)) for _ in trace.buffers]
    cells: set[tuple[int, int]] = set()
    clash = False
    for b, at in zip(trace.buffers, offset):
        mine = {(t % trace.n, x) for t in range(b.start, b.end) for x in range(at, at + b.size)}
        clash |= bool(cells & mine)
        cells |= mine
    try:
        check.placement(trace, Placement.at(trace, offset))
    except CheckError as error:
        assert error.rule == "overlap"
        assert clash
    else:
        assert not clash


def test_the_budget_counts_arcs_on_both_sides() -> None:
    check.budget(bare(), 8)
    with objects("budget", "step 0: holds 8 bytes on the device, the limit is 7"):
        check.budget(bare(), 7)
    host = Trace(Buffers.make([9], [0], [1], host=[True]), Ops.make([[]], [[]]))
    check.budget(host, 1, host=9)
    with objects("budget", "step 0: holds 9 bytes on the host, the limit is 8"):
        check.budget(host, 1, host=8)


def net() -> tuple[Trace, Trace]:
    """W persistent, read by 1, updated by 3; X made by 0, read by 2; both swapped, W over the boundary."""
    ops = Ops.make([[], [0], [1], [0], []], [[1], [], [], [0], []])
    trace = Trace(Buffers.make([8, 8], [0, 0], [5, 3], persistent=[True, False]), ops)
    return trace, Plan((Swap(0, 3, 6, 4, 6), Swap(1, 0, 2, 1, 2))).apply(trace)


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


def placed_net() -> tuple[Trace, Placement, Timeline, Machine]:
    machine = tiny_machine()
    _, swapped = net()
    swapped = Trace(swapped.buffers, replace(swapped.ops, duration=np.where(swapped.ops.of >= 0, 5, -1)))
    placement = best_fit(swapped, alignment=1)
    return swapped, placement, simulate(swapped, machine, placement), machine


def test_a_timeline_must_be_exact() -> None:
    trace, placement, line, machine = placed_net()
    duration = machine.durations(trace)
    check.timeline(trace, line, duration, placement=placement)
    for i in range(trace.n):
        for shift in (-1, 1):
            start, end = line.start.copy(), line.end.copy()
            start[i] += shift
            end[i] += shift
            with objects("start", f"op {i}: starts"):
                check.timeline(trace, replace(line, start=start, end=end), duration, placement=placement)
    with objects("duration", "op 2: takes"):
        check.timeline(trace, line, duration + (np.arange(trace.n) == 2), placement=placement)
    with objects("makespan", "makespan"):
        check.timeline(trace, replace(line, makespan=line.makespan + 1), duration, placement=placement)
    with objects("wait", "waits"):
        check.timeline(trace, replace(line, wait=line.wait + 1), duration, placement=placement)
    for i in range(trace.n):
        with objects("cause", f"op {i}: waits .* the naive clock says (none|copy or data or memory)"):
            cause = np.where(np.arange(trace.n) == i, np.where(line.wait == 0, COPY, HOST), line.cause)
            check.timeline(trace, replace(line, cause=cause), duration, placement=placement)


def test_a_timeline_must_be_issued_as_its_hosts_can() -> None:
    trace, placement, _, machine = placed_net()
    duration, handing = machine.durations(trace), np.full(trace.n, 3)
    line = simulate(trace, machine.with_(host_ns=3, copy_host_ns=3), placement)
    check.timeline(trace, line, duration, placement=placement, handing=handing)
    with objects("issue", "the host is on, the naive clock says it is not"):
        check.timeline(trace, line, duration, placement=placement)
    with objects("issue", "the host is off, the naive clock says it is not"):
        check.timeline(trace, replace(line, issued=None), duration, placement=placement, handing=handing)
    assert line.issued is not None
    with objects("issue", "op 0: issues .* ns, the naive clock says"):
        check.timeline(trace, replace(line, issued=line.issued - 1), duration, placement=placement, handing=handing)
    late = np.flatnonzero(line.cause == HOST)
    with objects("cause", f"op {late[0]}: .* cause 'copy', the naive clock says host"):
        cause = np.where(line.cause == HOST, COPY, line.cause)
        check.timeline(trace, replace(line, cause=cause), duration, placement=placement, handing=handing)


def test_a_timeline_of_another_clock_is_refused() -> None:
    trace, placement, line, machine = placed_net()
    duration = machine.durations(trace)
    free = simulate(trace, machine)
    assert free.makespan < line.makespan
    with objects("start", "the naive clock says"):
        check.timeline(trace, free, duration, placement=placement)
    with objects("capacity", "op 0: the load exceeds the capacity of 7 bytes"):
        check.timeline(trace, line, duration, capacity=7)


def test_a_timeline_that_does_not_repeat_is_seen() -> None:
    # op 0 runs ahead of op 1 by another 10 ns in each iteration; see the next test
    ops = Ops.make([[], [0]], [[0], []], duration=[10, 20], stream=[0, 1], streams=["a", "b"])
    trace = Trace(Buffers.make([4], [0], [2]), ops)
    start, end, none = np.array([0, 10]), np.array([10, 30]), np.zeros(2, np.int64)
    line = Timeline(start, end, wait=np.array([0, 10]), cause=none, makespan=20, first=0, cycle=1, stalls={})
    with objects("cycle", "op 0: does not repeat after 1 iterations from iteration 0") as found:
        check.timeline(trace, line, trace.ops.duration)
    assert found.value.ops == (0,)


def test_the_naive_clock_by_hand() -> None:
    # two streams, one buffer of 4 bytes made by op 0 (10 ns) and read by op 1 (20 ns) on the other stream:
    # free      a 0..10 10..20 20..30     b 10..30 30..50 50..70      a fresh buffer each iteration
    # placed    a 0..10 30..40 60..70     b 10..30 40..60 70..90      the same bytes: a waits for b
    ops = Ops.make([[], [0]], [[0], []], duration=[10, 20], stream=[0, 1], streams=["a", "b"])
    trace = Trace(Buffers.make([4], [0], [2]), ops)
    start, end = check.naive_clock(trace, trace.ops.duration, iterations=3)
    assert start.tolist() == [[0, 10], [10, 30], [20, 50]]
    assert end.tolist() == [[10, 30], [20, 50], [30, 70]]
    start, _ = check.naive_clock(trace, trace.ops.duration, placement=Placement.at(trace, [0]), iterations=3)
    assert start.tolist() == [[0, 10], [30, 40], [60, 70]]
    # capacity 4: the same, since the bytes come back when b has read them; 8: one iteration ahead
    start, _ = check.naive_clock(trace, trace.ops.duration, capacity=4, iterations=3)
    assert start.tolist() == [[0, 10], [30, 40], [60, 70]]
    start, _ = check.naive_clock(trace, trace.ops.duration, capacity=8, iterations=4)
    assert start.tolist() == [[0, 10], [10, 30], [30, 50], [50, 70]]


def test_every_rule_is_broken_by_some_test() -> None:
    """`objects` and the tables of `test_jobs` name a rule with each broken thing."""
    from tests.check import test_jobs as jobs

    tables = (jobs.ORDER, jobs.MEMORY, jobs.LINKS, jobs.VALUES, jobs.RERUNS, jobs.NEW_PLANS)
    named = {rule for table in tables for rule, _, _ in table} | {"overlap", "height", "alignment"}
    texts = [
        (Path(__file__).parents[1] / name).read_text()
        for name in ("check/test_check.py", "jobs/test_jobs_host.py", "jobs/waterwave/test_waterwave.py")
    ]
    calls = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    first = (node.args[0] for node in calls if ast.unparse(node.func) == "objects")
    named |= {rule.value for rule in first if isinstance(rule, ast.Constant)}
    assert named >= set(check.RULES)


def test_every_rule_stands_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "testing.md").read_text()
    for rule, line in check.RULES.items():
        assert f"| `{rule}` | {line} |" in page
